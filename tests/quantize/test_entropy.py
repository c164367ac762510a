"""The search by relative entropy gives what its definition says, threshold by threshold."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.types.dtypes import Array
from quantize.calibration.observers.entropy import UNSEEN, entropies, least_entropy


def entropy(counts: Array, levels: int, kept: int) -> float:
    """As Migacz describes it: both distributions, bin by bin."""
    p, q = counts[:kept].copy(), np.zeros(kept)
    for k in range(levels):
        bins = slice(k * kept // levels, (k + 1) * kept // levels)
        live = p[bins] > 0
        q[bins][live] = p[bins].sum() / max(live.sum(), 1)
    p[-1] += counts[kept:].sum()
    if not q.any():
        return np.inf
    p, q = p / p.sum(), q / q.sum()
    q[(q == 0) & (p > 0)] = UNSEEN
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


@settings(max_examples=200)
@given(
    counts=st.lists(st.one_of(st.just(0.0), st.floats(0.1, 1e6)), min_size=8, max_size=70),
    levels=st.integers(2, 8),
)
def test_all_thresholds_at_once_are_as_defined(counts: list[float], levels: int) -> None:
    given_counts = np.array(counts)
    given_counts[0] += 1
    kept = np.arange(levels, len(counts) + 1)
    found = entropies(given_counts, levels, kept)
    expected = [entropy(given_counts, levels, int(k)) for k in kept]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    best = least_entropy(given_counts, levels, 0)
    assert found[best - levels] == found.min()


def test_as_many_bins_are_kept_as_must_be() -> None:
    counts = np.exp(-np.arange(600) / 20.0)
    free = least_entropy(counts, 16, 0)
    assert 16 < free < 400
    assert least_entropy(counts, 16, 450) >= 450
    assert least_entropy(counts, 16, 601) == 600
    assert least_entropy(np.zeros(100), 16, 0) == 100
