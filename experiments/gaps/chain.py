"""The steps from a simulation to bit-exact execution, one ingredient at a time, for a scheme."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError
from experiments.systems import number_systems
from experiments.systems.schemes import Scheme

from .between import BIAS, NORMS, PRODUCTS, RESULTS, SUMS, between

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize import Plan

    Made = Callable[[IRModule], IRModule]

SIMULATION, SCALES, INTEGERS, WHOLE = "simulation", "scales", "integers", "all of them"
ORDERS = {
    "forward": (RESULTS, NORMS, BIAS, SUMS, PRODUCTS),
    "reverse": (SUMS, PRODUCTS, BIAS, NORMS, RESULTS),
}
"""In which order ingredients are exchanged. Rounded products mean something where sums are held in
the format, and so come after these in either."""
FUSED = {"sequential": "fma"}
"""Accumulation -> the same with exact products."""


class NothingBetween(ConfigError):
    """A scheme has no simulation beside its execution."""


@dataclass(frozen=True)
class State:
    """A network on the way: the ingredient that was exchanged last, and how it is made of a
    prepared float32 module. `key`: states with the same one are the same network."""

    ingredient: str
    key: tuple[str, ...]
    make: Made


def chains(scheme: Scheme, plan: Plan | None) -> dict[str, Sequence[State]]:
    """Order -> the states from the simulation to the bit-exact network.

    Args:
        plan: of calibrated schemes.

    Raises:
        NothingBetween: the scheme is computed in float32 itself, or is a mixture.
    """
    if scheme.kind == "float32":
        raise NothingBetween("float32 needs no simulation: name a number format")
    if plan is not None:
        return {"forward": _of_plan(plan)}
    if number_systems.mixture(scheme.dtype) is not None:
        raise NothingBetween("a mixture of formats has no one simulation: name one number format")
    return {order: _of_format(scheme, ingredients) for order, ingredients in ORDERS.items()}


def _of_format(scheme: Scheme, ingredients: Sequence[str]) -> Sequence[State]:
    from compiler.types.dtypes import DType
    from datatypes.formats import get
    from datatypes.retype.change_dtype import mode_text

    given = scheme.option("accumulate")
    accumulate = mode_text(str(given)) if given else "sequential"
    fused = FUSED.get(accumulate, accumulate)
    fmt = get(scheme.dtype)
    dtype = DType.parse(f"custom[{fmt.name}]{fmt.nbits}")
    done: tuple[str, ...] = ()

    def state(ingredient: str, exact: tuple[str, ...]) -> State:
        def make(module: IRModule) -> IRModule:
            return between(module, dtype, accumulate, exact, fused)

        return State(ingredient, tuple(sorted(exact)), make)

    states = [state(SIMULATION, ())]
    for ingredient in ingredients:
        if ingredient == PRODUCTS and fused == accumulate:
            continue
        done = (*done, ingredient)
        states.append(state(ingredient, done))
    return states


def _of_plan(plan: Plan) -> Sequence[State]:
    import quantize

    if not plan.config.in_formats:
        return [
            State(SIMULATION, ("simulated",), lambda m: quantize.simulate(m, plan)),
            State(INTEGERS, ("realized",), lambda m: quantize.realize(m, plan)),
        ]
    if not any(plan.native(node) for node in plan.formats):
        raise NothingBetween(
            "with compute='storage' the network is the simulation: numbers of formats are summed "
            "in float32; give compute='native'"
        )
    modes = {n: plan.nodes[n].accumulate for n in plan.formats if plan.native(n)}

    def state(ingredient: str, change: Callable[[str], dict[str, Any]]) -> State:
        nodes = {
            n: replace(p, **change(modes[n])) if n in modes else p for n, p in plan.nodes.items()
        }
        own = replace(plan, nodes=nodes)
        return State(ingredient, (ingredient,), lambda m: quantize.realize(m, own))

    states = [
        state(SIMULATION, lambda mode: {"compute": "storage", "accumulate": "sequential"}),
        state(SCALES, lambda mode: {"compute": "native", "accumulate": "float32"}),
        state(SUMS, lambda mode: {"compute": "native", "accumulate": FUSED.get(mode, mode)}),
    ]
    if any(mode in FUSED for mode in modes.values()):
        states.append(state(PRODUCTS, lambda mode: {"compute": "native", "accumulate": mode}))
    return states
