"""Which nodes are computed on numbers of a format, why others are not, and what of them has to be
observed."""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Call, Constant, Var, tensor_type
from compiler.types.dtypes import FLOAT32
from quantize.annotation.sites import Roles
from quantize.config.qconfig import QConfig
from quantize.config.sites import ATTENTION, OWN
from quantize.formats.blocks import FLOAT, BlockFormat, block_format
from quantize.plan.call_facts import block_axis, contraction_of, operands

EMPTY = "its weights are empty"
OTHERS = "only factors of convolutions, dense layers and matrix products are in number formats"


def format_reason(call: Call, config: QConfig, roles: Roles) -> str:
    """Why a call is not computed on numbers of the formats that `config` names for the sites of its
    factors; empty if it is."""
    if contraction_of(call) is None:
        return _own_reason(call, config, roles[0])
    if roles[1] == "logit" and config.logit_dtype == FLOAT:
        return "logit_dtype='float32' leaves it in float"
    if reason := factors_reason(call):
        return reason
    chosen = [config.site(role) for role in roles]
    for k, (a, site, role) in enumerate(zip(operands(call), chosen, roles, strict=True)):
        shape, axis = tensor_type(a).shape, block_axis(call, k)
        if block_format(site.format) and not isinstance(shape[axis], int):
            return f"blocks need a known size of axis {axis} of operand {k}"
        if site.format == FLOAT or role in ("weight", "logit"):
            continue
        if site.granularity == "token" and len(shape) < 2:
            return f"operand {k} is a vector, which has no tokens"
        if site.granularity == "head" and len(shape) < 3:
            return f"operand {k} has no axis of heads"
        for axis in static_axes(call, k, role, site.granularity):
            if not isinstance(shape[axis], int):
                return f"scales of each {site.granularity} need a known size of axis {axis} of " + (
                    f"operand {k}"
                )
    return ""


def _own_reason(call: Call, config: QConfig, role: str) -> str:
    """Why what is no product is not in the format of its site."""
    if config.site(role).format == FLOAT:
        return OTHERS
    if role == "embedding":
        table = call.args[0]
        assert isinstance(table, Constant)
        if not table.data.size:
            return "its table is empty"
        return "" if np.isfinite(table.data).all() else "its table holds NaN or infinity"
    fits = all(tensor_type(a).dtype == FLOAT32 for a in call.args)
    return "" if fits else "its operands are not float32"


def factors_reason(call: Call) -> str:
    """Why a call has no factors that could be in formats; empty if it has."""
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
    elif 0 in tensor_type(data[1]).shape:
        return EMPTY
    elif not all(np.isfinite(a.data).all() for a in call.args[1:] if isinstance(a, Constant)):
        return "its weights hold NaN or infinity"
    return ""


def static_axes(call: Call, k: int, role: str, granularity: str) -> tuple[int, ...]:
    """The axes of operand `k` that scales found by calibration differ along: of a channel of keys
    and values, also that of the heads."""
    rank = tensor_type(operands(call)[k]).rank
    heads = (rank - 3,) if role in ATTENTION and rank > 3 else ()
    if granularity == "head":
        return (rank - 3,)
    if granularity == "channel":
        return (*heads, token_axis(call, k, role))
    return ()


def token_axis(call: Call, k: int, role: str) -> int:
    """The axis of operand `k` that the numbers of a token lie along: what products are summed
    along, but of values that of the channels, on the other side."""
    axis, rank = block_axis(call, k), tensor_type(operands(call)[k]).rank
    if role != "value" or rank < 2:
        return axis
    return rank - 1 if axis == rank - 2 else rank - 2


def flat_blocks(call: Call, k: int) -> bool:
    """Whether blocks of operand `k` run on through the axes behind `block_axis`: weights that have
    one input channel (depthwise) are summed along the positions of the kernel alone. What they
    multiply keeps blocks along the channels: the windows of its positions overlap."""
    axes = contraction_of(call)
    return (
        axes is not None
        and bool(axes.kernel)
        and k == 1
        and tensor_type(call.args[1]).shape[axes.weights] == 1
    )


def observed_values(call: Call, config: QConfig, roles: Roles) -> list[int]:
    """The operands of which the observers of a node must know the range."""
    return [
        k
        for k, (a, role) in enumerate(zip(operands(call), roles, strict=True))
        if isinstance(a, Var) and needs_range(config, role)
    ]


def needs_range(config: QConfig, role: str) -> bool:
    """Whether the scales of a site follow from calibration: all do but those that are found when it
    runs, and are not relative to one of the tensor."""
    site = config.site(role)
    if site.format == FLOAT or role in OWN:
        return False
    if (block := block_format(site.format)) is not None:
        return block.has_unit
    return (
        site.granularity != "token"
        or BlockFormat("", "int8", config.of_values.scale_dtype).has_unit
    )
