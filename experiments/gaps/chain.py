"""The steps from a simulation to bit-exact execution, one ingredient at a time, for a scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compiler.errors import ConfigError
from experiments.systems import number_systems, pipeline
from experiments.systems.schemes import Scheme

from .between import BIAS, NORMS, PRODUCTS, RESULTS, SUMS, between
from .scaled import on_float32, with_sums

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
        return _of_plan(plan)
    if number_systems.mixture(scheme.dtype) is not None:
        raise NothingBetween("a mixture of formats has no one simulation: name one number format")
    if scheme.dtype == "float32":
        return {"forward": _of_sums(scheme)}
    return {order: _of_format(scheme, ingredients) for order, ingredients in ORDERS.items()}


def networks(scheme: Scheme) -> int:
    """How many networks the chains have, float32's included, before anything is calibrated; 0 where
    nothing lies between."""
    if scheme.calibrated:
        config = number_systems.qconfig(dict(scheme.options))
        if not config.in_formats:
            return 3
        if config.compute != "native":
            return 0
        return 7 if config.accumulate in FUSED else 5
    try:
        states = chains(scheme, None)
    except NothingBetween:
        return 0
    return 1 + len({state.key for chain in states.values() for state in chain})


def _of_format(scheme: Scheme, ingredients: Sequence[str]) -> Sequence[State]:
    from compiler.types.dtypes import DType, span
    from datatypes.formats import get
    from datatypes.retype.change_dtype import mode_text

    given = scheme.option("accumulate")
    accumulate = mode_text(str(given)) if given else "sequential"
    fused = FUSED.get(accumulate, accumulate)
    fmt = get(scheme.dtype)
    dtype = DType.parse(f"custom[{fmt.name}]{fmt.nbits}")
    if span(dtype) is None:  # of tables, or logarithms: there are no exact products to add
        fused = accumulate
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


def _of_sums(scheme: Scheme) -> Sequence[State]:
    """Of float32 but for its sums: float32 itself, and all sums in the accumulator."""
    return [
        State(SIMULATION, ("float32",), lambda m: m),
        State(SUMS, ("sums",), lambda m: pipeline.retype(m, scheme)),
    ]


def _of_plan(plan: Plan) -> dict[str, Sequence[State]]:
    import quantize

    if not plan.config.in_formats:
        return {
            "forward": [
                State(SIMULATION, ("simulated",), lambda m: quantize.simulate(m, plan)),
                State(INTEGERS, ("realized",), lambda m: quantize.realize(m, plan)),
            ]
        }
    modes = {n: plan.nodes[n].accumulate for n in plan.formats if plan.native(n)}
    if not modes:
        raise NothingBetween(
            "with compute='storage' the network is the simulation: numbers of formats are summed "
            "in float32; give compute='native'"
        )
    fused = {n: FUSED.get(mode, mode) for n, mode in modes.items()}

    def stored(module: IRModule, sums: Mapping[str, str]) -> IRModule:
        """Factors are multiplied by their scales, then added up in float32, or as `sums` says."""
        nodes = {n: {"compute": "storage", "accumulate": "sequential"} for n in modes}
        own = {n: on_float32(mode, plan.formats[n][0].format) for n, mode in sums.items()}
        return with_sums(quantize.realize(module, _changed(plan, nodes)), own)

    def native(module: IRModule, sums: Mapping[str, str]) -> IRModule:
        """Sums are multiplied by the scales of their factors."""
        nodes = {n: {"compute": "native", "accumulate": mode} for n, mode in sums.items()}
        return quantize.realize(module, _changed(plan, nodes))

    wide = dict.fromkeys(modes, "float32")
    simulation = State(SIMULATION, ("simulated",), lambda m: stored(m, {}))
    forward = [
        simulation,
        State(SCALES, ("scales",), lambda m: native(m, wide)),
        State(SUMS, ("realized", "fused"), lambda m: native(m, fused)),
    ]
    reverse = [simulation, State(SUMS, ("sums",), lambda m: stored(m, fused))]
    if fused == modes:
        reverse.append(State(SCALES, ("realized", "fused"), lambda m: native(m, fused)))
    else:
        whole = State(PRODUCTS, ("realized",), lambda m: native(m, modes))
        forward.append(whole)
        reverse.append(State(PRODUCTS, ("sums", "products"), lambda m: stored(m, modes)))
        reverse.append(replace(whole, ingredient=SCALES))
    return {"forward": forward, "reverse": reverse}


def _changed(plan: Plan, nodes: Mapping[str, Mapping[str, Any]]) -> Plan:
    """The plan with other fields of some nodes."""
    return replace(plan, nodes={n: replace(p, **nodes.get(n, {})) for n, p in plan.nodes.items()})
