"""assume: a tensor of which the program takes two dimensions for equal, or for different. Models
with open sizes need it where parts meet whose sizes agree for some inputs only (the levels of a
feature pyramid), and where an axis would be dropped if it were 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.arithmetic.arrays import Arithmetic
from compiler.errors import TypeInferenceError
from compiler.op.facts import Moves, onnx_node
from compiler.op.gradients import moves as rules
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.symbolic import Dim, dim
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class AssumeAttrs:
    """Attributes of assume: what of the operand's shape is `size` is called `equal` in the result.

    Attributes:
        node: what of the imported model needs it, for messages.
        differs: `size` and `equal` are taken to be different instead, and no size is renamed.
    """

    size: Dim
    equal: Dim
    node: str = ""
    differs: bool = False


def _infer(a: AssumeAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    size, equal = dim(a.size), dim(a.equal)
    if a.differs:
        if size == equal:
            raise TypeInferenceError(f"assume: {size} is always {equal}")
        return x
    if isinstance(size, int) and isinstance(equal, int) and size != equal:
        raise TypeInferenceError(f"assume: {size} and {equal} are not equal")
    return TensorType(tuple(equal if d == size else d for d in x.shape), x.dtype)


def _reference(_: Arithmetic, __: AssumeAttrs, x: Array) -> Array:
    return x


def _lower(b: PrimBuilder, a: AssumeAttrs, x: Buffer) -> Buffer:
    shape = _infer(a, [TensorType.of(x.shape, x.dtype)]).shape
    return b.compute("assume", shape, x.dtype, lambda *i: x[i])


ASSUME = register_op(
    OpDef(
        "assume",
        _infer,
        _reference,
        _lower,
        AssumeAttrs,
        fusion=Fusion.ELEMENTWISE,  # so that it takes part in any layout
        quantized=Quantized.SAME,
        view=True,
        moves=Moves.SAME,
        onnx=onnx_node("Identity"),
        gradient=rules.assume,
        doc="its operand, two sizes being equal (or not): checked when the program is called",
    )
)
