"""Which inputs of a decoder are caches that its outputs continue; the module that lets them grow
where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.boundary.index_ranges import INDICES, index_ranges
from compiler.errors import UnsupportedError
from compiler.interpret.graph import evaluate
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    operands,
    tensor_type,
    uses,
)
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_operands
from compiler.op.append import APPEND, CACHES
from compiler.op.facts import Moves
from compiler.op.mixed import CAST
from compiler.op.opdef import Fusion, OpDef
from compiler.op.shapes import SHAPE_OF
from compiler.passes.live import live
from compiler.symbolic import Dim, Index, dim
from compiler.symbolic import Var as Size
from compiler.transform.instantiate import with_sizes
from compiler.types.dtypes import DType, custom
from compiler.types.tensor_types import TensorType

MOST_BITS = 16
"""Of the elements of a cache that is held as other numbers than the model's: all are tried."""


@dataclass(frozen=True)
class Cache:
    """An input that an output continues: the output is the input with new positions behind it.

    Attributes:
        name: of the input. output: name of the output. position: which output.
        axis: of the positions.
        held: dtype of its elements in memory: what the model converts the input to first, and its
            output back from.
        given: dtype of the input.
        order: of the input's axes in memory; empty: their own. `axis` is one of memory.
    """

    name: str
    output: str
    position: int
    axis: int
    held: DType
    given: DType
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kept:
    """What sessions know of the caches that they keep.

    Attributes:
        caches: in the order of the inputs.
        total, capacity: the sizes that say how many positions caches have after a call, and how
            many there is room for.
        new: how many a call adds.
    """

    caches: tuple[Cache, ...]
    total: Size
    capacity: Size
    new: Dim


@dataclass(frozen=True)
class Growing(Kept):
    """A module with caches that grow where they are.

    Attributes:
        module: its results are those of the model that continue no cache.
        past: how many positions there were, in sizes of the module.
    """

    module: IRModule
    past: Index

    @property
    def kept(self) -> Kept:
        """What sessions know of it."""
        return Kept(self.caches, self.total, self.capacity, self.new)


def growing(mod: IRModule) -> Growing:
    """What a prepared decoder becomes when its caches grow in place.

    Raises:
        UnsupportedError: no output continues an input, or one that should does not; says which
            and why.
    """
    f = mod.main
    names = _output_names(mod)
    made = {b.var: b for b in f.bindings}
    found: dict[Var, tuple[Cache, Binding]] = {}
    declined: list[str] = []
    for k, r in enumerate(f.results):
        got = _continued(f, made, r, k, names[k])
        if isinstance(got, str):
            declined.append(f"output {names[k]!r} {got}")
        elif got[0] in found:
            declined.append(f"output {names[k]!r} continues {got[0].name!r}, as another does")
        else:
            found[got[0]] = got[1:]
    if not found:
        raise UnsupportedError(
            "no output is an input with new positions behind it, so that there is no cache: "
            + "; ".join(declined[:3])
        )
    pasts = {tensor_type(p).shape[c.axis] for p, (c, _) in found.items()}
    past = next(iter(pasts))
    if len(pasts) > 1 or not isinstance(past, Size):
        raise UnsupportedError(
            "caches must have one open number of positions, not "
            f"{', '.join(sorted(map(str, pasts)))}: name their axes alike"
        )
    for p in f.params:
        t = tensor_type(p)
        if p not in found and t.rank > 2 and past in t.shape:
            why = "; ".join(declined[:3]) or "there is none"
            raise UnsupportedError(f"no output continues input {p.name!r}, a cache: {why}")
    return _rewritten(mod, found, past)


def _rewritten(mod: IRModule, found: Mapping[Var, tuple[Cache, Binding]], past: Size) -> Growing:
    f = mod.main
    total, capacity = Size(_unused("total", f)), Size(_unused("capacity", f))
    params = {p: Var(p.name, tensor_type(p).with_dtype(c.held)) for p, (c, _) in found.items()}
    joins = {b.var: p for p, (_, b) in found.items()}
    # What a cache was converted to is now what it holds.
    moved: dict[Atom, Atom] = {p: params[p] for p in found}
    for p, (_, b) in found.items():
        assert isinstance(b.value, Call)
        moved[b.value.args[0]] = params[p]
    new = _added(next(iter(found.values()))[1])
    bindings = []
    for b in f.bindings:
        if b.var in joins:
            assert isinstance(b.value, Call)
            value = Call(APPEND, (params[joins[b.var]], b.value.args[1]), b.value.attrs)
            if _added(b) != new:
                raise UnsupportedError(f"%{b.var.name} adds {_added(b)} positions, others {new}")
            b = replace(b, value=value)
        elif any(a in moved for a in operands(b.value)):
            b = replace(
                b, value=with_operands(b.value, [moved.get(a, a) for a in operands(b.value)])
            )
        bindings.append(b)
    caches = tuple(found[p][0] for p in f.params if p in found)
    places = {c.position for c in caches}
    results = [r for k, r in enumerate(f.results) if k not in places]
    attrs = {**f.attrs, CACHES: tuple((c.name, c.axis, capacity) for c in caches)}
    main = Function(
        tuple(params.get(p, p) for p in f.params), tuple(bindings), tuple(results), attrs
    )
    main = live(main)
    _check_readers(main, {c.name for c in caches})
    names = [n for k, n in enumerate(_output_names(mod)) if k not in places]
    before = Index.of(total) - new
    attrs = {**mod.attrs, "outputs": names, INDICES: _rows(mod, {past: before})}
    mod = replace(mod, attrs=attrs).with_function("main", main)
    return Growing(caches, total, capacity, new, with_sizes(mod, {past: before}), before)


def _rows(mod: IRModule, sizes: Mapping[Size, Index]) -> list[list[object]]:
    """What the module notes of positions, in other sizes."""
    ranges = index_ranges(mod)
    return [replace(r, highest=dim(Index.of(r.highest).subst(sizes))).row() for r in ranges]


def _check_readers(f: Function, names: set[str]) -> None:
    """Caches may be continued, and asked for their sizes; nothing else may read them, since what
    reads what was there before would have nothing to read in the first call."""
    readers = uses(f)
    for p in f.params:
        for b in readers.get(p, ()) if p.name in names else ():
            if b is None or not isinstance(b.value, Call) or b.value.op not in (APPEND, SHAPE_OF):
                who = "a result" if b is None else f"%{b.var.name}"
                raise UnsupportedError(
                    f"input {p.name!r} is read by {who} besides being continued by an output: its "
                    "cache cannot grow where it is"
                )


def _continued(
    f: Function, made: Mapping[Var, Binding], r: Atom, position: int, output: str
) -> tuple[Var, Cache, Binding] | str:
    """The parameter that a result continues, and the binding that does; or why there is none."""
    join, back = _through(made, r)
    b = made.get(join) if isinstance(join, Var) else None
    call = b.value if b is not None else None
    if b is None or not isinstance(call, Call) or not _joins(call):
        what = "is no result of an operator" if b is None else f"is made by {_made_by(b)}"
        return f"{what}, not by a concatenation"
    if len(call.args) != 2:
        return f"joins {len(call.args)} tensors (node {_node(b)}), not an input and what is new"
    source, forth = _through(made, call.args[0])
    if not isinstance(source, Var) or source not in f.params:
        return f"does not begin with an input (node {_node(b)})"
    if call.args[1] in f.params:
        return f"joins two inputs (node {_node(b)}), not an input and what is computed"
    t, given = tensor_type(b.var), tensor_type(source)
    axis = call.attrs.axis % t.rank
    if given.shape != tensor_type(call.args[0]).shape:
        return f"begins with input {source.name!r} in another shape (node {_node(b)})"
    if (back or forth) and not _undone(t.dtype, given.dtype, [*back, *forth]):
        return (
            f"is input {source.name!r} with more behind it, but {_ops([*forth, *back])} around "
            "that do not give the same numbers back"
        )
    return source, Cache(source.name, output, position, axis, t.dtype, given.dtype), b


def _joins(call: Call) -> bool:
    return isinstance(call.op, OpDef) and call.op.moves is Moves.JOIN


def _through(made: Mapping[Var, Binding], a: Atom) -> tuple[Atom, list[Binding]]:
    """What `a` is an elementwise function of, and the bindings of that, in order."""
    chain: list[Binding] = []
    while isinstance(a, Var) and a in made:
        b = made[a]
        call = b.value
        if not isinstance(call, Call) or not isinstance(call.op, OpDef) or not call.args:
            break
        others = call.args[1:]
        scalars = all(isinstance(x, Constant) and x.data.size == 1 for x in others)
        first = call.args[0]
        same = scalars and tensor_type(first).shape == tensor_type(a).shape
        if call.op.fusion is not Fusion.ELEMENTWISE or not same:
            break
        chain.insert(0, b)
        a = first
    return a, chain


def _undone(held: DType, given: DType, chain: Sequence[Binding]) -> bool:
    """Whether elements that go out of the program, through the operators in front of an output, and
    in again, through those behind an input, are the same: tried on all of them."""
    if held.bits > MOST_BITS or (held.is_float and not held.is_custom):
        return _casts(held, given, chain)
    every = np.arange(1 << held.bits, dtype=np.uint64).astype(f"u{held.storage.itemsize}")
    codes = every.view(held.storage)
    start = Var("x", TensorType((len(codes),), held))
    at: Var = start
    bindings = []
    for k, b in enumerate(chain):
        assert isinstance(b.value, Call)
        value = replace(b.value, args=(at, *b.value.args[1:]))
        at = Var(f"v{k}", infer_value(value))
        bindings.append(Binding(at, value))
    back = evaluate(IRModule({"main": Function((start,), tuple(bindings), (at,))}), codes)
    same = back == codes
    if held.is_custom:
        kind: Any = custom(held.name)
        same |= np.isnan(kind.decode(codes, held)) & np.isnan(kind.decode(back, held))
    return bool(np.all(same))


def _casts(held: DType, given: DType, chain: Sequence[Binding]) -> bool:
    """Whether a chain only casts floats to wider ones and back."""
    plain = held.is_float and not held.is_custom and given.is_float and not given.is_custom
    types = [tensor_type(b.var).dtype for b in chain]
    plain &= all(isinstance(b.value, Call) and b.value.op is CAST for b in chain)
    return plain and all(t.is_float and not t.is_custom and t.bits >= held.bits for t in types)


def _added(b: Binding) -> Dim:
    """How many positions a binding that joins two tensors adds."""
    assert isinstance(b.value, Call)
    t = tensor_type(b.value.args[1])
    axis: int = b.value.attrs.axis
    return t.shape[axis % t.rank]


def _output_names(mod: IRModule) -> list[str]:
    names = list(mod.attrs.get("outputs", ()))
    results = mod.main.results
    if len(names) == len(results):
        return names
    return [r.name if isinstance(r, Var) else f"output{k}" for k, r in enumerate(results)]


def _unused(stem: str, f: Function) -> str:
    """A name that no size of a function's parameters has."""
    taken = {str(v) for p in f.params for d in tensor_type(p).shape for v in Index.of(d).vars()}
    while stem in taken:
        stem += "_"
    return stem


def _node(b: Binding) -> str:
    return ", ".join(b.origins) or f"%{b.var.name}"


def _made_by(b: Binding) -> str:
    op = b.value.op if isinstance(b.value, Call) else type(b.value).__name__
    return f"{op} (node {_node(b)})"


def _ops(chain: Sequence[Binding]) -> str:
    return ", ".join(str(b.value.op) for b in chain if isinstance(b.value, Call))
