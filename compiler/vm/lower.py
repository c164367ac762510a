"""Functions of the graph level to bytecode. Runs of operators become regions, which are compiled
like graphs without control flow; branches and loops become jumps, closures functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from compiler.ir.effects import effectful
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    If,
    IRModule,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    atom_type,
    operands,
    uses,
)
from compiler.op.opdef import OpDef
from compiler.op.sizes import MATCH_SHAPE
from compiler.runtime.executable import GraphExecutable
from compiler.symbolic import Var as Dim
from compiler.types.data import Form
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType, Type
from compiler.vm.bytecode import (
    Allocate,
    Append,
    Bind,
    BindSizes,
    Close,
    Field,
    Forget,
    GetTag,
    Instruction,
    Invoke,
    InvokeClosure,
    Jump,
    Load,
    Move,
    Pack,
    Return,
    Rows,
    Run,
    Stack,
    Start,
    Turn,
    Unless,
    VMFunction,
)
from compiler.vm.dims import dims_of, in_attrs, introduced
from compiler.vm.image import Image
from compiler.vm.patterns import Taken

Compile = Callable[[Function], GraphExecutable]
"""Compiles a function of tensors without control flow."""


def lower(mod: IRModule, compile_region: Compile) -> Image:
    """The bytecode of `main` and of what it calls."""
    return _Image(mod, compile_region).run()


@dataclass
class _Image:
    """Functions, regions and constants, as they come up."""

    mod: IRModule
    compile_region: Compile
    functions: list[VMFunction | None] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    waiting: list[tuple[int, str, Function]] = field(default_factory=list)
    regions: list[GraphExecutable] = field(default_factory=list)
    constants: list[Array] = field(default_factory=list)

    def run(self) -> Image:
        self.named("main")
        while self.waiting:
            index, name, f = self.waiting.pop(0)
            self.functions[index] = _Function(self, name, f).run()
        functions = tuple(f for f in self.functions if f is not None)
        return Image(functions, tuple(self.regions), tuple(self.constants))

    def named(self, name: str) -> int:
        """Number of a function of the module."""
        if name not in self.numbers:
            self.numbers[name] = self.function(f"@{name}", self.mod[name])
        return self.numbers[name]

    def function(self, name: str, f: Function) -> int:
        """Number of a function that is still to be lowered."""
        self.functions.append(None)
        self.waiting.append((len(self.functions) - 1, name, f))
        return len(self.functions) - 1

    def region(self, f: Function) -> int:
        self.regions.append(self.compile_region(f))
        return len(self.regions) - 1

    def constant(self, data: Array) -> int:
        self.constants.append(data)
        return len(self.constants) - 1


class _Function:
    """The code of one function; branches and bodies of loops share its registers."""

    def __init__(self, image: _Image, name: str, f: Function):
        self.image, self.name, self.f = image, name, f
        self.code: list[Instruction] = []
        self.registers = 0
        self.at: dict[Atom, int] = {}
        self.known: set[Dim] = set()
        self.given: frozenset[Dim] = frozenset()

    def run(self) -> VMFunction:
        params = (*self.f.captures, *self.f.params)
        for p in params:
            self.at[p] = self.fresh()
        for p in params:
            self.bind(self.at[p], atom_type(p), p.name)
        self.given = frozenset(self.known)
        results = self.body(self.f)
        self.code.append(Return(results))
        return VMFunction(
            self.name,
            tuple((p.name, atom_type(p)) for p in params),
            tuple(map(atom_type, self.f.results)),
            self.registers,
            tuple(self.code),
        )

    # ---- registers, places and dimensions --------------------------------------------------------
    def fresh(self) -> int:
        self.registers += 1
        return self.registers - 1

    def read(self, a: Atom) -> int:
        """The register that holds an atom."""
        if isinstance(a, Constant):
            out = self.fresh()  # not kept: a branch may not have run
            self.code.append(Load(out, self.image.constant(a.data)))
            return out
        return self.at[a]

    def reads(self, atoms: Iterable[Atom]) -> tuple[int, ...]:
        return tuple(map(self.read, atoms))

    def emit_later(self) -> int:
        """A place for an instruction that is known later."""
        self.code.append(Jump(-1))
        return len(self.code) - 1

    def bind(self, register: int, t: Type, name: str) -> None:
        dims = dims_of(t)
        if dims:
            self.code.append(Bind(register, t, f"%{name}"))
        self.known |= dims

    def forget(self, dims: Iterable[Dim]) -> None:
        names = sorted(str(d) for d in dims)
        if names:
            self.code.append(Forget(tuple(names)))

    # ---- bindings --------------------------------------------------------------------------------
    def body(self, f: Function) -> tuple[int, ...]:
        """Code of the bindings; the registers of the results."""
        readers = uses(f)
        region: list[Binding] = []
        inside: set[Var] = set()

        def flush() -> None:
            if region:
                self.regions(region, readers)
            region.clear()
            inside.clear()

        for b in f.bindings:
            if _in_region(b.value, inside):
                region.append(b)
                inside.add(b.var)
                continue
            if not isinstance(b.value, Tuple | TupleGetItem | Construct) or inside & set(
                operands(b.value)
            ):
                flush()
            self.value(b)
        flush()
        return self.reads(f.results)

    def regions(
        self, bindings: Sequence[Binding], readers: dict[Var, list[Binding | None]]
    ) -> None:
        """Compile bindings; those that need dimensions found at run time, which may be 0, apart."""
        if any(effectful(b.value) for b in bindings):
            self.region(bindings, readers)
            return
        found: set[Var] = set()
        for b in bindings:
            attrs = b.value.attrs if isinstance(b.value, Call) else None
            dims = dims_of(b.var.type).union(
                in_attrs(attrs), *(dims_of(a.type) for a in operands(b.value))
            )
            if found & set(operands(b.value)) or not dims <= self.given:
                found.add(b.var)
        for part in (
            [b for b in bindings if b.var not in found],
            [b for b in bindings if b.var in found],
        ):
            if part:
                self.region(part, readers)

    def region(self, bindings: Sequence[Binding], readers: dict[Var, list[Binding | None]]) -> None:
        """Compile bindings; what others read of them goes to registers."""
        here = set(bindings)
        wanted = [b.var for b in bindings if any(r not in here for r in readers.get(b.var, ()))]
        extra: list[Binding] = []
        outs: list[Atom] = []
        for v in wanted:
            t = atom_type(v)
            if isinstance(t, TupleType):
                fields = [Var(f"{v.name}_{k}", x) for k, x in enumerate(t.fields)]
                extra += [Binding(x, TupleGetItem(v, k)) for k, x in enumerate(fields)]
                outs += fields
            else:
                outs.append(v)
        if not outs and not any(effectful(b.value) for b in bindings):
            return
        body = Function((), (*bindings, *extra), (*outs, *([] if outs else [Constant.of(0)])))
        f = Function(body.captures, body.bindings, body.results)
        made = dict(zip(outs, (self.fresh() for _ in outs), strict=True))
        index = self.image.region(f)
        self.code.append(Run(tuple(made.values()), index, self.reads(f.params)))
        self.at |= made
        fields_of = iter(extra)
        for v in wanted:
            t = atom_type(v)
            if isinstance(t, TupleType):
                parts = tuple(made[next(fields_of).var] for _ in t.fields)
                self.at[v] = self.fresh()
                self.code.append(Pack(self.at[v], parts))

    def value(self, b: Binding) -> None:
        """Code of anything that is in no region."""
        v = b.value
        if isinstance(v, Var | Constant):
            self.at[b.var] = self.read(v)
            return
        if isinstance(v, TupleGetItem):
            source = self.read(v.value)
            self.at[b.var] = out = self.fresh()
            self.code.append(Field(out, source, v.index))
            return
        if isinstance(v, Tuple):
            fields = self.reads(v.fields)
            self.at[b.var] = out = self.fresh()
            self.code.append(Pack(out, fields))
            return
        if isinstance(v, Construct):
            fields = self.reads(v.fields)
            self.at[b.var] = out = self.fresh()
            self.code.append(Allocate(out, v.constructor, fields))
            return
        if isinstance(v, If):
            out = self.branches(v)
        elif isinstance(v, Cases):
            out = self.cases(v)
        elif isinstance(v, Loop):
            out = self.loop(v, b)
        elif isinstance(v, Match):
            out = self.read(v.value)
        elif isinstance(v, Call) and v.op is MATCH_SHAPE:
            self.at[b.var] = out = self.read(v.args[0])
            self.code.append(BindSizes(out, v.attrs.shape, f"%{b.var.name}", v.attrs.claim))
            self.known |= in_attrs(v.attrs)
            return
        else:
            out = self.call(v, b.var.name)
        self.at[b.var] = out
        self.bind(out, atom_type(b.var), b.var.name)

    def call(self, v: Call | Function | GlobalVar, name: str) -> int:
        """A call of a function or closure, or a closure itself."""
        out = self.fresh()
        if isinstance(v, GlobalVar):
            self.code.append(Close(out, self.image.named(v.name), (), False))
        elif isinstance(v, Function):
            index = self.image.function(f"{self.name}.{name}", v)
            self.code.append(Close(out, index, self.reads(v.captures), True))
        elif isinstance(v.op, GlobalVar):
            args = self.reads(v.args)
            self.code.append(Invoke(out, self.image.named(v.op.name), args))
        else:
            assert isinstance(v.op, Var)
            closure, *args_ = self.reads((v.op, *v.args))
            self.code.append(InvokeClosure(out, closure, tuple(args_)))
        return out

    def branches(self, v: If) -> int:
        flag, out = self.read(v.condition), self.fresh()
        test = self.emit_later()
        self.branch(v.then, out)
        done = self.emit_later()
        self.code[test] = Unless(flag, len(self.code))
        self.branch(v.otherwise, out)
        self.code[done] = Jump(len(self.code))
        return out

    def cases(self, v: Cases) -> int:
        """Each case in turn: what its pattern asks for, and its body; the last pattern that is
        reached always fits."""
        value, out = self.read(v.value), self.fresh()
        ends: list[int] = []
        tags: dict[int, int] = {}
        if any(isinstance(p, Form) for p in v.patterns):  # then all values have a tag
            tags[value] = self.fresh()
            self.code.append(GetTag(tags[value], value))
        for pattern, f in zip(v.patterns, v.bodies, strict=True):
            taken = Taken(self.fresh, self.code, tags)
            taken.apart(pattern, value)
            known = set(self.known)
            for p, k in zip(f.params, taken.variables, strict=True):
                self.at[p] = k
                self.bind(k, atom_type(p), p.name)
            self.branch(f, out, known)
            ends.append(self.emit_later())
            taken.otherwise(len(self.code))
        for place in ends:
            self.code[place] = Jump(len(self.code))
        return out

    def branch(self, f: Function, out: int, before: set[Dim] | None = None) -> None:
        """A branch, whose result goes to `out`. `before`: dimensions that are known where it is
        left; None: those that are known here."""
        known = set(self.known if before is None else before)
        results = self.body(f)
        new = Move((out,), results) if len(results) == 1 else Pack(out, results)
        self.code.append(new)
        self.forget(self.known - known)
        self.known = known

    def loop(self, v: Loop, b: Binding) -> int:
        f, known = v.body, set(self.known)
        local = introduced(f) - known
        go, turns = self.fresh(), self.fresh()
        self.code.append(Start(turns))
        state = tuple(self.fresh() for _ in f.params)
        self.code.append(Move((go, *state), self.reads((v.go, *v.init))))
        types = [atom_type(r) for r in f.results[1 + len(state) :]]
        rows = [self.fresh() for _ in types]
        self.code += [Rows(k) for k in rows]
        head = self.emit_later()
        self.code.append(Turn(turns, b.var.name, b.origins))
        self.forget(local)
        for p, k in zip(f.params, state, strict=True):
            self.at[p] = k
            self.bind(k, atom_type(p), p.name)
        results = self.body(f)
        self.code += [Append(k, r) for k, r in zip(rows, results[1 + len(state) :], strict=True)]
        self.code.append(Move((go, *state), results[: 1 + len(state)]))
        self.code.append(Jump(head))
        self.code[head] = Unless(go, len(self.code))
        self.forget(local)
        self.known = known
        stacks = [self.fresh() for _ in rows]
        for out, k, t in zip(stacks, rows, types, strict=True):
            assert isinstance(t, TensorType)
            self.code.append(Stack(out, k, t))
        out = self.fresh()
        self.code.append(Pack(out, (*state, *stacks)))
        return out


def _in_region(v: Value, inside: set[Var]) -> bool:
    """Whether a value is computed in a region that computes `inside`."""
    if isinstance(v, Call):
        return isinstance(v.op, OpDef | Function) and v.op is not MATCH_SHAPE
    return isinstance(v, TupleGetItem) and v.value in inside
