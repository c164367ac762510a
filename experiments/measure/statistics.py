"""Whether a difference in accuracy is more than chance, given answers to the same questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Float64 = NDArray[np.float64]

Z95 = 1.959963984540054
"""Standard normal quantile of two-sided 95 % intervals."""


@dataclass(frozen=True)
class PairedDifference:
    """How much less often one network is right than another on the same inputs.

    Attributes:
        drop: share of right answers lost, a fraction.
        low, high: 95 % confidence interval of the drop; see `one_sided_loss` for another.
        p_value: how likely so uneven a split of the changed answers is if neither network is
            better; NaN where there is no such question.
        detectable: the smallest drop that so many inputs could have shown.
    """

    drop: float
    low: float
    high: float
    p_value: float
    detectable: float


def paired_difference(reference: NDArray[np.bool_], variant: NDArray[np.bool_]) -> PairedDifference:
    """Compare right answers [n] of a reference with those of a variant, input by input.

    The interval is Bonett and Price's adjusted Wald interval for a difference of paired
    proportions (Psychological Methods 17, 2012), the p-value that of McNemar's exact test.

    Raises:
        InputError: the shapes differ, or there are no answers.
    """
    if reference.shape != variant.shape or reference.ndim != 1 or not reference.size:
        raise InputError(
            f"paired answers need two equal lengths, got {reference.shape} and {variant.shape}"
        )
    n = reference.size
    lost = int(np.sum(reference & ~variant))
    gained = int(np.sum(~reference & variant))
    p, q = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    half = Z95 * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return PairedDifference(
        drop=(lost - gained) / n,
        low=max(-1.0, p - q - half),
        high=min(1.0, p - q + half),
        p_value=mcnemar(lost, gained),
        detectable=_least_significant() / n if n >= _least_significant() else math.nan,
    )


SIGNIFICANT = 0.05
"""Of p-values."""


def _least_significant() -> int:
    """How many answers must be lost, and none gained, for McNemar's exact test to say so: 6."""
    return next(k for k in range(1, 64) if mcnemar(k, 0) < SIGNIFICANT)


def one_sided_loss(kept: NDArray[np.bool_]) -> PairedDifference:
    """How often a network does not give the reference's own answers, [n] of which it has `kept`.

    Nothing can be gained over a reference that is right by definition, so there is no split of
    changed answers to test, and no p-value. The bounds are Clopper and Pearson's for a share
    (Biometrika 26, 1934), one-sided: each of them holds in at least 95 of 100 cases, and the drop
    is never below the lower one's 0. What n inputs detect is a drop that changes at least one of
    their answers in 95 of 100 cases (the rule of three: about 3 / n).

    Raises:
        InputError: there are no answers.
    """
    if kept.ndim != 1 or not kept.size:
        raise InputError(f"answers need a length, got {kept.shape}")
    n, lost = kept.size, int(np.sum(~kept))
    # P(X >= lost) = 5 % at the lower bound, P(X <= lost) = 5 % at the upper one.
    return PairedDifference(
        drop=lost / n,
        low=_share_with_tail(lost - 1, n, 1 - SIGNIFICANT) if lost else 0.0,
        high=_share_with_tail(lost, n, SIGNIFICANT) if lost < n else 1.0,
        p_value=math.nan,
        detectable=_share_with_tail(0, n, SIGNIFICANT),
    )


def _share_with_tail(k: int, n: int, tail: float) -> float:
    """The share p at which at most k of n have a probability of `tail`; 0 <= k < n.

    By bisection: the probability falls as p grows.
    """
    counts = np.arange(k + 1)
    log_ways = np.array([math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
                         for i in range(k + 1)])  # fmt: skip
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        logs = log_ways + counts * math.log(middle) + (n - counts) * math.log1p(-middle)
        if float(np.exp(logs).sum()) > tail:
            low = middle
        else:
            high = middle
    return low


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided exact binomial p-value of `lost` against `gained` changed answers."""
    changed = lost + gained
    tail = sum(math.comb(changed, k) for k in range(min(lost, gained) + 1))
    return float(min(1.0, 2 * tail / 2**changed))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for there being several: below 0.05 for any true null hypothesis among them
    in at most one of twenty families (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    found = [0.0] * len(p_values)
    least = 0.0
    for rank, k in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[k]))
        found[k] = least
    return found


DRAWS = 2000
"""Resamples of a bootstrap, and random exchanges of a permutation test."""

_DRAWN = 2**22
"""Numbers of them that are in memory at a time."""

POWER80 = Z95 + 0.8416212335729143
"""Standard errors of the smallest effect that a test at 5 % finds in 80 of 100 cases."""


def paired_figures(
    value: Callable[[Float64], Float64], reference: Float64, variant: Float64
) -> PairedDifference:
    """Compare a figure that is made of the means of numbers of every input: `drop` is that of the
    reference less that of the variant.

    Args:
        value: means [..., k] -> the figure [...].
        reference, variant: numbers [n, k] of the same n inputs.

    The interval is that of the percentile bootstrap over inputs (Efron and Tibshirani, An
    Introduction to the Bootstrap, 1993), the p-value that of a permutation test which exchanges the
    two networks' results of an input at random; both draw from a fixed seed. What n inputs detect
    is the drop that a two-sided test at 5 % finds in 80 of 100 cases, 2.8 standard errors (Bloom,
    Evaluation Review 19, 1995).

    Raises:
        InputError: the shapes differ, or there are no inputs.
    """
    if reference.shape != variant.shape or reference.ndim != 2 or not reference.size:
        raise InputError(
            f"paired figures need equal tables, got {reference.shape} and {variant.shape}"
        )
    n, random = len(reference), np.random.default_rng(0)
    observed = float(value(reference.mean(axis=0)) - value(variant.mean(axis=0)))
    delta, sums = (variant - reference) / n, (reference.mean(axis=0), variant.mean(axis=0))
    rows = max(1, min(DRAWS, _DRAWN // n))
    drawn = [min(rows, DRAWS - start) for start in range(0, DRAWS, rows)]
    parts, moves = [], []
    for size in drawn:
        counts = random.multinomial(n, np.full(n, 1 / n), size=size) / n
        parts.append(value(counts @ reference) - value(counts @ variant))
    for size in drawn:
        moves.append(random.integers(0, 2, size=(size, n)) @ delta)
    drops, moved = np.concatenate(parts), np.concatenate(moves)
    by_chance = value(sums[0] + moved) - value(sums[1] - moved)
    if math.isnan(observed):
        return PairedDifference(*[math.nan] * 5)
    low, high = np.nanpercentile(drops, [2.5, 97.5])
    # Rounding must not make an exchange that changes nothing look smaller than what was seen.
    as_large = int(np.sum(np.abs(by_chance) >= abs(observed) * (1 - 1e-9)))
    p_value, detectable = (as_large + 1) / (DRAWS + 1), POWER80 * float(np.nanstd(drops))
    return PairedDifference(observed, float(low), float(high), p_value, detectable)


def paired_drop(
    before: Float64,
    after: Float64,
    value: Callable[[Float64], Float64],
    labelled: bool,
) -> PairedDifference:
    """What the statistics [n, k] of float32 and of another network say of the drop of `value`.

    Without labels float32's own answers stand in. It is right by definition then, and exchanging
    the two networks, as a test of significance does, would mean something else.
    """
    shares = before.shape[1] == 1 and np.isin((before, after), (0, 1)).all()
    if not shares:
        found = paired_figures(value, before, after)
        return found if labelled else replace(found, p_value=math.nan)
    if not labelled and (before == 1).all():
        return one_sided_loss(after[:, 0] == 1)
    found = paired_difference(before[:, 0] == 1, after[:, 0] == 1)
    return found if labelled else replace(found, p_value=math.nan)


def ratio_of_sums(values: Float64, counts: Float64) -> tuple[float, float, float]:
    """The sum of values [n] over the sum of counts [n], and the ends of its 95 % interval.

    The n pairs are drawn independently (clusters: sequences), what a count counts inside of them is
    not (tokens). The error is that of a ratio estimator (Cochran, Sampling Techniques, 1977,
    section 6), with Student's quantile of n - 1 degrees of freedom. NaN ends for n = 1.
    """
    n, total = len(values), float(counts.sum())
    if not total:
        return math.nan, math.nan, math.nan
    ratio = float(values.sum()) / total
    if n < 2 or not math.isfinite(ratio):
        return ratio, math.nan, math.nan
    spread = float(np.square(values - ratio * counts).sum())
    half = student95(n - 1) * math.sqrt(n / (n - 1) * spread) / total
    return ratio, ratio - half, ratio + half


def student95(degrees: int) -> float:
    """Student's quantile of two-sided 95 % intervals, by bisection of the finite sums for integer
    degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4); beyond 1000 of them, Z95 with the
    first terms of 26.7.5, which are exact to ten digits there."""
    if degrees > 1000:
        z, v = Z95, float(degrees)
        return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
    low, high = 1.0, 13.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _student_inside(middle, degrees) < 0.95 else (low, middle)
    return low


def _student_inside(t: float, degrees: int) -> float:
    """The probability that Student's t lies between -t and t."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    odd = degrees % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= square * k / (k + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


HOLM = "p_holm"
"""The name of the adjusted p-values, which no file has: they depend on all rows together."""


def tests(rows: pd.DataFrame) -> list[int]:
    """Positions of the rows whose p-value tests something: float32 beside itself does not."""
    pairs = zip(rows["p_value"], rows["dtype"], strict=True)
    return [k for k, (p, dtype) in enumerate(pairs) if not math.isnan(p) and dtype != "float32"]


def adjusted(rows: pd.DataFrame) -> list[float]:
    """The p-value of every row, adjusted by Holm's method for all tests among the rows; NaN where
    there is none."""
    at = tests(rows)
    found = [math.nan] * len(rows)
    for k, p in zip(at, holm([float(rows["p_value"].iloc[k]) for k in at]), strict=True):
        found[k] = p
    return found


def warning(rows: pd.DataFrame) -> str:
    """What a reader of the rows' plain p-values must know; empty for less than two tests."""
    count = len(tests(rows))
    if count < 2:
        return ""
    return (
        f"p-values are each row's own, not corrected for there being {count} of them: if nothing "
        f"differed, about {SIGNIFICANT * count:.2g} would be below {SIGNIFICANT}; {HOLM} is "
        "corrected (Holm's method over all rows)"
    )


def standard_error(value: Callable[[Float64], Float64], statistics: Float64) -> float:
    """The standard error of a figure that is made of the means of numbers of every input [n, k].

    By the jackknife, which leaves out one input at a time (Efron and Tibshirani, chapter 11): of a
    mean it is the usual one, and no draws are in it. NaN of a single input, and where a figure
    without some input has no value.
    """
    n = len(statistics)
    if n < 2 or not np.isfinite(statistics).all():
        return math.nan
    without = np.asarray(value((statistics.sum(axis=0) - statistics) / (n - 1)))
    if not np.isfinite(without).all():
        return math.nan
    return math.sqrt((n - 1) / n * float(np.square(without - without.mean()).sum()))
