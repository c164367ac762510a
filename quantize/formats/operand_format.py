"""OperandFormat: how one operand of a node is put in a format, as plain data of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from reprlib import repr as short
from typing import Any

import numpy as np

from compiler.errors import ConfigError, unknown
from compiler.interpret.graph import call_reference
from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.ir.inference import infer_value
from compiler.op.qnn.formats import POWERS, SCALE_ROUNDINGS
from compiler.passes.rewrite import call
from compiler.types.dtypes import FLOAT32, Array
from quantize.formats.blocks import FLOAT, BlockFormat, block_format
from quantize.formats.element import INTEGERS, element, unsigned_bits
from quantize.formats.scale_format import block_attrs

SCALE_DTYPES = (FLOAT, "float16", "bfloat16", "float8_e8m0fnu", "float8_e4m3fn")
"""Usual formats of scales; any registered one will do."""


@dataclass(frozen=True)
class OperandFormat:
    """A format and its scales.

    Attributes:
        format: name of a scalar format, of integers (`int4`, or `uint4` with a zero point) or of a
            block format; `float32`: the operand is not rounded.
        scales: of a scalar format one for all, or one for each position of `axis` or, with `group`,
            for each group of weights, channel by channel. Of a block format, or with `block`, the
            one scale of the whole tensor (1 where it has none).
        axis: that of several scales, or the one that blocks run along.
        flat: whether blocks of weights run along this axis and all behind it, in row-major order.
        scale_rounding: of blocks with powers of two as scales, one of
            `compiler.op.qnn.formats.SCALE_ROUNDINGS`.
        group: consecutive weights of an output channel (axis 0) that share a scale; 0: no groups.
        scale_dtype: format of the scales, of which `scales` holds the values.
        zero_point: of `uint<N>`: the integer that stands for 0.
        rounding: of weights, by how many numbers of the format those chosen by data differ from the
            nearest, as `quantize.formats.packing` writes it; empty if they do not.
        scale_steps: the same of the blocks' scales, in the order of the blocks.
        axes: in place of `axis`: those of scales that differ along several, in row-major order.
        token: whether every row along `axis` has a scale (and a zero point) found when it runs;
            `scales` has the one of the whole tensor that these are relative to.
    """

    format: str
    scales: tuple[float, ...] = (1.0,)
    axis: int = 0
    group: int = 0
    flat: bool = False
    scale_rounding: str = "floor"
    scale_dtype: str = FLOAT
    zero_point: int = 0
    rounding: str = ""
    scale_steps: str = ""
    axes: tuple[int, ...] = ()
    token: bool = False

    @property
    def chosen(self) -> bool:
        """Whether data chose other numbers, or other scales, than the nearest."""
        return bool(self.rounding or self.scale_steps)

    def __str__(self) -> str:
        n = len(self.scales)
        scales = f"scale {self.scales[0]:.6g}" if n == 1 else f"{n} scales"
        scales = "scales of tokens" if self.token else scales
        scales += "" if self.scale_dtype == FLOAT else f" in {self.scale_dtype}"
        scales += f", zero point {self.zero_point}" if self.zero_point else ""
        chosen = ", rounded by data" if self.chosen else ""
        if self.scale_rounding != "floor":
            tokens = " of tokens" if self.token else ""
            return f"{self.format}, scales{tokens} by {self.scale_rounding}{chosen}"
        stays = self.format == FLOAT or (self.scales == (1.0,) and self.blocks)
        return (self.format if stays else f"{self.format}, {scales}") + chosen

    @property
    def blocks(self) -> BlockFormat | None:
        """The blocks that have scales of their own, if there are any."""
        return block_format(self.format)

    @property
    def integers(self) -> bool:
        """Whether its numbers are integers times scales."""
        return bool(INTEGERS.fullmatch(self.format) or unsigned_bits(self.format))

    def scale_array(self, shape: tuple[int, ...]) -> Array:
        """float32 scales of a scalar format that broadcast to an operand of a known shape."""
        scales = np.asarray(self.scales, np.float32)
        if self.group:
            rows = scales.reshape(shape[0], -1).repeat(self.group, axis=1)
            return rows[:, : int(np.prod(shape[1:]))].reshape(shape)
        if len(scales) == 1:
            scales = scales[0]
        elif len(self.axes) > 1:
            scales = scales.reshape([n if k in self.axes else 1 for k, n in enumerate(shape)])
        return np.asarray(scales)

    @property
    def along(self) -> int:
        """The axis of a vector of scales."""
        return self.axes[0] if self.axes else self.axis


def row_scales_call(a: Atom, f: OperandFormat) -> Call:
    """The call that finds the scales of tokens."""
    bits = unsigned_bits(f.format)
    block = BlockFormat("", f"int{bits}" if bits else f.format, f.scale_dtype)
    attrs = block_attrs(block, f.scales[0], f.scale_rounding)
    if block.powers:
        attrs |= {"scale_dtype": POWERS, "scale_low": 2.0**-127, "scale_high": 2.0**127}
    if bits:
        attrs |= {"levels": (1 << bits) - 1, **({"step": 1.0} if "step" in attrs else {})}
    return call("qnn.row_scales", a, axis=f.axis, **{"top": block.elements.target, **attrs})


def zeros_call(a: Atom, scales: Atom, f: OperandFormat) -> Call:
    """The call that finds the zero points of tokens, from their scales."""
    levels = (1 << unsigned_bits(f.format)) - 1
    return call("qnn.row_zeros", a, scales, axis=f.axis, levels=levels)


def rounding_call(a: Atom, f: OperandFormat) -> Call:
    """The call that rounds a float32 operand to a format; constants may have groups, but flat ones
    must be given in the shape that `flattened` makes. Tokens have calls of their own."""
    block = f.blocks
    if block is not None:
        e = block.elements
        return call(
            "qnn.simulated_blocks", a, dtype=str(e.dtype), low=e.low, high=e.high, axis=f.axis,
            block=block.block, **block_attrs(block, f.scales[0], f.scale_rounding),
        )  # fmt: skip
    sizes = tensor_type(a).shape
    known = tuple(n if isinstance(n, int) else 1 for n in sizes)
    scales = f.scale_array(known)
    if bits := unsigned_bits(f.format):
        return call(
            "qnn.simulated_quantize", a, Constant.of(scales, FLOAT32), axis=f.axis,
            zero_point=f.zero_point, out_dtype="uint8", qmin=0, qmax=(1 << bits) - 1,
        )  # fmt: skip
    e = element(f.format)
    return call(
        "qnn.simulated_cast", a, Constant.of(scales, FLOAT32), dtype=str(e.dtype), low=e.low,
        high=e.high, axis=f.along,
    )  # fmt: skip


def rounded_array(x: Array, f: OperandFormat) -> Array:
    """What `rounding_call` makes of a float32 array."""
    value = rounding_call(Constant.of(x.reshape(flattened(x.shape, f)), FLOAT32), f)
    arrays = [a.data for a in value.args if isinstance(a, Constant)]
    rounded = call_reference(value, arrays, Var("rounded", infer_value(value)), {})
    return np.asarray(rounded).reshape(x.shape)


def flattened(shape: tuple[int, ...], f: OperandFormat) -> tuple[int, ...]:
    """The shape in which the blocks of an operand of this shape run along one axis."""
    if not f.flat:
        return shape
    lead = f.axis % len(shape)
    return (*shape[:lead], math.prod(shape[lead:]))


# ---- as data of a plan ---------------------------------------------------------------------------
def operand_dict(f: OperandFormat) -> dict[str, Any]:
    """The fields that are not their defaults, as JSON-compatible data."""
    given = {**asdict(f), "scales": list(f.scales), "axes": list(f.axes)}
    defaults = {f.name: f.default for f in fields(OperandFormat)} | {"scales": [1.0], "axes": []}
    return {k: v for k, v in given.items() if k not in defaults or v != defaults[k]}


def operands_of(node: str, data: Any) -> tuple[OperandFormat, ...]:
    """The operands that lists of `operand_dict` describe.

    Raises:
        ConfigError: unknown entries or formats, or values that do not fit.
    """
    if not isinstance(data, list) or not data:
        raise ConfigError(f"formats of {node!r}: expected a list with an object for each operand")
    return tuple(_operand(f"formats of {node!r}", d) for d in data)


def _operand(what: str, data: Any) -> OperandFormat:
    known = [f.name for f in fields(OperandFormat)]
    if not isinstance(data, Mapping) or not isinstance(data.get("format"), str):
        raise ConfigError(f"{what}: an operand needs the name of its format, not {short(data)}")
    for k in data:
        if k not in known:
            raise ConfigError(f"{what}: {unknown('entry', str(k), known)}")
    scales = data.get("scales", [1.0])
    if not isinstance(scales, list) or not scales or not all(map(_is_scale, scales)):
        raise ConfigError(f"{what}: scales must be positive numbers that float32 holds exactly")
    axis, group = data.get("axis", 0), data.get("group", 0)
    if type(axis) is not int or type(group) is not int or group < 0:
        raise ConfigError(f"{what}: axis and group must be integers")
    name, bits = data["format"], unsigned_bits(data["format"])
    block = None if name == FLOAT else block_format(name)
    if name != FLOAT and block is None and not bits:
        element(name)
    zero = data.get("zero_point", 0)
    if type(zero) is not int or not 0 <= zero < 1 << bits:
        raise ConfigError(f"{what}: zero_point must be an integer that {name} has, not {zero!r}")
    scale_dtype = data.get("scale_dtype", FLOAT)
    check_scale_dtype(what, scale_dtype)
    flat, rounding = data.get("flat", False), data.get("scale_rounding", "floor")
    if not isinstance(flat, bool) or (flat and block is None):
        raise ConfigError(f"{what}: flat must be true or false, and false but for block formats")
    if rounding not in SCALE_ROUNDINGS:
        raise ConfigError(f"{what}: {unknown('scale_rounding', str(rounding), SCALE_ROUNDINGS)}")
    powers = block.powers if block is not None else BlockFormat("", "int8", scale_dtype).powers
    if rounding != "floor" and not powers:
        raise ConfigError(
            f"{what}: scale_rounding {rounding!r} is for blocks whose scales are powers of two"
        )
    axes, token = data.get("axes", []), data.get("token", False)
    if not isinstance(axes, list) or any(type(k) is not int or k < 0 for k in axes):
        raise ConfigError(f"{what}: axes must be a list of positions, not {short(axes)}")
    if not isinstance(token, bool) or (token and (block is not None or group or name == FLOAT)):
        raise ConfigError(
            f"{what}: token must be true or false, and false for block formats, groups and float32"
        )
    values = tuple(map(float, scales))
    chosen, steps = data.get("rounding", ""), data.get("scale_steps", "")
    if not isinstance(chosen, str) or not isinstance(steps, str) or (steps and block is None):
        raise ConfigError(
            f"{what}: rounding and scale_steps must be text, and scale_steps is for block formats"
        )
    return OperandFormat(
        name,
        values,
        axis,
        group,
        flat,
        rounding,
        scale_dtype,
        zero,
        chosen,
        steps,
        tuple(axes),
        token,
    )


def check_scale_dtype(what: str, name: Any) -> None:
    """Check a name of a format of scales.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{what}: scale_dtype must be the name of a format, not {short(name)}")
    if name == FLOAT:
        return
    try:
        element(name)
    except ConfigError as e:
        raise ConfigError(
            f"{what}: scale_dtype: {e}; usual ones are {', '.join(SCALE_DTYPES)}"
        ) from None


def _is_scale(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e38:
        return False
    return float(np.float32(value)) == value
