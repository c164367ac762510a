"""What a picture of a function shows: boxes of operators and fused groups, and what flows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compiler.ir.expr import (
    Atom,
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    If,
    IRModule,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    operands,
)
from compiler.types.data import pattern_text
from compiler.types.tensor_types import TensorType, TupleType, Type, shape_text


@dataclass(frozen=True)
class Box:
    """One box.

    Attributes:
        kind: input, output, operator, group (operators fused into one kernel) or control.
        title: the operator's name, or the value's.
        lines: below it: the group's operators, its weights, the type of the result.
    """

    kind: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Diagram:
    """Boxes, and edges (from, to) by their numbers: every edge leads to a later box."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]


def diagram(mod: IRModule) -> Diagram:
    """The picture of `main`; of an optimized module it shows what is fused and how it is laid out.

    Raises:
        compiler.errors.TypeInferenceError: types have not been inferred.
    """
    f = mod.main
    boxes: list[Box] = []
    edges: dict[tuple[int, int], None] = {}
    makers: dict[Var, tuple[int, ...]] = {}

    def add(box: Box, reads: tuple[Atom, ...]) -> int:
        boxes.append(box)
        number = len(boxes) - 1
        sources = [k for a in reads if isinstance(a, Var) for k in makers.get(a, ())]
        edges.update(((k, number), None) for k in sources)
        return number

    for p in f.params:
        makers[p] = (add(Box("input", p.name, _types(p.type)), ()),)
    for b in f.bindings:
        read = operands(b.value)
        if isinstance(b.value, Tuple | TupleGetItem | Match | Var | Constant):
            found = [k for a in read if isinstance(a, Var) for k in makers.get(a, ())]
            makers[b.var] = tuple(dict.fromkeys(found))
        else:
            makers[b.var] = (add(_box(b.var, b.value), read),)
    for r in f.results:
        title = r.name if isinstance(r, Var) else "constant"
        add(Box("output", title, _types(r.type)), (r,))
    return Diagram(tuple(boxes), tuple(edges))


def _box(var: Var, value: Value) -> Box:
    result = _types(var.type)
    if isinstance(value, If):
        sides = (("then", value.then), ("else", value.otherwise))
        return Box("control", "if", (*(f"{n}: {_count(f)}" for n, f in sides), *result))
    if isinstance(value, Cases):
        forms = zip(value.patterns, value.bodies, strict=True)
        texts = (f"{pattern_text(p, map(str, f.params))}: {_count(f)}" for p, f in forms)
        return Box("control", "match", (*texts, *result))
    if isinstance(value, Construct):
        return Box("operator", value.constructor, result)
    if isinstance(value, Loop):
        return Box("control", "loop", (f"body: {_count(value.body)}", *result))
    if not isinstance(value, Call):
        return Box("operator", type(value).__name__.lower(), result)
    if not isinstance(value.op, Function):
        title = getattr(value.op, "name", str(value.op))
        return Box("operator", title, (*_weights(value.args), *result))
    inner = [b.value for b in value.op.bindings]
    names = [getattr(v.op, "name", "call") for v in inner if isinstance(v, Call)]
    weights = _weights((*value.args, *(a for v in inner for a in operands(v))))
    if len(names) == 1:
        return Box("operator", names[0], (*weights, *result))
    return Box("group", f"{len(names)} fused", (*names, *weights, *result))


def _weights(atoms: Iterable[Atom]) -> tuple[str, ...]:
    """Constants of more than one axis."""
    constants = [a for a in atoms if isinstance(a, Constant) and a.data.ndim > 1]
    return tuple(f"weight {_tensor(a.type)}" for a in constants)


def _count(f: Function) -> str:
    n = len(f.bindings)
    return f"{n} value" if n == 1 else f"{n} values"


def _types(t: Type | None) -> tuple[str, ...]:
    if isinstance(t, TupleType):
        return tuple(line for part in t.fields for line in _types(part))
    return (_tensor(t),) if isinstance(t, TensorType) else (str(t),)


def _tensor(t: TensorType) -> str:
    return f"{t.dtype} {shape_text(t.shape)}"
