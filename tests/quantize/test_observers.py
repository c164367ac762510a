"""Observers: what each remembers, against numpy on all the data at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import InputError
from compiler.types.dtypes import Array
from quantize import QConfig
from quantize.calibration.observers import (
    BINS,
    Histogram,
    KullbackLeibler,
    Levels,
    MeanSigma,
    MinMax,
    MovingAverage,
    Observer,
    Percentile,
    PerChannel,
    PowerOfTwo,
    SquaredError,
    observer,
)
from quantize.plan.params import value_params

KINDS = ("minmax", "moving_average", "percentile", "sigma", "kl", "mse", "power_of_two")


# ---- observers -----------------------------------------------------------------------------------
arrays = st.lists(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30), min_size=1, max_size=5
)


@settings(max_examples=60, deadline=None)
@given(parts=arrays, more=arrays)
def test_histograms_merge_exactly(parts: list[list[float]], more: list[list[float]]) -> None:
    first, second, together = Histogram(), Histogram(), Histogram()
    for one, batches in ((first, parts), (second, more)):
        for values in batches:
            one.update(np.array(values, np.float32))
            together.update(np.array(values, np.float32))
    first.merge(second)
    assert (first.low, first.high, first.zeros) == (together.low, together.high, together.zeros)
    assert first.limit == together.limit
    np.testing.assert_array_equal(first.counts, together.counts)
    assert first.counts.sum() == sum(map(len, parts + more))


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60))
def test_histogram_bins_hold_their_values(values: list[float]) -> None:
    h = Histogram()
    for v in values:
        h.update(np.array([v], np.float32))
    counts = np.zeros(2 * BINS, int)
    for v in values:
        k = int(np.searchsorted(h.edges, v, side="right")) - 1 if h.limit else BINS
        counts[min(max(k, 0), 2 * BINS - 1)] += 1
    np.testing.assert_array_equal(h.counts, counts)


@pytest.mark.parametrize("kind", KINDS)
def test_observers_do_not_grow(kind: str) -> None:
    o = observer(QConfig(calibrate=kind))
    rng = np.random.default_rng(0)
    o.update(rng.normal(size=100).astype(np.float32))
    before = sum(v.nbytes for v in vars(o).values() if isinstance(v, np.ndarray))
    for k in range(50):
        o.update((rng.normal(size=1000) * 2.0**k).astype(np.float32))
    after = sum(v.nbytes for v in vars(o).values() if isinstance(v, np.ndarray))
    assert before == after <= 1 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_observers_of_constants(kind: str) -> None:
    for value in (0.0, 3.0, -3.0):
        o = observer(QConfig(calibrate=kind))
        o.update(np.full(10, value, np.float32))
        low, high = o.range()
        assert min(low, 0) <= value * 0.99
        assert max(high, 0) >= value * 0.99 - 1e-6


def test_minmax_is_exact() -> None:
    o = MinMax()
    for values in ([1.5, -2.25], [0.0, 7.125]):
        o.update(np.array(values, np.float32))
    assert o.range() == (-2.25, 7.125)


def test_percentile_is_numpys() -> None:
    x = np.random.default_rng(0).normal(size=200_000).astype(np.float32)
    o = Percentile(99.0)
    for part in np.split(x, 20):
        o.update(part)
    np.testing.assert_allclose(o.range(), np.percentile(x, [0.5, 99.5]), atol=2e-3)


def test_squared_error_is_near_the_best_range() -> None:
    x = np.random.default_rng(0).laplace(size=100_000).astype(np.float32)
    o = SquaredError(Levels(16))
    o.update(x)

    def error(low: float, high: float) -> float:
        step = (high - low) / 15
        return float(((np.clip(np.round((x - low) / step), 0, 15) * step + low - x) ** 2).mean())

    best = min(error(x.min() * k / 100, x.max() * k / 100) for k in range(5, 101))
    assert error(*o.range()) <= 1.03 * best
    assert error(float(x.min()), float(x.max())) > 2 * best


def test_kl_ignores_outliers_but_not_the_bulk() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300_000).astype(np.float32)
    x[0] = 60.0
    o = KullbackLeibler(2048, Levels(256))
    o.update(x)
    low, high = o.range()
    assert 3 < high < 12
    assert low == pytest.approx(max(x.min(), -high))


# ---- merging -------------------------------------------------------------------------------------
@pytest.mark.sampled(9)
@settings(max_examples=40, deadline=None)
@given(parts=arrays, more=arrays)
@pytest.mark.parametrize("kind", KINDS)
def test_merged_observers_have_the_range_of_one_that_saw_all(
    kind: str, parts: list[list[float]], more: list[list[float]]
) -> None:
    """The moving average too, of batches in this order."""
    first, second, together = (observer(QConfig(calibrate=kind)) for _ in range(3))
    for one, batches in ((first, parts), (second, more)):
        for values in batches:
            one.update(np.array(values, np.float32))
            together.update(np.array(values, np.float32))
    first.merge(second)
    largest = max(abs(v) for batch in parts + more for v in batch)
    np.testing.assert_allclose(first.range(), together.range(), rtol=1e-9, atol=1e-9 * largest)


@pytest.mark.parametrize("kind", KINDS)
def test_merging_an_observer_that_saw_nothing_changes_nothing(kind: str) -> None:
    x = np.random.default_rng(0).normal(size=500).astype(np.float32)
    one, empty, other = (observer(QConfig(calibrate=kind)) for _ in range(3))
    one.update(x)
    before = one.range()
    one.merge(empty)
    other.merge(one)
    assert one.range() == other.range() == before


# ---- oracles -------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(batches=arrays, momentum=st.floats(0, 0.99))
def test_moving_average_is_numpys_weighted_average(
    batches: list[list[float]], momentum: float
) -> None:
    o = MovingAverage(momentum)
    for values in batches:
        o.update(np.array(values, np.float32))
    weights = momentum ** np.arange(len(batches))[::-1].astype(np.float64)
    want = [np.average([f(np.float32(b)) for b in batches], weights=weights) for f in (min, max)]
    np.testing.assert_allclose(o.range(), want, rtol=1e-9, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(batches=arrays, offset=st.sampled_from([0.0, 1e6]), sigmas=st.floats(0.1, 10))
def test_sigma_is_numpys_mean_and_deviation(
    batches: list[list[float]], offset: float, sigmas: float
) -> None:
    o = MeanSigma(sigmas)
    parts = [np.array(b, np.float32) + np.float32(offset) for b in batches]
    for values in parts:
        o.update(values)
    x = np.concatenate(parts).astype(np.float64)
    low, high = x.mean() - sigmas * x.std(), x.mean() + sigmas * x.std()
    want = max(low, x.min()), min(high, x.max())
    np.testing.assert_allclose(o.range(), want, rtol=1e-9, atol=1e-6)


def rounded_error(x: Array, config: QConfig, low: float, high: float) -> float:
    """Mean squared error of values brought to the grid that a range gives."""
    p = value_params(low, high, config)
    q = np.clip(np.rint(x.astype(np.float64) / p.scale) + p.zero_point, p.qmin, p.qmax)
    return float((((q - p.zero_point) * p.scale - x) ** 2).mean())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("bits", [3, 5, 8])
@pytest.mark.parametrize("shape", ["laplace", "relu"])
def test_power_of_two_is_near_the_best_of_all_powers_of_two(
    shape: str, bits: int, dtype: str, symmetric: bool
) -> None:
    config = QConfig(
        calibrate="power_of_two", activation_bits=bits, activation_dtype=dtype,
        activation_symmetric=symmetric,
    )  # fmt: skip
    x = np.random.default_rng(0).laplace(size=50_000).astype(np.float32)
    x = np.maximum(x, 0) if shape == "relu" else x
    o = observer(config)
    assert isinstance(o, PowerOfTwo)
    o.update(x)
    scale = value_params(*o.range(), config).scale
    assert np.frexp(scale)[0] == 0.5
    shares = np.arange(2, 101) / 100
    errors = [rounded_error(x, config, x.min() * share, x.max() * share) for share in shares]
    assert rounded_error(x, config, *o.range()) <= 1.1 * min(errors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_shifts_have_powers_of_two_from_every_observer(
    kind: str, symmetric: bool, dtype: str
) -> None:
    config = QConfig(
        calibrate=kind, requantize="shift", activation_symmetric=symmetric, activation_dtype=dtype
    )
    x = np.random.default_rng(0).normal(0.3, size=5000).astype(np.float32)
    o = observer(config)
    o.update(x)
    assert np.frexp(value_params(*o.range(), config).scale)[0] == 0.5
    assert rounded_error(x, config, *o.range()) < 0.01


def test_symmetric_squared_error_counts_the_unused_half() -> None:
    x = np.maximum(np.random.default_rng(0).laplace(size=100_000), 0).astype(np.float32)
    config = QConfig(activation_bits=4, activation_symmetric=True)
    o = observer(config)
    o.update(x)
    candidates = [rounded_error(x, config, 0, float(x.max()) * k / 100) for k in range(5, 101)]
    assert rounded_error(x, config, *o.range()) <= 1.05 * min(candidates)


# ---- channels ------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    axis=st.integers(-4, 3),
    size=st.sampled_from([1, 2, 3, 6]),
    seed=st.integers(0, 99),
)
def test_channels_are_observed_as_slices_alone_would_be(
    kind: str, axis: int, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    make: Callable[[], Observer] = lambda: observer(QConfig(calibrate=kind))  # noqa: E731
    shape = [2, 3, 4, 2]
    shape[axis] = 6
    batches = [rng.normal(size=shape).astype(np.float32) for _ in range(3)]
    whole, rest = PerChannel(make, axis, size), PerChannel(make, axis, size)
    whole.update(batches[0])
    for batch in batches[1:]:
        rest.update(batch)
    whole.merge(rest)
    for k, found in enumerate(whole.ranges()):
        alone = make()
        for batch in batches:
            alone.update(np.take(batch, range(k * size, (k + 1) * size), axis))
        np.testing.assert_allclose(found, alone.range(), rtol=1e-9, atol=1e-12)
    ranges = whole.ranges()
    assert whole.range() == (ranges[:, 0].min(), ranges[:, 1].max())


def test_channels_that_do_not_fit_are_refused() -> None:
    o = PerChannel(MinMax, 1, 2)
    with pytest.raises(InputError, match="3 channels cannot be observed in groups of 2"):
        o.update(np.zeros((1, 3), np.float32))
    o.update(np.zeros((1, 4), np.float32))
    with pytest.raises(InputError, match=r"6 channels.*there were 4 before"):
        o.update(np.zeros((1, 6), np.float32))
    other = PerChannel(MinMax, 1, 2)
    other.update(np.zeros((1, 6), np.float32))
    with pytest.raises(InputError, match="cannot be merged"):
        o.merge(other)


def test_small_numbers_fall_into_the_bins_of_their_sign() -> None:
    """However large the others are: halving what is too small for float32 would give zeros."""
    x = np.array([1e-45, -1e-45, 3e38, -1e-38], np.float32)
    h = Histogram()
    h.update(x)
    assert (h.counts[BINS - 1], h.counts[BINS], h.zeros) == (2, 1, 0)
    h = Histogram()
    h.update(x[:2] * 3)
    assert h.counts[[BINS // 4, 7 * BINS // 4]].tolist() == [1, 1]
