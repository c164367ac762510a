"""What a network costs by the widths that a plan gives its numbers, of which the realized module
shows only the types that hold them: four bits are held by int8, numbers of a format by float32.

Factors count in the widths that they are kept and fetched in, also where kernels widen them before
they multiply: weights of four bits in front of float32 data are "float32 x int4".
"""

from __future__ import annotations

import math

from compiler.ir.expr import Atom, Call, Constant, IRModule, tensor_type
from compiler.transform.analysis import Kept, ModelCost, cost
from quantize.annotation.annotate import prepared
from quantize.formats.blocks import BlockFormat
from quantize.formats.operand_format import OperandFormat
from quantize.formats.storage import bits_with_scales, format_bits, operand_bits, operand_scales
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan
from quantize.realization.realize import Realizer


def plan_cost(mod: IRModule, plan: Plan) -> ModelCost:
    """The cost of a module that a plan has been applied to.

    Args:
        mod: the float32 module, prepared or not.

    Raises:
        ConfigError: as `quantize.realize`.
    """
    return realized_cost(mod, plan)[0]


def realized_cost(mod: IRModule, plan: Plan) -> tuple[ModelCost, IRModule]:
    """The cost of a module that a plan has been applied to, and what `quantize.realize` makes of it
    then.

    Raises:
        ConfigError: as `quantize.realize`.
    """
    realizer = Realizer(mod, plan, boundary=True)
    realized = realizer.run()
    kept: dict[Atom, Kept] = {}
    for x in realizer.grid.values():
        kept[x.atom] = _integers(x.params)
    for a, params in realizer.integers_of.items():
        kept[a] = _integers(params)
    for (_, f), a in realizer.in_formats.rounded.items():
        kept[a] = _numbers(a, f)
    products = realizer.in_formats.integers
    for a, f in products.held.items():
        kept[a] = Kept(f.format, format_bits(f.format))
    for a, f in products.zeros.items():
        kept[a] = Kept(f.format, format_bits(f.format))
    for a, f in products.scales.items():
        one = BlockFormat("", "int8", f.scale_dtype)
        unit = 32 if one.has_unit and isinstance(a, Constant) else 0
        kept[a] = Kept(f.scale_dtype, one.scale_bits, unit)
    return cost(realized, kept), realized


def _integers(params: ValueParams | WeightParams) -> Kept:
    """Integers of so many bits; of weights, with their zero points."""
    if isinstance(params, WeightParams):
        return Kept(f"int{params.bits}", params.bits, params.bits * len(params.zero_points))
    sign = "u" if params.dtype == "uint8" else ""
    return Kept(f"{sign}int{params.bits}", params.bits)


def _numbers(a: Atom, f: OperandFormat) -> Kept:
    """Numbers of a format; with their scales, where these are constants or follow from the data.

    A value's scale that is known beforehand is an operand, or an attribute, of the call that rounds
    it.
    """
    shape = tuple(n if isinstance(n, int) else 1 for n in tensor_type(a).shape)
    width = format_bits(f.format)
    more = operand_bits(shape, f) - width * math.prod(shape)
    if not isinstance(a, Constant):
        block = f.blocks
        if f.token:
            more -= 32 if BlockFormat("", "int8", f.scale_dtype).has_unit else 0
        elif block is None:
            more -= operand_scales(f)
        elif block.has_unit:
            more -= 32
    return Kept(f.format, width, more)


def mean_weight_bits(mod: IRModule, plan: Plan) -> float:
    """Bits of a weight on average, over the weights that are integers or numbers of formats: of
    blocks with their share of a scale. 0 if there are none.

    Args:
        mod: the float32 module, prepared or not.
    """
    total, held = 0, 0.0
    for b in prepared(mod).main.bindings:
        bits = _weight_bits(plan, b.var.name)
        for weight in b.value.args[1:2] if isinstance(b.value, Call) else ():
            if bits and isinstance(weight, Constant):
                total, held = total + weight.data.size, held + weight.data.size * bits
    return held / total if total else 0.0


def _weight_bits(plan: Plan, node: str) -> float:
    """Bits of a node's weights; 0 if the plan says nothing of them."""
    if node in plan.weights:
        return plan.weights[node].bits
    formats = plan.formats.get(node, ())
    return bits_with_scales(formats[1].format) if len(formats) > 1 else 0
