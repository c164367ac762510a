"""The network that a plan's decisions are about: rotated and rescaled, in float32."""

from __future__ import annotations

from compiler.ir.expr import IRModule
from quantize.plan.factors import rescaled
from quantize.plan.plan import Plan
from quantize.plan.rotation import rotated


def adapted(module: IRModule, plan: Plan) -> IRModule:
    """A prepared module with the rotation and the factors of a plan in its constants; it computes
    what it did.

    Raises:
        ConfigError: the plan was made for another model.
    """
    if not plan.rotation.empty:
        module = rotated(module, plan.rotation)
    return rescaled(module, plan.factors)
