"""Which nodes are computed on numbers of a format, why others are not, and what of them has to be
observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.op.opdef import OpDef
from compiler.types.dtypes import FLOAT32
from quantize.config.qconfig import QConfig
from quantize.formats.blocks import block_format
from quantize.formats.element import element
from quantize.plan.format_scales import FormatObserver, powers_of_two, rounded_scale, weight_scales
from quantize.plan.operand_format import FLOAT, OperandFormat

CONV, DENSE, PRODUCT = "nn.conv2d", "nn.dense", "nn.matmul"
OTHERS = "only factors of convolutions, dense layers and matrix products are in number formats"


def format_reason(call: Call, config: QConfig) -> str:
    """Why a call is not computed on numbers of the format that `config` names; empty if it is."""
    op = call.op.name if isinstance(call.op, OpDef) else ""
    if op not in (CONV, DENSE, PRODUCT):
        return OTHERS
    data = operands(call)
    if not all(tensor_type(a).dtype == FLOAT32 for a in data):
        return "its operands are not float32"
    if op == PRODUCT:
        if any(isinstance(a, Constant) for a in data):
            return "an operand is constant"
    elif isinstance(data[0], Constant) or not all(isinstance(a, Constant) for a in call.args[1:]):
        return "its weights are not constant"
    elif not all(np.isfinite(a.data).all() for a in call.args[1:] if isinstance(a, Constant)):
        return "its weights hold NaN or infinity"
    for k, a in enumerate(data):
        axis = block_axis(call, k)
        if block_format(_format(call, k, config)) and not isinstance(
            tensor_type(a).shape[axis], int
        ):
            return f"blocks need a known size of axis {axis} of operand {k}"
    return ""


def operands(call: Call) -> Sequence[Atom]:
    """The two factors of a call that multiplies."""
    return call.args[:2]


def block_axis(call: Call, k: int) -> int:
    """The axis of operand `k` that products are summed along, which blocks run along: input
    channels of convolutions (see `flat_blocks`)."""
    op, rank = str(call.op), tensor_type(call.args[k]).rank
    if op == CONV:
        return 1
    return rank - 2 if op == PRODUCT and k == 1 else rank - 1


def flat_blocks(call: Call, k: int) -> bool:
    """Whether blocks of operand `k` run on through the axes behind `block_axis`: weights that have
    one input channel (depthwise) are summed along the positions of the kernel alone. What they
    multiply keeps blocks along the channels: the windows of its positions overlap."""
    return str(call.op) == CONV and k == 1 and tensor_type(call.args[1]).shape[1] == 1


def _format(call: Call, k: int, config: QConfig) -> str:
    weight = k == 1 and str(call.op) != PRODUCT
    return config.weight_dtype if weight else config.activation_dtype


def observed_values(call: Call, config: QConfig) -> list[str]:
    """Names of the values of which the observers of a node must know the range."""
    names = []
    for k, a in enumerate(operands(call)):
        block, name = block_format(_format(call, k, config)), _format(call, k, config)
        dynamic = name == FLOAT or (block is not None and block.powers)
        if isinstance(a, Var) and not dynamic:
            names.append(a.name)
    return list(dict.fromkeys(names))


def operand_formats(
    call: Call, config: QConfig, seen: Mapping[str, FormatObserver]
) -> tuple[OperandFormat, ...]:
    """The formats of a node's two factors, from what was seen of the values they are."""
    return tuple(_operand(call, k, a, config, seen) for k, a in enumerate(operands(call)))


def _operand(
    call: Call, k: int, a: Atom, config: QConfig, seen: Mapping[str, FormatObserver]
) -> OperandFormat:
    name = _format(call, k, config)
    if name == FLOAT:
        return OperandFormat(FLOAT)
    if (block := block_format(name)) is not None:
        axis, flat = block_axis(call, k), flat_blocks(call, k)
        if block.powers:
            return OperandFormat(
                name, axis=axis, flat=flat, scale_rounding=config.block_scale_rounding
            )
        largest = float(np.abs(a.data).max()) if isinstance(a, Constant) else seen[_name(a)].reach
        unit = rounded_scale(block.unit(largest), powers_of_two(config))
        return OperandFormat(name, (unit,), axis, flat=flat)
    e = element(name)
    if isinstance(a, Constant):
        scales = weight_scales(a.data, e, config)
        group = config.weight_group_size if config.weight_granularity == "group" else 0
        return OperandFormat(name, scales, 0, group)
    return OperandFormat(name, (seen[_name(a)].scale(e),))


def _name(a: Atom) -> str:
    assert isinstance(a, Var)
    return a.name
