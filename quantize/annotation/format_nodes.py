"""Which nodes are computed on numbers of a format, why others are not, and what of them has to be
observed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.types.dtypes import FLOAT32
from quantize.config.qconfig import QConfig
from quantize.formats.blocks import FLOAT, block_format
from quantize.plan.call_facts import contraction, contraction_of

OTHERS = "only factors of convolutions, dense layers and matrix products are in number formats"


def format_reason(call: Call, config: QConfig) -> str:
    """Why a call is not computed on numbers of the format that `config` names; empty if it is."""
    axes = contraction_of(call)
    if axes is None:
        return OTHERS
    data = operands(call)
    if not all(tensor_type(a).dtype == FLOAT32 for a in data):
        return "its operands are not float32"
    if not axes.by_rows:
        if any(isinstance(a, Constant) for a in data):
            return "an operand is constant"
    elif isinstance(data[0], Constant) or not all(isinstance(a, Constant) for a in call.args[1:]):
        return "its weights are not constant"
    elif not all(np.isfinite(a.data).all() for a in call.args[1:] if isinstance(a, Constant)):
        return "its weights hold NaN or infinity"
    for k, a in enumerate(data):
        axis = block_axis(call, k)
        if block_format(format_of(call, k, config)) and not isinstance(
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
    axes = contraction(call)
    axis = axes.weights if k == 1 else axes.data
    return axis if axis >= 0 else tensor_type(call.args[k]).rank + axis


def flat_blocks(call: Call, k: int) -> bool:
    """Whether blocks of operand `k` run on through the axes behind `block_axis`: weights that have
    one input channel (depthwise) are summed along the positions of the kernel alone. What they
    multiply keeps blocks along the channels: the windows of its positions overlap."""
    axes = contraction(call)
    return bool(axes.kernel) and k == 1 and tensor_type(call.args[1]).shape[axes.weights] == 1


def format_of(call: Call, k: int, config: QConfig) -> str:
    """The format that a configuration names for operand `k`."""
    weight = k == 1 and contraction(call).by_rows
    return config.weight_format if weight else config.activation_format


def observed_values(call: Call, config: QConfig) -> list[str]:
    """Names of the values of which the observers of a node must know the range."""
    names = []
    for k, a in enumerate(operands(call)):
        block, name = block_format(format_of(call, k, config)), format_of(call, k, config)
        dynamic = name == FLOAT or (block is not None and block.powers)
        if isinstance(a, Var) and not dynamic:
            names.append(a.name)
    return list(dict.fromkeys(names))
