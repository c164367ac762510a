"""Regions of onnxruntime in the program that an import writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.boundary.packed import is_packed
from compiler.errors import DtypelabError, UnsupportedError
from compiler.frontend.element_types import NARROW, element_dtype
from compiler.frontend.folding import empty
from compiler.frontend.foreign.border import Unit
from compiler.frontend.foreign.kinds import CODES
from compiler.frontend.foreign.session import FOUND, REGIONS, SIZES, Session, session_of
from compiler.frontend.foreign.submodel import RANDOM, Submodel
from compiler.frontend.local_functions import all_nodes
from compiler.frontend.node import Node
from compiler.frontend.run_time import found, number
from compiler.ir.expr import Atom, Constant, TupleGetItem, Var, tensor_type
from compiler.ir.function_calls import call_dps_packed, call_packed
from compiler.ir.handed import encoded
from compiler.symbolic import Dim, Index
from compiler.types.dtypes import INT64, UINT8, Array, DType
from compiler.types.tensor_types import TensorType, TupleType

if TYPE_CHECKING:
    from compiler.frontend.foreign.importing import Foreign
    from compiler.frontend.graph_import import GraphImport


class NotATensor(Exception):
    """A result turned out to be no tensor that we have: what reads it belongs to the region."""

    def __init__(self, name: str, kind: str):
        super().__init__(name)
        self.name, self.kind = name, kind


@dataclass(frozen=True)
class Result:
    """A result of a region.

    Attributes:
        name: of the value.
        code: ONNX element type; 0 if it is packed.
        kind: its type as text, if it is packed.
        shape: dimensions, None for those that only a run tells.
    """

    name: str
    code: int
    kind: str
    shape: tuple[Dim | None, ...]

    @property
    def held(self) -> DType:
        """The dtype in which the region gives it."""
        if not self.code:
            return UINT8
        dtype = element_dtype(self.code, "")
        return dtype if not dtype.is_custom else DType.parse("float32")


def label_of_unit(unit: Unit) -> str:
    """How errors name a region."""
    names = [f"{n.name or next(filter(None, n.output), '?')!r} ({n.op_type})" for n in unit.nodes]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"node{'s' if len(names) > 1 else ''} {', '.join(names[:4])}{more}"


def hand_over(f: Foreign, g: GraphImport, unit: Unit, results: Sequence[str]) -> None:
    """Write the call of a region.

    Args:
        f, g: the import; the values of the results are kept in it.
        unit: the region.
        results: names of what is used of what it computes.

    Raises:
        UnsupportedError: onnxruntime cannot run it, or the sizes of its results cannot be found.
        NotATensor: see there.
    """
    if not results:
        return
    label = label_of_unit(unit)
    codes = {name: _code(f.kinds.get(name)) for name in results}
    while True:
        sub = Submodel(f.model, unit)
        operands = _operands(f, g, sub)
        for name in results:
            sub.give(name, codes[name])
        sub.bring_in(g.folder, g.budget)
        data = sub.finish()
        region = encoded(label, data)
        session = session_of(region)
        said = {n: _code_of(kind) for n, (_, kind, _) in zip(results, session.outputs, strict=True)}
        plain = {n: codes[n] for n in results if codes[n]}
        if all(n in plain or said[n] in _FINE for n in results):
            break
        codes.update({n: said[n] for n in results if n not in plain})
    made = []
    for k, (name, (_, kind, shape)) in enumerate(zip(results, session.outputs, strict=True)):
        if is_packed(kind) or not kind.startswith("tensor("):
            if name not in f.outputs:
                raise NotATensor(name, kind)
            if not is_packed(kind):
                raise UnsupportedError(f"{label}: output {name!r} is of the type {kind}")
        code = 0 if is_packed(kind) else said[name] if codes[name] in _FINE else codes[name]
        dims: Sequence[Any] | None = None
        if kind.startswith("tensor("):
            dims = shape or _scalar(label, sub.asking_for_rank(k))
        if kind.startswith(("seq(", "optional(", "map(")):
            dims = [None]
        elif dims is None and _declares_rank(f.kinds.get(name)):
            dims = [None] * len(f.kinds[name].tensor_type.shape.dim)
        elif dims is None:
            # The number of axes may change, in branches and among what a sequence holds.
            varies = any(n.op_type == "If" for n in unit.nodes)
            varies |= any(operand in f.packed for operand, _ in operands)
            if varies and name not in f.outputs:
                raise NotATensor(name, kind)
            dims = _shape_by_running(label, region, operands, k)
        elif is_packed(kind):
            dims = [*dims, None]
        known = tuple(sub.dims.get(d) if isinstance(d, str) else d for d in dims)
        made.append(Result(name, code, kind if not code else "", known))
    _write(f, g, unit, Constant(region, UINT8), [atom for _, atom in operands], made)


def _scalar(label: str, asking: bytes) -> list[int] | None:
    """The dimensions of a result for which onnxruntime says none: none, or None if it does not know
    how many there are."""
    ((_, _, shape),) = Session(label, asking).outputs
    return [] if list(shape) == [0] else None


def _declares_rank(kind: Any) -> bool:
    """Whether a TypeProto has a shape. How long its axes are is left to the run: nothing holds what
    a file declares to what happens."""
    return kind is not None and kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")


_TRIED = (2, 1, 8)
"""What open sizes are for a run that tells the number of axes of a result, one after the other."""
_MOST_ZEROS = 1 << 28
"""Bytes of operands that a region is run on for the number of axes of its results."""
_FINE = {0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13}


def _code(kind: Any) -> int:
    """ONNX code of the elements of a TypeProto, if it is a tensor of numbers; else 0."""
    if kind is None or kind.WhichOneof("value") != "tensor_type":
        return 0
    code = int(kind.tensor_type.elem_type)
    return 0 if code == 8 else code


def _code_of(kind: str) -> int:
    return CODES.get(kind.removeprefix("tensor(").removesuffix(")"), 0)


def _operands(f: Foreign, g: GraphImport, sub: Submodel) -> list[tuple[str, Atom]]:
    """The operands of a region, by the names of its inputs, in their order; its weights go in."""
    out: list[tuple[str, Atom]] = []
    for name in sub.unit.reads:
        if name in f.packed_weights:
            sub.take_proto(f.packed_weights[name])
        elif name in f.packed:
            sub.take_input(name, f.kinds[name])
            out.append((name, f.packed[name]))
        else:
            v, code = g.value(name), g.element(name)
            if isinstance(v, Constant) and sub.take_weight(name, code, v):
                continue
            atom = g.atom(name)
            given = sub.take_tensor(name, code, tensor_type(atom))
            if given is not None:
                stem = g.intermediate(f"{g.printable(name)}_{given}")
                atom = g.emit("cast", (atom,), {"dtype": str(given)}, stem, name)
            out.append((name, atom))
    return out


def _shape_by_running(
    label: str, region: Array, operands: Sequence[tuple[str, Atom]], k: int
) -> list[None]:
    """The number of axes of a result, found by one run on zeros, of any sizes where these are open;
    how long the axes are is left to each run, which also checks their number.

    Raises:
        UnsupportedError: it fails, or takes too much memory.
    """
    types, why = [tensor_type(atom) for _, atom in operands], "fix sizes with shapes=..."
    for size in _TRIED:
        sizes = {v: size for t in types for d in t.shape for v in Index.of(d).vars()}
        shapes = [[Index.of(d).value(sizes) for d in t.shape] for t in types]
        bytes_ = [math.prod(s) * t.dtype.nbytes for s, t in zip(shapes, types, strict=True)]
        if min(map(min, filter(None, shapes)), default=0) < 0 or sum(bytes_) > _MOST_ZEROS:
            continue
        given = [np.zeros(s, t.dtype.storage) for s, t in zip(shapes, types, strict=True)]
        try:
            return [None] * session_of(region).run(given)[k].ndim
        except DtypelabError as e:
            why = str(e)
    raise UnsupportedError(f"{label}: the number of axes of a result cannot be found: {why}")


def _write(
    f: Foreign,
    g: GraphImport,
    unit: Unit,
    region: Constant,
    operands: Sequence[Atom],
    made: Sequence[Result],
) -> None:
    """The bindings of a region: its call, behind one that finds the sizes if need be."""
    origins = tuple(n.name or next(filter(None, n.output)) for n in unit.nodes)
    names = tuple(r.name for r in made)
    node = Node("onnxruntime", origins[0], tuple(unit.reads), names, {}, g)
    random = not RANDOM.isdisjoint(n.op_type for n in all_nodes(_Nodes(unit.nodes)))
    call = call_packed if random else call_dps_packed
    stem = g.printable(names[0])
    args, func = [region, *operands], REGIONS
    shapes: Sequence[Sequence[Any]] = [r.shape for r in made]
    if any(d is None for s in shapes for d in s):
        count = sum(map(len, shapes))
        sizes = g.bind(
            call(SIZES, args, TensorType((count + 1,), INT64)), g.intermediate(f"{stem}_sizes"),
            *origins,
        )  # fmt: skip
        shapes = _found_shapes(f, node, sizes, shapes)
        args, func = [region, sizes, *operands], FOUND
    types = [TensorType(tuple(s), r.held) for s, r in zip(shapes, made, strict=True)]
    out = types[0] if len(types) == 1 else TupleType(tuple(types))
    name = stem if len(made) == 1 else g.intermediate(stem)
    value = g.bind(call(func, args, out), name, *origins)
    for k, r in enumerate(made):
        var = value if len(made) == 1 else _field(g, value, k, r.name, origins)
        _keep(f, g, r, var, origins)


@dataclass(frozen=True)
class _Nodes:
    node: Sequence[Any]


def _found_shapes(
    f: Foreign, node: Node, sizes: Atom, shapes: Sequence[Sequence[Dim | None]]
) -> list[tuple[Dim, ...]]:
    """The dimensions of results, of which a run finds those that are None."""
    out, k = [], 0
    for shape in shapes:
        dims = []
        for d in shape:
            if d is None:
                d = found(node, node.step("take", sizes, number(node, k), axis=0))
                f.found |= Index.of(d).vars()
            dims.append(d)
            k += 1
        out.append(tuple(dims))
    return out


def _field(g: GraphImport, value: Var, k: int, name: str, origins: Sequence[str]) -> Var:
    return g.bind(TupleGetItem(value, k), g.printable(name), *origins)


def _keep(f: Foreign, g: GraphImport, r: Result, var: Var, origins: Sequence[str]) -> None:
    """Give a result its name in the import."""
    if not r.code:
        f.packed[r.name], f.packed_kinds[r.name] = var, r.kind
        return
    atom: Atom = var
    t = tensor_type(var)
    if 0 in t.shape and all(isinstance(d, int) for d in t.shape):
        atom = empty(t)
    dtype = element_dtype(r.code, f"value {r.name!r}")
    if dtype != r.held:
        stem = g.intermediate(f"{g.printable(r.name)}_{dtype}")
        atom = g.emit("cast", (atom,), {"dtype": str(dtype)}, stem, origins[0])
    if r.code in NARROW:
        g.mark(r.name, r.code)
    g.put_in(r.name, atom)
