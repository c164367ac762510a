"""Perplexity, divergence from float32 and agreement, against sums written out in plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.errors import InputError
from experiments.data.token_windows import IGNORED
from experiments.measure import metrics, scoring, tokens
from experiments.measure.noise_sums import NoiseSums
from experiments.measure.statistics import standard_error


def _by_hand(q: list[float], p: list[float], label: int) -> tuple[float, float, float]:
    """Loss, divergence and agreement of one token, with sums in exact order."""
    shares = []
    for row in (q, p):
        total = math.fsum(math.exp(v - max(row)) for v in row)
        shares.append([v - max(row) - math.log(total) for v in row])
    kl = math.fsum(math.exp(b) * (b - a) for a, b in zip(*shares, strict=True))
    return -shares[0][label], max(kl, 0.0), float(q.index(max(q)) == p.index(max(p)))


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 4),
    length=st.integers(1, 5),
    vocabulary=st.integers(2, 7),
    seed=st.integers(0, 2**32 - 1),
    per=st.integers(1, 4),
    scale=st.sampled_from([0.1, 3.0, 500.0]),
)
def test_sums_are_those_of_every_token(
    n: int, length: int, vocabulary: int, seed: int, per: int, scale: float
) -> None:
    """Whatever the batches are, and however many tokens are in float64 at a time."""
    random = np.random.default_rng(seed)
    q, p = (random.normal(0, scale, (n, length, vocabulary)).astype("f") for _ in range(2))
    labels = random.integers(0, vocabulary, (n, length))
    labels[random.random((n, length)) < 0.2] = IGNORED
    mask = (random.random((n, length)) < 0.8).astype(np.int64)
    parts = [
        tokens.token_sums(q[k : k + per], p[k : k + per], labels[k : k + per], mask[k : k + per])
        for k in range(0, n, per)
    ]
    sums = tokens.TokenSums.joined(parts)
    kls = []
    for i in range(n):
        found = [
            _by_hand(q[i, t].tolist(), p[i, t].tolist(), int(labels[i, t]))
            for t in range(length)
            if mask[i, t] and labels[i, t] != IGNORED
        ]
        kls += [kl for _, kl, _ in found]
        assert sums.tokens[i] == len(found)
        assert sums.loss[i] == pytest.approx(math.fsum(f[0] for f in found), rel=1e-9, abs=1e-9)
        assert sums.kl[i] == pytest.approx(math.fsum(kls[len(kls) - len(found) :]), abs=1e-6)
        assert sums.agreed[i] == sum(f[2] for f in found)
    np.testing.assert_allclose(sums.kl_of_tokens, kls, atol=1e-6)


def test_perplexity_is_that_of_all_tokens_together() -> None:
    """And not a mean of perplexities: a sequence of one bad token weighs as much as the token."""
    scores = np.zeros((2, 3, 4), np.float32)
    scores[1, 0, 1] = 40.0  # sure of 1, and wrong
    labels = np.array([[0, 1, 2], [0, -100, -100]])
    metric = scoring.find("perplexity")
    want = math.exp((3 * math.log(4) + 40) / 4)
    assert metric(scores, labels) == pytest.approx(want)
    assert not metric.higher_is_better


def test_the_divergence_of_a_network_from_itself_is_exactly_zero() -> None:
    scores = np.random.default_rng(0).normal(0, 9, (3, 5, 11)).astype(np.float32)
    for name, want in (("kl_float32", 0.0), ("top_token_agreement", 1.0)):
        assert scoring.find(name)(scores, scores) == want
        assert scoring.find(name).beside_float32
        assert scoring.beside_float32(name)


def test_scores_that_are_no_numbers_give_none() -> None:
    """-infinity is a share of 0; float32's own zeros add nothing, those of the other are far."""
    p = np.array([[[0.0, 0.0, -np.inf], [1.0, 2.0, 3.0]]], np.float32)
    q = p.copy()
    assert tokens.token_sums(q, p).kl.tolist() == [0.0]
    q[0, 1, 2] = -np.inf
    assert tokens.token_sums(q, p).kl.tolist() == [np.inf]
    for bad in (np.nan, np.inf):
        q[0, 1, 2] = bad
        sums = tokens.token_sums(q, p, np.array([[0, 0]]))
        assert np.isnan(sums.kl[0])
        assert np.isnan(sums.loss[0])
        assert sums.agreed.tolist() == [1.0]
        assert math.isnan(tokens.percentile99(sums.kl_of_tokens))


def test_percentiles() -> None:
    values = np.arange(101.0)
    assert tokens.percentile99(values) == 99.0
    assert tokens.percentile99(np.array([np.inf, np.inf])) == math.inf
    assert math.isnan(tokens.percentile99(np.zeros(0)))


_SCORES = np.zeros((2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((_SCORES[:, 0], _SCORES[:, 0]), "need scores [n, tokens, vocabulary]"),
        ((_SCORES, _SCORES[:1]), "(2, 3, 4) and (1, 3, 4)"),
        ((_SCORES, _SCORES, np.zeros((2, 2), int)), "labels y [2, 3]"),
        ((_SCORES, _SCORES, np.zeros((2, 3))), "got float64[2, 3]"),
        ((_SCORES, _SCORES, np.full((2, 3), 4)), "the label 4 is none of a vocabulary of 4"),
        ((_SCORES, _SCORES, np.full((2, 3), -1)), "the label -1 is none"),
        ((_SCORES, _SCORES, None, np.ones((2, 4))), "'attention_mask' has shape [2, 4]"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        tokens.token_sums(*arguments)
    assert message in str(refused.value)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 9),
    per=st.integers(1, 9),
    scale=st.sampled_from([1e-200, 1e-3, 1.0, 1e200]),
    seed=st.integers(0, 2**32 - 1),
)
def test_noise_of_batches_is_that_of_all(n: int, per: int, scale: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    wanted = random.normal(size=(n, 3)) * scale
    found = wanted + random.normal(size=(n, 3)) * scale * 1e-2
    sums = NoiseSums()
    for k in range(0, n, per):
        sums.add(found[k : k + per], wanted[k : k + per])
    assert sums.sqnr_db == pytest.approx(metrics.sqnr_db(found, wanted), rel=1e-9)
    assert sums.cosine == pytest.approx(metrics.cosine(found, wanted), rel=1e-9)


@pytest.mark.parametrize(
    "rows", [([[1.0]], [[1.0]]), ([[0.0]], [[0.0]]), ([[0.0]], [[1.0]]), ([[np.nan]], [[1.0]])]
)
def test_noise_of_special_values(rows: Any) -> None:
    found, wanted = map(np.array, rows)
    sums = NoiseSums()
    sums.add(found, wanted)
    np.testing.assert_equal(sums.sqnr_db, metrics.sqnr_db(found, wanted))
    np.testing.assert_equal(sums.cosine, metrics.cosine(found, wanted))


def test_the_standard_error_of_a_mean_is_the_usual_one() -> None:
    values = np.random.default_rng(3).normal(size=(40, 1))
    found = standard_error(lambda means: means[..., 0], values)
    assert found == pytest.approx(float(values.std(ddof=1)) / math.sqrt(40))
    assert math.isnan(standard_error(lambda means: means[..., 0], values[:1]))


@pytest.mark.thorough
def test_standard_errors_of_perplexity_are_what_samples_show() -> None:
    """Over many data sets of sequences whose tokens depend on each other."""
    random = np.random.default_rng(5)

    def draw() -> np.ndarray[Any, Any]:
        hard = random.normal(2.0, 0.5, (60, 1))  # of all tokens of a sequence
        lengths = random.integers(5, 40, 60)
        losses = [float((hard[i] + random.normal(0, 1, k)).sum()) for i, k in enumerate(lengths)]
        return np.stack([np.array(losses), lengths], axis=1)

    tables = [draw() for _ in range(400)]
    figures = [float(tokens.perplexity(t.mean(axis=0))) for t in tables]
    errors = [standard_error(tokens.perplexity, t) for t in tables]
    assert np.mean(errors) == pytest.approx(np.std(figures), rel=0.12)


def test_a_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="need a vocabulary"):
        tokens.token_sums(np.zeros((1, 2, 0)), np.zeros((1, 2, 0)))
