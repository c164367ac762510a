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


def _lower(b: PrimBuilder, _: OnDeviceAttrs, x: Buffer) -> Buffer:
    return b.compute("on_device", x.shape, x.dtype, lambda *i: x[i])


@dataclass(frozen=True)
class DeviceCopyAttrs:
    """Attributes of device_copy: where the value is, and where it shall be."""

    src: str
    dst: str


def _lower_copy(b: PrimBuilder, _: DeviceCopyAttrs, x: Buffer) -> Buffer:
    return b.compute("device_copy", x.shape, x.dtype, lambda *i: x[i])


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
        doc="Its operand, which shall be computed on a device: PlanDevices makes functions of what "
        "devices compute. Where a single target computes everything, it is a value like any other.",
    )
)
register_op(
    OpDef(
        "device_copy",
        _infer,
        _reference,
        _lower_copy,
        DeviceCopyAttrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.SAME,
        view=True,
        moves=Moves.SAME,
        gradient=rules.same,
        doc="Its operand, copied from one device to another, of which one is the host. Where a "
        "single target computes everything, it is a value like any other.",
    )
)
