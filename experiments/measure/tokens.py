"""What language models are judged by, token by token, kept as sums of every sequence.

Scores [n, tokens, vocabulary] are never held for a whole data set: a batch of them becomes a few
numbers a sequence (`token_sums`), which are joined, and of which all figures and their intervals
are made. Tokens of a sequence depend on each other, so intervals take sequences for the units
(clusters; Miller, Adding Error Bars to Evals, 2024).

Natural logarithms throughout: losses and divergences are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InputError
from experiments.data.token_windows import IGNORED
from experiments.feeds import ROWS, WHOLE, Examples, Feed

Array = NDArray[Any]
Float64 = NDArray[np.float64]

#: The input that says which tokens are none (0) but fill a sequence up.
MASK = "attention_mask"
#: Scores that are in float64 at a time.
_BLOCK = 2**20


@dataclass(frozen=True)
class TokenSums:
    """Sums over the tokens of every sequence [n]: how many count, the loss of the network and of
    float32 (NaN without labels), the divergence KL(float32 || network), and on how many tokens both
    put the same one first; and the divergence of every token that counts, one after the other."""

    tokens: Float64
    loss: Float64
    loss_fp32: Float64
    kl: Float64
    agreed: Float64
    kl_of_tokens: Float64

    @classmethod
    def joined(cls, parts: Sequence[TokenSums]) -> TokenSums:
        """Those of some sequences, and of others after them."""
        return cls(*[np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)])


def token_sums(
    scores: Array, reference: Array, labels: Array | None = None, mask: Array | None = None
) -> TokenSums:
    """What one batch of sequences gives.

    Args:
        scores, reference: logits of the network and of float32, [n, tokens, vocabulary], of any
            real dtype. Their softmax is computed in float64.
        labels: the right token at every place [n, tokens], of integers; IGNORED where there is
            none. Scores at a place are for the label at the same place.
        mask: [n, tokens], 0 where a token does not count.

    A row of scores with a NaN or +infinity has a NaN loss and divergence, and agrees with nothing.

    Raises:
        InputError: shapes do not fit, or a label is none of the vocabulary.
    """
    if scores.ndim != 3 or scores.shape != reference.shape:
        raise InputError(
            "figures of tokens need scores [n, tokens, vocabulary] of both networks, got shapes "
            f"{scores.shape} and {reference.shape}"
        )
    n, length, vocabulary = scores.shape
    if not vocabulary:
        raise InputError("figures of tokens need a vocabulary, and the scores are of none")
    wanted = _labels(labels, (n, length), vocabulary)
    counted = np.ones((n, length), bool) if mask is None else _mask(mask, (n, length)) != 0
    if wanted is not None:
        counted &= wanted != IGNORED
    places = np.flatnonzero(counted)
    flat, flat_reference = (a.reshape(n * length, vocabulary) for a in (scores, reference))
    found = np.full((4, len(places)), np.nan)  # loss, loss_fp32, kl, agreed
    rows = max(1, _BLOCK // max(1, vocabulary))
    for start in range(0, len(places), rows):
        at = places[start : start + rows]
        right = None if wanted is None else wanted.reshape(-1)[at]
        found[:, start : start + rows] = _rows(flat[at], flat_reference[at], right)
    sequence = places // max(1, length)
    tokens = np.bincount(sequence, minlength=n).astype(np.float64)
    sums = np.array([np.bincount(sequence, row, n) for row in found], np.float64)
    return TokenSums(tokens, sums[0], sums[1], sums[2], sums[3], found[2])


def _rows(scores: Array, reference: Array, labels: Array | None) -> Float64:
    """Loss, float32's loss, divergence and agreement [4, tokens] of rows of scores."""
    found, exact = _log_softmax(scores), _log_softmax(reference)
    losses = np.full((2, len(scores)), np.nan)
    if labels is not None:
        losses[0], losses[1] = (-a[np.arange(len(labels)), labels] for a in (found, exact))
    share = np.exp(exact)
    with np.errstate(invalid="ignore"):
        # What float32 gives no chance at all adds nothing, whatever the other gives it.
        parts = np.where(share == 0, 0.0, share * (exact - found))
    # Rounding may leave a divergence of equal rows just below 0; NaN stays.
    kl = np.maximum(parts.sum(axis=1), 0.0)
    valid = ~(np.isnan(found).any(axis=1) | np.isnan(exact).any(axis=1))
    kl[~valid] = np.nan
    agreed = valid & (found.argmax(axis=1) == exact.argmax(axis=1))
    return np.stack([losses[0], losses[1], kl, agreed.astype(np.float64)])


def _log_softmax(scores: Array) -> Float64:
    """Logarithms of shares; all NaN in rows that hold NaN or +infinity, or only -infinity."""
    values = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):
        values -= values.max(axis=1, keepdims=True)
        shares: Float64 = values - np.log(np.exp(values).sum(axis=1, keepdims=True))
    return shares


def _labels(labels: Array | None, shape: tuple[int, int], vocabulary: int) -> Array | None:
    if labels is None:
        return None
    if labels.shape != shape or labels.dtype.kind not in "iu":
        raise InputError(
            f"figures of tokens need integer labels y {list(shape)}, one for every row of scores, "
            f"got {labels.dtype}{list(labels.shape)}"
        )
    wanted = labels.astype(np.int64)
    bad = wanted[(wanted != IGNORED) & ((wanted < 0) | (wanted >= vocabulary))]
    if bad.size:
        raise InputError(
            f"the label {bad[0]} is none of a vocabulary of {vocabulary}: give 0 to "
            f"{vocabulary - 1}, or {IGNORED} where a token does not count"
        )
    return wanted


def _mask(mask: Array, shape: tuple[int, int]) -> Array:
    if mask.shape != shape:
        raise InputError(
            f"the input {MASK!r} has shape {list(mask.shape)}, but there are scores for "
            f"{list(shape)} tokens"
        )
    return mask


def mask_of(x: Examples) -> Array | None:
    """The mask of tokens among some examples [n, tokens], None without one."""
    if not isinstance(x, Feed) or MASK not in x.arrays:
        return None
    mask = x.arrays[MASK]
    if x.kinds[MASK] == WHOLE:  # the same of every example
        return np.broadcast_to(mask, (len(x), mask.shape[-1])) if mask.ndim else None
    mask = np.moveaxis(mask, x.axis(MASK), 0) if x.kinds[MASK] == ROWS else mask
    return mask.reshape(len(x), -1)


def perplexity(means: Float64) -> Float64:
    """Of means of losses and of counts of tokens [..., 2]: exp(loss per token)."""
    with np.errstate(over="ignore"):
        found: Float64 = np.exp(per_token(means))
    return found


def per_token(means: Float64) -> Float64:
    """Of means of sums and of counts of tokens [..., 2]: what a token has."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Float64 = means[..., 0] / means[..., 1]
    return found


def percentile99(values: Float64) -> float:
    """The 99th percentile (linear between neighbours); NaN if one is NaN, or there is none."""
    if not values.size or np.isnan(values).any():
        return math.nan
    # Between infinities there is nothing to interpolate: take the upper neighbour.
    with np.errstate(invalid="ignore"):
        found = float(np.quantile(values, 0.99))
    return float(np.quantile(values, 0.99, method="higher")) if math.isnan(found) else found
