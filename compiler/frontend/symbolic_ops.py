"""ONNX operators on symbolic integer tensors, computed during import.

Exporters write the shape of a Reshape as Shape -> Gather/Slice -> Add/Mul/Div -> Concat. With a
symbolic batch these are not constants, but they are arrays of symbolic dimensions, on which numpy's
functions work element by element. Sizes of a Resize take a detour through floats, where whole
numbers stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.arithmetic.scalar_functions import UNARY
from compiler.frontend.node import Node, converts
from compiler.frontend.values import Imported, Symbolic, symbolic
from compiler.ir.expr import Constant
from compiler.symbolic import Index, imax, imin, product
from compiler.types.dtypes import BOOL, INT64, Array, DType

Evaluate = Callable[..., Any]


@converts("Shape")
def shape(n: Node) -> Imported:
    """Dimensions start..end of the input's type."""
    dims = n.type(0).shape
    return symbolic(list(dims[slice(n.attr("start", 0), n.attr("end"))]), INT64)


def evaluate(n: Node) -> Imported | None:
    """The node's value when its operands are integers, some of them symbolic; else None."""
    if n.op not in _EVALUATE:
        return None
    values = [n.value(i) if n.has(i) else None for i in range(len(n.inputs))]
    if not any(isinstance(v, Symbolic) for v in values):
        return None
    if any(isinstance(v, Constant) and v.data.size > _MOST for v in values):
        return None
    arrays: list[Array | None] = []
    dtype = INT64
    for v in values:
        if v is None:
            arrays.append(None)
        elif isinstance(v, Symbolic):
            arrays.append(v.data)
            dtype = v.dtype
        elif isinstance(v, Constant) and (v.dtype.is_integer or v.dtype == BOOL):
            # Python ints and bools, so that Index arithmetic sees no numpy scalars
            arrays.append(v.data.astype(object))
        elif isinstance(v, Constant) and v.dtype.kind == "float" and _whole(v.data):
            arrays.append(v.data.astype(np.int64).astype(object))
        else:
            return None
    if dtype.kind == "float" and n.op not in _ON_FLOATS:
        return None
    if n.op in _BY_BOUNDS and not all(map(n.graph.is_given, _sizes(arrays))):
        return None
    result = _EVALUATE[n.op](n, *arrays)
    if result is None:
        return None
    if n.op in _COMPARE:
        return Constant(np.asarray(result, dtype=bool), BOOL)
    return symbolic(result, _cast_dtype(n) if n.op == "Cast" else dtype)


def _sizes(arrays: list[Array | None]) -> list[Index]:
    """The symbolic elements of arrays."""
    flat = [x for a in arrays if a is not None for x in a.reshape(-1)]
    return [x for x in flat if isinstance(x, Index)]


def _cast_dtype(n: Node) -> DType:
    from compiler.frontend.element_types import element_dtype

    return element_dtype(n.need("to"), n.where)


def _cast(n: Node, x: Array) -> Any:
    to = _cast_dtype(n)
    return x if to.is_integer or to.kind == "float" else None


def _whole(x: Array) -> bool:
    """Whether floats are small whole numbers, which float32 counts in exactly."""
    return bool(np.all((np.abs(x) < 2**24) & (x == np.floor(x))))


def _product(n: Node, x: Array, *_: Any) -> Any:
    axes = n.ints("axes", 1, 18)
    if x.ndim != 1 or axes not in (None, (0,), (-1,), ()):
        return None
    out = np.empty((1,) if n.attr("keepdims", 1) else (), dtype=object)
    out[...] = product(x)
    return out


def _remainder(a: Any, b: Any) -> Any:
    """a % b of a size; None where C and Python may differ."""
    low_a, low_b = Index.of(a).range()[0], Index.of(b).range()[0]
    if low_a is None or low_b is None or low_a < 0 or low_b < 1:
        return None
    return Index.of(a) % Index.of(b)


def _axes(n: Node, i: int) -> tuple[int, ...] | None:
    return n.ints("axes", i, 13)


def _squeeze(n: Node, x: Array, *_: Any) -> Any:
    return np.squeeze(x, _axes(n, 1))


def _unsqueeze(n: Node, x: Array, *_: Any) -> Any:
    return np.expand_dims(x, _axes(n, 1) or ())


def _slice(n: Node, x: Array, *_: Any) -> Any:
    if n.opset < 10:
        starts, ends, axes, steps = n.need("starts"), n.need("ends"), n.attr("axes"), None
    elif any(n.has(i) and n.constant(i) is None for i in (1, 2, 3, 4)):
        return None
    else:
        starts, ends = n.known(1, "starts").tolist(), n.known(2, "ends").tolist()
        axes = n.known(3, "axes").tolist() if n.has(3) else None
        steps = n.known(4, "steps").tolist() if n.has(4) else None
    index = [slice(None)] * x.ndim
    for k, axis in enumerate(axes if axes is not None else range(len(starts))):
        index[n.front(axis, x.ndim)] = slice(starts[k], ends[k], steps[k] if steps else None)
    return x[tuple(index)]


def _gather(n: Node, x: Array, index: Array) -> Any:
    if any(isinstance(k, Index) for k in index.reshape(-1)):
        return None
    return np.take(x, index.astype(np.int64), axis=n.attr("axis", 0))


def _concat(n: Node, *xs: Array) -> Any:
    return np.concatenate(xs, axis=n.need("axis"))


def _reshape(n: Node, x: Array, *_: Any) -> Any:
    new = [int(d) for d in n.known(1, "shape")]
    if not n.attr("allowzero", 0):
        new = [x.shape[i] if d == 0 else d for i, d in enumerate(new)]
    return x.reshape(new)


def _elementwise(f: Callable[[Any, Any], Any]) -> Evaluate:
    def run(n: Node, *xs: Array) -> Any:
        out = xs[0]
        for x in xs[1:]:
            a, b = np.broadcast_arrays(out, x)
            done = [f(p, q) for p, q in zip(a.reshape(-1), b.reshape(-1), strict=True)]
            if any(r is None for r in done):
                return None
            out = np.empty(a.shape, dtype=object)
            out.reshape(-1)[:] = done
        return out

    return run


def _divide(a: Any, b: Any) -> Any:
    """a / b rounded toward zero; None where that is not a floor division of what we know."""
    low_a, low_b = Index.of(a).range()[0], Index.of(b).range()[0]
    if low_a is None or low_b is None or low_a < 0 or low_b < 1:
        return None
    return Index.of(a) // Index.of(b)


def _decided(
    a: Any, b: Any, negative: bool | None, zero: bool | None, positive: bool | None
) -> Any:
    """The answer of a comparison from the sign of a - b, or None where it is not known yet."""
    lo, hi = (Index.of(a) - b).range()
    if lo == hi == 0:
        return zero
    if lo is not None and lo > 0:
        return positive
    return negative if hi is not None and hi < 0 else None


def _where(n: Node, condition: Array, a: Array, b: Array) -> Any:
    if any(isinstance(c, Index) for c in condition.reshape(-1)):
        return None
    return np.where(condition.astype(bool), a, b)


_COMPARE: dict[str, Evaluate] = {
    "Equal": _elementwise(lambda a, b: _decided(a, b, False, True, False)),
    "Less": _elementwise(lambda a, b: _decided(a, b, True, False, False)),
    "Greater": _elementwise(lambda a, b: _decided(a, b, False, False, True)),
}

_ROUNDINGS = tuple(f.onnx for f in UNARY.values() if f.integral and f.onnx is not None)
"""To a whole number, which a dimension is."""

_EVALUATE: dict[str, Evaluate] = {
    "Identity": lambda n, x: x,
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Add": _elementwise(lambda a, b: Index.of(a) + b),
    "Sub": _elementwise(lambda a, b: Index.of(a) - b),
    "Mul": _elementwise(lambda a, b: Index.of(a) * b),
    "Div": _elementwise(_divide),
    "Max": _elementwise(imax),
    "Min": _elementwise(imin),
    "Mod": _elementwise(_remainder),
    "Neg": lambda n, x: -x,
    "ReduceProd": _product,
    **dict.fromkeys(_ROUNDINGS, lambda n, x: x),
    "Where": _where,
    **_COMPARE,
}

_BY_BOUNDS = {*_COMPARE, "Div", "Max", "Min", "Mod"}
"""What is decided by dimensions being at least 1; one that is found at run time may be 0."""

_MOST = 1 << 12
"""Elements of the largest constant that symbolic ones are computed with."""

_ON_FLOATS = {
    "Identity", "Cast", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Add",
    "Sub", "Mul", *_ROUNDINGS,
}  # fmt: skip
"""What gives whole numbers for whole numbers."""
