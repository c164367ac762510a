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


def _infer(_: object, types: Sequence[TensorType]) -> TensorType:
    return types[0]


def _reference(_: Arithmetic, __: object, x: Array) -> Array:
    return x


def _lower(b: PrimBuilder, _: object, x: Buffer) -> Buffer:
    return b.compute("same", x.shape, x.dtype, lambda *i: x[i])


@dataclass(frozen=True)
class DeviceCopyAttrs:
    """Attributes of device_copy: where the value is, and where it shall be."""

    src: str
    dst: str


def _said(name: str, attrs: type, doc: str) -> OpDef:
    return OpDef(
        name,
        _infer,
        _reference,
        _lower,
        attrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.SAME,
        view=True,
        moves=Moves.SAME,
        gradient=rules.same,
        doc=f"{doc} Where a single target computes everything, it is a value like any other.",
    )


register_op(
    _said(
        "annotation.on_device",
        OnDeviceAttrs,
        "Its operand, which shall be computed on a device: PlanDevices makes functions of what "
        "devices compute.",
    )
)
register_op(
    _said(
        "device_copy",
        DeviceCopyAttrs,
        "Its operand, copied from one device to another, of which one is the host.",
    )
)
