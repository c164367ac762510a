"""Annotations: operators that say something of a value and leave it as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.arithmetic.arrays import Arithmetic
from compiler.op.facts import Moves
from compiler.op.gradients import elementwise as rules
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class OnDeviceAttrs:
    """Attributes of annotation.on_device: the device that shall compute the value."""

    device: str


def _infer(_: OnDeviceAttrs, types: Sequence[TensorType]) -> TensorType:
    return types[0]


def _reference(_: Arithmetic, __: OnDeviceAttrs, x: Array) -> Array:
    return x


def _lower(b: PrimBuilder, _: OnDeviceAttrs, x: Buffer) -> Buffer:
    return b.compute("on_device", x.shape, x.dtype, lambda *i: x[i])


register_op(
    OpDef(
        "annotation.on_device",
        _infer,
        _reference,
        _lower,
        OnDeviceAttrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.SAME,
        view=True,
        moves=Moves.SAME,
        gradient=rules.same,
        doc="Its operand, which shall be computed on a device. This compiler has one device; "
        "passes of yours may make something of it.",
    )
)
