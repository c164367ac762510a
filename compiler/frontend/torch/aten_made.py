"""Converters of operators that make tensors of numbers."""

from __future__ import annotations

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.node import Ref, TorchNode, aten, whole
from compiler.frontend.values import Imported, constant_of
from compiler.ir.expr import Constant, tensor_type
from compiler.symbolic import Dim
from compiler.types.dtypes import INT64

_FILLS = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1,
          "empty": 0, "empty_like": 0, "new_empty": 0}  # fmt: skip


@aten("full", "full_like", "new_full", "scalar_tensor", *_FILLS)
def full(n: TorchNode) -> Results:
    """One number everywhere (0 in memory that nothing was written to)."""
    value = _FILLS.get(n.op.removeprefix("aten."))
    if value is None:
        given = n.arg("s" if n.op == "aten.scalar_tensor" else "fill_value")
        value = given if not isinstance(given, Ref) else None
        if value is None:
            one = n.converted(n.made(n.imported(given)), n.dtype)
            return n.call("broadcast_to", one, shape=_shape(n))
    return n.spelled("ConstantOfShape", whole(_shape(n)), value=_one(constant_of(value, n.dtype)))


def _one(c: Constant) -> Constant:
    return Constant(c.data.reshape((1,)), c.dtype)


def _shape(n: TorchNode) -> tuple[Dim, ...]:
    """The sizes asked for, or those of `self`."""
    if n.op == "aten.scalar_tensor":
        return ()
    return n.sizes("size") if "size" in n.args else tensor_type(n.x()).shape


@aten("fill")
def fill(n: TorchNode) -> Results:
    """One number in the shape of `self`."""
    shape = tensor_type(n.x()).shape
    return n.call("broadcast_to", n.in_dtype("value", n.dtype), shape=shape)


@aten("arange")
def arange(n: TorchNode) -> Results:
    """Numbers from a start up to an end, by steps."""
    ends: list[Imported] = []
    for name, default in (("start", 0), ("end", None), ("step", 1)):
        given = n.arg(name) if n.arg(name) is not None else default
        if isinstance(given, Ref):
            v = n.graph.value(given.name)
            known = isinstance(v, Constant)
            ends.append(n.converted(v, n.dtype) if known and isinstance(v, Constant) else v)
        elif isinstance(given, float) and not n.dtype.is_float and not given.is_integer():
            raise n.unsupported(f"{name}={given} of integers")
        else:
            ends.append(constant_of(given or 0, n.dtype))
    if n.dtype == INT64 or all(isinstance(e, Constant) for e in ends):
        return n.spelled("Range", *ends)
    integral = [
        n.converted(e, INT64) if isinstance(e, Constant) and float(e.data).is_integer() else e
        for e in ends
    ]
    return n.call("cast", n.made(n.spelled_step("Range", *integral)), dtype=str(n.dtype))


@aten("linspace")
def linspace(n: TorchNode) -> Results:
    """So many numbers from a start to an end."""
    values = np.linspace(n.number("start"), n.number("end"), n.number("steps"))
    return constant_of(values, n.dtype)


@aten("eye")
def eye(n: TorchNode) -> Results:
    """Ones on the diagonal."""
    rows = n.number("n")
    columns = n.number("m") if n.args.get("m") is not None else rows
    n.reserve(rows, columns)
    return constant_of(np.eye(rows, columns), n.dtype)


@aten("tril", "triu")
def triangle(n: TorchNode) -> Results:
    """One triangle of the last two axes; zeros in the other."""
    k = Constant.of(np.int64(n.number("diagonal")), INT64)
    return n.spelled("Trilu", n.x(), k, upper=int(n.op == "aten.triu"))
