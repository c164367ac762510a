"""A scheduled loop nest as C functions, one for each of its stages: a walk over the tree.

Loops of every kind are plain loops, and tensor instructions the loops that say what they compute,
so that the same scalar operations happen in the same order as in every other way of running it.
Registers are small arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from compiler.codegen.c.expressions import Expressions, bare, index_text
from compiler.codegen.c.functions import declared
from compiler.codegen.c.names import Names, comment, unused
from compiler.codegen.c.types import c_type, literal, short_name
from compiler.codegen.parallel_tasks import Numbering, parallel_tasks
from compiler.errors import LoweringError
from compiler.symbolic import Index, Var
from compiler.target.emit_c import Operand
from compiler.tensor.expr import BinOp, Buffer, CallExtern, Expr, Load, walk
from compiler.tensor.naming import values
from compiler.tensor.stmt import (
    Attempt,
    For,
    Intrin,
    Pick,
    PrimFunc,
    Stmt,
    Store,
    When,
    accesses,
    range_of,
    stores,
)
from compiler.types.dtypes import BOOL

UNROLLED = 8
"""Steps of an instruction's innermost loop up to which the C compiler is asked to unroll it."""
LOOPS = ("serial", "unroll", "vector", "parallel")


def kernel_text(f: PrimFunc, tables: Sequence[Buffer]) -> tuple[tuple[str, ...], str]:
    """The functions of a PrimFunc that is free of custom dtypes, and whose reductions have been
    decomposed: their names, one a top-level statement, and their text (see `compiler.codegen.
    backend.Backend.kernel` for what they take).

    Raises:
        LoweringError: an expression or statement that C cannot say; names kernel and operator.
    """
    called = [x for e in values(f) for x in walk(e) if isinstance(x, CallExtern)]
    symbols = {x.symbol for x in called}
    names, parts = [], list(dict.fromkeys(map(declared, called)))
    for k, s in enumerate(f.body):
        operators = _operators(f, s)
        try:
            parts.append(_Stage(f, s, tables, symbols).run(f"{f.name}_{k}", operators))
        except LoweringError as e:
            of = f" ({', '.join(operators)})" if operators else ""
            raise LoweringError(f"{f.name}{of}: {e}") from None
        names.append(f"{f.name}_{k}")
    return tuple(names), "\n\n".join(parts)


def _operators(f: PrimFunc, s: Stmt) -> list[str]:
    known: Mapping[str, str] = f.attrs.get("operators", {})
    own = [known[x.stage] for x in stores([s]) if x.stage in known]
    return list(dict.fromkeys(own or known.values()))  # schedules name some stages anew


class _Stage:
    def __init__(
        self, f: PrimFunc, body: Stmt, tables: Sequence[Buffer], external: Collection[str]
    ):
        self.f, self.body, self.tables = f, body, tables
        self.names, self.scope = Names(external), dict[Var, str]()
        self.buffers = dict[Buffer, str]()
        self.tasks: Mapping[int, Numbering] = {}
        self.depth, self.lines = 1, list[str]()

    def run(self, symbol: str, operators: Sequence[str]) -> str:
        f = self.f
        self.names.taken.add(symbol)
        written = {b for b, _, w, _ in accesses([self.body]) if w}
        params = []
        for b in (*f.params, *f.temps, *self.tables):
            self.buffers[b] = self.names.new(b.name)
            const = "" if b in written else "const "
            params.append(f"{const}{c_type(b.dtype)} *restrict {self.buffers[b]}")
        for v in f.dims:
            self.scope[v] = self.names.new(v.name)
            params.append(f"int64_t {self.scope[v]}")
        extent, self.tasks = parallel_tasks(self.body)
        if extent is not None:
            params += ["int64_t begin", "int64_t end"]
        for b in dict.fromkeys(b for b, *_ in accesses([self.body]) if b not in self.buffers):
            self._own(b)
        self.statement(self.body)
        self.lines[:0] = [f"  {x}" for x in unused(params, self.lines)]
        head = f"KERNEL void {symbol}({', '.join(params) or 'void'}) {{"
        what = f"{comment(', '.join(operators))}\n" if operators else ""
        return "\n".join([what + head, *self.lines, "}"])

    def _own(self, b: Buffer) -> None:
        """Declare memory of the function's own."""
        if b.scope not in ("register", "local"):
            raise LoweringError(f"no memory for the {b.scope} buffer {b.name}")
        size = b.size.range()[1]
        if size is None:
            raise LoweringError(f"{b.scope} buffer {b.name} needs a constant size")
        self.buffers[b] = self.names.new(b.name)
        self.line(f"{c_type(b.dtype)} {self.buffers[b]}[{size}];")

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def block(self, head: str, body: Sequence[Stmt], tail: str = "}") -> None:
        self.line(head)
        self.depth += 1
        with self.names.scope():
            self.statements(body)
        self.depth -= 1
        if tail:
            self.line(tail)

    def statements(self, body: Sequence[Stmt]) -> None:
        for s in body:
            if isinstance(s, Store):
                self.store(s, len(body) == 1)
            else:
                self.statement(s)

    def statement(self, s: Stmt) -> None:
        if isinstance(s, For):
            self.loop(s)
        elif isinstance(s, Intrin):
            self.intrin(s)
        elif isinstance(s, Attempt):
            self.attempt(s)
        elif isinstance(s, When):
            self.when(s)
        elif isinstance(s, Pick):
            self.pick(s)
        elif isinstance(s, Store):
            self.store(s)
        else:
            raise LoweringError(f"C has no {type(s).__name__}")

    def loop(self, s: For) -> None:
        if s.kind not in LOOPS:
            raise LoweringError(f"C has no loops of kind {s.kind} ({s.var})")
        if s.extent == 1 and id(s) not in self.tasks:
            self.scope[s.var] = "0"
            for x in s.body:
                self.statement(x)
            return
        with self.names.scope():
            first, end = self._range(s)
            name = self.scope[s.var] = self.names.new(s.var.name)
            self.block(f"for (int64_t {name} = {first}; {name} < {end}; ++{name}) {{", s.body)

    def _range(self, s: For) -> tuple[str, str]:
        """The first iteration and the end; of a parallel loop, of those among the tasks
        [begin, end): iteration i is task i * stride + offset, so divide by the stride, rounding
        up."""
        task, extent = self.tasks.get(id(s)), index_text(s.extent, self.scope)
        if task is None:
            return "0", extent
        if task.stride == 1 and task.offset == 0 and task.aligned:
            return "begin", "end"
        up = index_text(task.stride - 1 - task.offset, self.scope)
        by = index_text(task.stride, self.scope)
        first, end = (
            f"least_i64(floor_div_i64(most_i64({bound} + {up}, 0), {by}), {extent})"
            for bound in ("begin", "end")
        )
        return first, end

    def intrin(self, s: Intrin) -> None:
        emit = s.intrin.emitter("c")
        read = [s.leaves[n] for n in s.intrin.lanes]
        given = [self.operand(s, e) for e in (Load(s.store.buffer, s.store.idx), *read)]
        text = emit(*given) if emit is not None and None not in given else None
        if text is not None:
            self.line(text)
            return
        self.intrin_loops(s)

    def operand(self, s: Intrin, e: Expr) -> Operand | None:
        """An operand of an instruction; None if it is not in memory, or in no even steps."""
        if not isinstance(e, Load):
            return None
        at, mine = e.buffer.flat(e.idx), set(s.vars.values())
        if any(not isinstance(a, Var) and a.leaves() & mine for a in at.terms):
            return None
        steps = {n: at.terms.get(v, 0) for n, v in s.vars.items()}
        first = index_text(at, {**self.scope, **dict.fromkeys(mine, "0")})
        return Operand(f"&{self.buffers[e.buffer]}[{first}]", steps)

    def intrin_loops(self, s: Intrin) -> None:
        with self.names.scope():
            self.line(comment(s.intrin.name))
            last = list(s.intrin.loops)[-1]
            for n, extent in s.intrin.loops.items():
                if n == last and extent <= UNROLLED:  # a dot product takes a third of the time
                    self.line(f"#pragma GCC unroll {extent}")
                i = self.scope[s.vars[n]] = self.names.new(s.vars[n].name)
                self.line(f"for (int64_t {i} = 0; {i} < {extent}; ++{i}) {{")
                self.depth += 1
            self.store(s.store, alone=True)
            for _ in s.intrin.loops:
                self.depth -= 1
                self.line("}")

    def attempt(self, s: Attempt) -> None:
        """What a larger tile may have left in the registers is no NaN of this one."""
        for b in s.watched:
            name = self.buffers[b]
            self.line(f"memset({name}, 0, sizeof {name});")
        self.block("{", s.body)
        unsure, k = self.names.new("unsure"), self.names.new("k")
        self.line(f"int {unsure} = 0;")
        for b in s.watched:
            name = self.buffers[b]
            head = f"for (int64_t {k} = 0; {k} < {b.size.range()[1]}; ++{k})"
            self.line(f"{head} {unsure} |= {name}[{k}] != {name}[{k}];")
        self.block(f"if (!{unsure}) {{", s.rest, "")
        self.block("} else {", s.again)

    def when(self, s: When) -> None:
        self.block(f"if ({bare(self.declared(s.condition))}) {{", s.body)

    def pick(self, s: Pick) -> None:
        value, at = self.declared(s.at), self.names.new(s.var.name)
        self.line(f"const int64_t {at} = {bare(value)};")
        self.scope[s.var] = at
        extent = index_text(Index.of(s.var.extent or 0), self.scope)
        self.block(f"if (0 <= {at} && {at} < {extent}) {{", s.body)

    def declared(self, value: Expr) -> str:
        """A value, behind the declarations that it needs."""
        e = Expressions(self.names, self.scope, self.buffers)
        text = e.text(value)
        for x in e.lines:
            self.line(x)
        return text

    def store(self, s: Store, alone: bool = False) -> None:
        """`alone`: in a block of its own, which holds its declarations."""
        if s.init is not None:
            raise LoweringError(f"stage {s.stage}: its reduction was not decomposed")
        with self.names.scope():
            e = Expressions(self.names, self.scope, self.buffers)
            place = e.element(s.buffer, s.idx)
            value = bare(self._stored(s, e, place))
            if s.buffer.dtype == BOOL and not value.isdigit():
                value = f"(uint8_t)({value})"
            text = f"{place} = {value};"
            lines = [*e.lines, text]
            for x in lines if alone or len(lines) == 1 else ["{", *(f"  {x}" for x in lines), "}"]:
                self.line(x)

    def _stored(self, s: Store, e: Expressions, place: str) -> str:
        dtype = s.buffer.dtype
        if s.update == "Fma":
            if not isinstance(s.value, BinOp) or s.value.op != "Mul":
                raise LoweringError(
                    f"stage {s.stage}: an Fma update needs a product, not {s.value!r}"
                )
            a, b = e.text(s.value.a), e.text(s.value.b)
            return f"fma_{short_name(dtype)}({a}, {b}, {place})"
        if not s.update:
            return e.text(s.value)
        value, bounds = e.text(s.value), range_of(s.update)
        total = e.binary("Add" if bounds else s.update, dtype, place, value)
        for op, bound in zip(("Max", "Min"), bounds or (), strict=bool(bounds)):
            total = e.binary(op, dtype, total, literal(bound, dtype))
        return total
