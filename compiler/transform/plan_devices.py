"""PlanDevices: operators that are annotated for devices become functions that these compute.

`annotation.on_device` says where its operand is computed. What is not annotated goes where the
fewest bytes are copied (see `device_assignment`); sizes that are open count as OPEN. Parameters and
results of `main` are the host's, and so is what is no operator on tensors. Constants cost nothing:
they are put on their device when the program is built.

What a device computes without waiting for another is a function `DEVICE_0`, `DEVICE_1` ... with the
attribute `device`; values go between devices by `device_copy`, at most once to each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from compiler.errors import ConfigError, InputError, UnsupportedError, VerifyError, unknown
from compiler.ir.devices import DEVICE_COPY, HOST, ON_DEVICE, is_called, placements
from compiler.ir.draws import drawn, may_round
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Function,
    GlobalVar,
    IRModule,
    TupleGetItem,
    Var,
    atom_type,
    names_in,
    nested,
    operands,
    tensor_type,
    uses,
)
from compiler.ir.outside import DEVICE
from compiler.ir.substitution import substitute
from compiler.op.assume import ASSUME
from compiler.op.opdef import OpDef
from compiler.op.sizes import MATCH_SHAPE
from compiler.passes.live import live
from compiler.passes.manager import ModulePass, PassContext
from compiler.transform.device_assignment import OUTSIDE, Net, assigned
from compiler.transform.instantiate import brings_sizes
from compiler.transform.outline import dependencies, outlined
from compiler.types.names import unique
from compiler.types.tensor_types import TensorType, TupleType

OPEN = 16
"""What an open size counts as where bytes are compared."""
Refuses = Callable[[Call], str]
"""Says why a device cannot compute a call of an operator; empty: it can."""


class PlanDevices(ModulePass):
    """Makes functions of what devices compute, with the copies that they need.

    Args:
        devices: name of each device but the host -> what it refuses.
    """

    name = "PlanDevices"
    required = ("InferType",)

    def __init__(self, devices: Mapping[str, Refuses] | None = None):
        self.devices = dict(devices or {})

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The module whose `main` calls what devices compute; as it is, if nothing is annotated.

        Raises:
            ConfigError: an annotation names a device that there is not; names the nearest.
            InputError: a value is annotated for two devices, or no device computes it.
            UnsupportedError: a device cannot compute what is annotated for it; or an annotation is
                in control flow, or in another function than main.
        """
        for name, f in mod.functions.items():
            if isinstance(f, Function):
                _refuse_nested(name, f)
        if "main" not in mod.functions or not any(map(_annotates, mod.main.bindings)):
            return mod
        if there := placements(mod):
            raise UnsupportedError(
                f"@{there[0].name} is planned for device {there[0].device!r} already: annotate the "
                "module as it was before"
            )
        f, fixed = _without_annotations(mod.main, self.devices)
        made: dict[str, Function] = {}
        main = _Plan(f, fixed, self.devices, made, {*mod.functions}).run()
        return mod.with_functions({"main": main, **made})


def _annotates(b: Binding) -> bool:
    return is_called(b.value, ON_DEVICE)


def _refuse_nested(name: str, f: Function, outer: bool = True) -> None:
    """Raise UnsupportedError where an annotation is not at the top of main."""
    for b in f.bindings:
        if _annotates(b) and not (outer and name == "main"):
            raise UnsupportedError(
                f"{b.var!r} of @{name} is annotated for a device, and only operators of main, "
                "outside branches and loops, can be computed on one"
            )
        inner = nested(b.value)
        if isinstance(b.value, Call) and isinstance(b.value.op, Function):
            inner = (*inner, b.value.op)
        for g in inner:
            _refuse_nested(name, g, outer=False)


def _without_annotations(
    f: Function, devices: Mapping[str, Refuses]
) -> tuple[Function, dict[Var, str]]:
    """The function without its annotations, and where they say that values are computed."""
    instead: dict[Var, Atom] = {}
    fixed: dict[Var, str] = {}
    bindings = []
    computed: set[Var] = set()
    for b in f.bindings:
        if not _annotates(b):
            computed.add(b.var)
            bindings.append(replace(b, value=substitute(b.value, instead)))
            continue
        assert isinstance(b.value, Call)
        (x,) = (instead.get(a, a) if isinstance(a, Var) else a for a in b.value.args)
        device = b.value.attrs.device
        if device not in devices and device != HOST:
            raise ConfigError(unknown("device", device, [*devices, HOST]))
        if not isinstance(x, Var) or x not in computed:
            what = f"{x!r} is a parameter" if isinstance(x, Var) else f"{b.var!r} is a constant"
            raise InputError(
                f"{what}, which device {device!r} does not compute: annotate what reads it"
            )
        if fixed.setdefault(x, device) != device:
            raise InputError(
                f"{x!r} is annotated for device {fixed[x]!r} and for device {device!r}: keep one"
            )
        instead[b.var] = x
    results = [instead.get(r, r) if isinstance(r, Var) else r for r in f.results]
    return _with_names_of(f, live(f.with_body(bindings, results)), fixed)


def _with_names_of(
    f: Function, plain: Function, fixed: Mapping[Var, str]
) -> tuple[Function, dict[Var, str]]:
    """A function whose results have the names of those of `f`, which callers know them by."""
    new: dict[Var, Atom] = {}
    for old, r in zip(f.results, plain.results, strict=True):
        if isinstance(old, Var) and isinstance(r, Var) and old is not r and r not in f.results:
            new.setdefault(r, Var(old.name, r.type))

    def named(v: Var) -> Var:
        found = new.get(v, v)
        assert isinstance(found, Var)
        return found

    bindings = [
        replace(b, var=named(b.var), value=substitute(b.value, new)) for b in plain.bindings
    ]
    results = [named(r) if isinstance(r, Var) else r for r in plain.results]
    return plain.with_body(bindings, results), {named(v): d for v, d in fixed.items()}


class _Plan:
    def __init__(
        self,
        f: Function,
        fixed: Mapping[Var, str],
        devices: Mapping[str, Refuses],
        made: dict[str, Function],
        taken: set[str],
    ):
        self.f, self.devices, self.made, self.taken = f, devices, made, taken
        self.draws = drawn(f) is not None
        self.readers = uses(f)
        self.group = _groups(f)
        self.heads = sorted(set(self.group))  # positions of what computes a value
        number = {k: n for n, k in enumerate(self.heads)}
        self.node = [number[k] for k in self.group]
        self.of = {b.var: self.node[k] for k, b in enumerate(f.bindings)}
        self.where = self._assigned(fixed)
        self.names = names_in(f)
        self.at: dict[tuple[Var, str], Var] = {}
        self.out: list[Binding] = []

    # ---- where -----------------------------------------------------------------------------------
    def _assigned(self, fixed: Mapping[Var, str]) -> list[str]:
        members: list[list[Binding]] = [[] for _ in self.heads]
        for b, n in zip(self.f.bindings, self.node, strict=True):
            members[n].append(b)
        common = [self._no_operator(m) for m in members]
        possible = [
            [d for d in self.devices if not why and not self._refused(m[0], d)]
            for m, why in zip(members, common, strict=True)
        ]
        given: dict[int, str] = {}
        for v, device in fixed.items():
            if v not in self.of:
                continue  # nothing needs it
            k = self.of[v]
            if given.setdefault(k, device) != device:
                raise InputError(
                    f"{members[k][0].var!r} is annotated for device {given[k]!r} and for device "
                    f"{device!r}: keep one"
                )
            if device != HOST and device not in possible[k]:
                why = common[k] or self._refused(members[k][0], device)
                raise UnsupportedError(
                    f"device {device!r} cannot compute {_called(members[k][0])}: {why}"
                )
        return assigned(len(members), given, possible, self._nets())

    def _refused(self, b: Binding, device: str) -> str:
        assert isinstance(b.value, Call)
        return self.devices[device](b.value)

    def _no_operator(self, members: Sequence[Binding]) -> str:
        """Why only the host can compute some bindings; empty: they are an operator on tensors."""
        b = members[0]
        op = b.value.op if isinstance(b.value, Call) else None
        if not isinstance(op, OpDef):
            return "it is no operator"
        if op.effect or op.callee or op is MATCH_SHAPE or op is ASSUME:
            return f"{op.name} does more than compute a value"
        if self.draws and any(map(may_round, members)):
            return "its random bits are drawn by a parameter of main"
        if isinstance(atom_type(b.var), TupleType):
            if any(r is None or r not in members for r in self.readers.get(b.var, ())):
                return "its results are read as a tuple"
            values = [m.var for m in members[1:]]
        else:
            values = [b.var]
        for a in (*operands(b.value), *values):
            if not isinstance(atom_type(a), TensorType):
                return f"{a!r} is no tensor"
        alone, _ = outlined(members, values, {})
        return "its operands do not tell its sizes" if brings_sizes(alone) else ""

    def _nets(self) -> list[Net]:
        place = {id(b): n for b, n in zip(self.f.bindings, self.node, strict=True)}
        found = []
        for v in (*self.f.params, *(b.var for b in self.f.bindings)):
            if not isinstance(v.type, TensorType) or v not in self.readers:
                continue
            readers = (OUTSIDE if r is None else place[id(r)] for r in self.readers[v])
            producer = self.of.get(v, OUTSIDE)
            found.append(Net(producer, tuple(dict.fromkeys(readers)), _bytes(v.type)))
        return found

    # ---- what is written -------------------------------------------------------------------------
    def run(self) -> Function:
        f, where = self.f, self.where
        if all(d == HOST for d in where):
            return f
        for device, nodes in self._runs():
            members = [b for b, n in zip(f.bindings, self.node, strict=True) if n in nodes]
            if device == HOST:
                self._on_host(members)
            else:
                self._region(device, members)
        for r in f.results:
            if isinstance(r, Var):
                self.there(r, HOST)
        return f.with_body(self.out, f.results)

    def _runs(self) -> list[tuple[str, set[int]]]:
        """What devices compute in turn, each as much as it can before another goes on."""
        before: list[set[int]] = [set() for _ in self.heads]
        for k, needed in enumerate(dependencies(self.f)):
            before[self.node[k]] |= {self.node[j] for j in needed} - {self.node[k]}
        runs: list[tuple[str, set[int]]] = []
        left, done = set(range(len(self.heads))), set[int]()
        while left:
            ready = [k for k in sorted(left) if before[k] <= done]
            if not ready:
                raise VerifyError("values of main wait for each other")
            device = self.where[ready[0]]
            run: set[int] = set()
            while some := {k for k in ready if self.where[k] == device}:
                run |= some
                done |= some
                left -= some
                ready = [k for k in left if before[k] <= done]
            runs.append((device, run))
        return runs

    def there(self, v: Var, device: str) -> Var:
        """A value of `main` where a device can read it: copied, if it is elsewhere. On the host it
        keeps its name, which results are known by."""
        home = self.where[self.of[v]] if v in self.of else HOST
        if device == home == HOST or not isinstance(v.type, TensorType):
            return v
        if (v, device) not in self.at:
            if device == HOST:
                self.out.append(Binding(v, copy_of(self.at[v, home], home, HOST), self._origins(v)))
                self.at[v, device] = v
            else:
                source = self.there(v, HOST)
                new = self.at[v, device] = self._named(v, device)
                self.out.append(Binding(new, copy_of(source, HOST, device), self._origins(v)))
        return self.at[v, device]

    def _named(self, v: Var, device: str) -> Var:
        return Var(unique(f"{v.name}_{device}", self.names), v.type)

    def _origins(self, v: Var) -> tuple[str, ...]:
        return next((b.origins for b in self.f.bindings if b.var is v), ())

    def _on_host(self, members: Sequence[Binding]) -> None:
        for b in members:
            for a in operands(b.value):
                if isinstance(a, Var):
                    self.there(a, HOST)
            self.out.append(b)

    def _region(self, device: str, members: Sequence[Binding]) -> None:
        inside = {id(b) for b in members}
        results = [
            b.var
            for b in members
            if isinstance(b.var.type, TensorType)
            and any(r is None or id(r) not in inside for r in self.readers.get(b.var, ()))
        ]
        f, args = outlined(members, results, {DEVICE: device})
        number = 0
        while (name := f"{device}_{number}") in self.taken:
            number += 1
        self.taken.add(name)
        self.made[name] = f
        call = Call(GlobalVar(name, f.type), tuple(self.there(a, device) for a in args))
        origins = tuple(dict.fromkeys(o for b in members for o in b.origins))
        for v in results:
            self.at[v, device] = self._named(v, device)
        if len(results) == 1:
            self.out.append(Binding(self.at[results[0], device], call, origins))
            return
        whole = Var(unique(name, self.names), TupleType(tuple(map(tensor_type, results))))
        self.out.append(Binding(whole, call, origins))
        for k, v in enumerate(results):
            self.out.append(Binding(self.at[v, device], TupleGetItem(whole, k), self._origins(v)))


def copy_of(v: Var, src: str, dst: str) -> Call:
    """A call that copies a value from a device to another."""
    from compiler.op.library import get_op

    op = get_op(DEVICE_COPY)
    return Call(op, (v,), op.make_attrs(src=src, dst=dst))


def _groups(f: Function) -> list[int]:
    """For each binding, the position of what computes it: itself, or the operator of whose results
    it takes one."""
    place = {b.var: k for k, b in enumerate(f.bindings)}
    out = []
    for k, b in enumerate(f.bindings):
        v = b.value
        at = (
            place.get(v.value) if isinstance(v, TupleGetItem) and isinstance(v.value, Var) else None
        )
        several = at is not None and isinstance(f.bindings[at].value, Call)
        out.append(at if several and at is not None else k)
    return out


def _bytes(t: TensorType) -> int:
    total = t.dtype.nbytes
    for d in t.shape:
        total *= d if isinstance(d, int) else max(0, d.value(dict.fromkeys(d.vars(), OPEN)))
    return total


def _called(b: Binding) -> str:
    op = b.value.op if isinstance(b.value, Call) else None
    what = op.name if isinstance(op, OpDef) else "what gives it"
    node = f" (node {b.origins[0]!r})" if b.origins else ""
    return f"{b.var!r}{node}, {what}"
