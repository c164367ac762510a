"""One candidate for every layer, as cheap as can be: an integer program.

A multiple-choice knapsack: minimize the sum of costs, one candidate a layer, with the sum of noises
at most a budget. The errors of layers add up nearly independently, so noise is what is budgeted
(Wu et al., Integer Quantization for Deep Learning Inference, 2020, section 5.2). Solved to proven
optimality by HiGHS (Huangfu and Hall, Parallelizing the dual revised simplex method, 2018).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError

Array = NDArray[np.float64]
NOTHING = 1e-8
"""A share of the budget that does not count, however many layers have it."""
Chosen = tuple[int, ...]
"""The candidate of every layer."""


def solver() -> Any:
    """The package that solves integer programs.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import highspy
    except ImportError as error:
        raise UnsupportedError(
            "searching formats solves integer programs: pip install 'dtypelab[search]'"
        ) from error
    return highspy


def cheapest(costs: Array, noises: Array, budget: float) -> Chosen | None:
    """The cheapest choice with at most so much noise, ties by less noise; None if there is none.

    Args:
        costs, noises: [layers, candidates], at least 0; a candidate that a layer cannot have has
            infinite noise.
        budget: greater than 0.
    """
    if not len(costs):
        return ()
    highs = solver().Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("mip_abs_gap", 0.0)
    allowed = noises <= budget
    if not allowed.any(axis=1).all():
        return None
    # The solver's tolerances are for numbers near 1.
    costs = costs / (costs.max() or 1.0)
    # Of equal costs the one with less noise, by a share too small to change any other choice.
    unit = costs[costs > 0].min(initial=np.inf)
    tie = (1e-6 * unit / len(costs) if np.isfinite(unit) else 1.0) / budget
    total: Any = 0
    for layer in range(len(costs)):
        one = 0
        for k in np.flatnonzero(allowed[layer]):
            x = highs.addBinary(obj=float(costs[layer, k] + tie * noises[layer, k]))
            one = one + x
            # What is nothing beside the budget the solver does not take as a number.
            if (share := float(noises[layer, k] / budget)) > NOTHING:
                total = total + x * share
        highs.addConstr(one == 1)
    if not isinstance(total, int):
        highs.addConstr(total <= 1)
    highs.run()
    if str(highs.getModelStatus()) != str(solver().HighsModelStatus.kOptimal):
        return None
    values = np.asarray(highs.getSolution().col_value)
    found, start = [], 0
    for layer in range(len(costs)):
        places = np.flatnonzero(allowed[layer])
        part = values[start : start + len(places)]
        found.append(int(places[part.argmax()]))
        start += len(places)
    return tuple(found)


def of(table: Array, chosen: Chosen) -> float:
    """The sum of a table of [layers, candidates] over a choice."""
    return float(table[np.arange(len(table)), list(chosen)].sum())
