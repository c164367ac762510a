"""What an answer is worth: metrics by name, shipped ones and a user's.

A metric is known by its statistics: numbers of every single input, of whose means over the inputs
the figure is made. So one bootstrap and one permutation test serve all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, InputError, unknown
from experiments.user_code import activity, adapters

from . import metrics, tokens
from .tokens import TokenSums

Array = NDArray[Any]
Float64 = NDArray[np.float64]

#: What the labels of a data set without any are called: the float32 network's own outputs.
OF_FLOAT32 = "~float32"


def _first(means: Float64) -> Float64:
    first: Float64 = means[..., 0]
    return first


@dataclass(frozen=True)
class Metric:
    """A figure of merit over inputs.

    `statistics` takes the network's outputs [n, ...] and the labels [n, ...] to a table [n, k];
    `value` takes means [..., k] of its columns to the figure [...] (by default k is 1 and the mean
    is the figure). `answers` takes outputs to what a user would read, for counting how often two
    networks agree; None if that has no meaning (or gives None, if these outputs have none).
    `beside_float32`: what is measured is the distance from the float32 network's outputs, which
    are then the labels, whatever labels there are; of those themselves it says nothing.
    `undefined` says when the figure has no value though all statistics have. `of_tokens`, of
    metrics of scores [n, tokens, vocabulary]: the statistics of the network and of float32, from
    sums that were taken batch by batch. `in_batches`: outputs may be given a batch at a time, as
    the statistics of an input depend on nothing else.
    """

    name: str
    statistics: Callable[[Array, Array], Float64]
    value: Callable[[Float64], Float64] = _first
    higher_is_better: bool = True
    answers: Callable[[Array], Array | None] | None = None
    beside_float32: bool = False
    undefined: str = ""
    of_tokens: Callable[[TokenSums], tuple[Float64, Float64]] | None = None
    in_batches: bool = False

    def __call__(self, outputs: Array, labels: Array) -> float:
        """The figure for outputs [n, ...] and labels [n, ...]."""
        return float(self.value(self.statistics(outputs, labels).mean(axis=0)))


# ---- classification ------------------------------------------------------------------------------
def _scores(outputs: Array) -> Array:
    """[n, classes], also of [n, classes, 1, 1]."""
    return outputs.reshape(outputs.shape[:2]) if set(outputs.shape[2:]) == {1} else outputs


def _right(outputs: Array, labels: Array) -> Float64:
    wanted = labels if labels.ndim == 1 else _scores(labels).argmax(axis=1)
    return metrics.right(_scores(outputs), wanted).astype(np.float64)[:, None]


def _classes(outputs: Array) -> Array:
    """The first class of every row; one that is none where the row holds a NaN."""
    scores = _scores(outputs)
    bad = np.isnan(scores).any(axis=1)
    found: Array = np.where(bad, -1, scores.argmax(axis=1))
    return found


# ---- text ----------------------------------------------------------------------------------------
def greedy_text(outputs: Array, alphabet: Sequence[str]) -> Array:
    """Texts [n] of CTC outputs [n, steps, classes]: the best class of every step, repetitions and
    blanks (class 0) left out (Graves et al. 2006), outer spaces stripped.

    Raises:
        InputError: there are more classes than texts in `alphabet`.
    """
    if outputs.ndim != 3 or outputs.shape[2] > len(alphabet):
        raise InputError(
            f"CTC needs outputs [n, steps, classes] and a text for each class, got shape "
            f"{outputs.shape} and {len(alphabet)} texts"
        )
    best = outputs.argmax(axis=2)
    kept = best != 0
    kept[:, 1:] &= best[:, 1:] != best[:, :-1]
    texts = ["".join(alphabet[k] for k in row[keep]) for row, keep in zip(best, kept, strict=True)]
    return np.array([text.strip() for text in texts], dtype=object)


def edit_distance(a: str, b: str) -> int:
    """Least number of characters to insert, delete or replace (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _texts(labels: Array, alphabet: Sequence[str]) -> Array:
    return labels if labels.ndim == 1 else greedy_text(labels, alphabet)


def _exact(alphabet: Sequence[str], outputs: Array, labels: Array) -> Float64:
    found, wanted = greedy_text(outputs, alphabet), _texts(labels, alphabet)
    return np.array([[float(a == b)] for a, b in zip(found, wanted, strict=True)])


def _edits(alphabet: Sequence[str], outputs: Array, labels: Array) -> Float64:
    pairs = zip(greedy_text(outputs, alphabet), _texts(labels, alphabet), strict=True)
    return np.array([[edit_distance(a, b), len(b)] for a, b in pairs], dtype=np.float64)


def _rate(means: Float64) -> Float64:
    """Edits per character; NaN where there are no characters."""
    with np.errstate(invalid="ignore", divide="ignore"):
        rate: Float64 = means[..., 0] / means[..., 1]
    return rate


# ---- regression and embeddings -------------------------------------------------------------------
def _pair(outputs: Array, labels: Array) -> tuple[Float64, Float64]:
    got, wanted = outputs.astype(np.float64), labels.astype(np.float64)
    if got.size != wanted.size or len(got) != len(wanted):
        raise InputError(f"outputs {got.shape} and labels {wanted.shape} do not fit")
    return got.reshape(len(got), -1), wanted.reshape(len(wanted), -1)


def _squares(outputs: Array, labels: Array) -> Float64:
    got, wanted = _pair(outputs, labels)
    columns = (np.square(got - wanted), wanted, np.square(wanted))
    return np.stack([c.mean(axis=1) for c in columns], axis=1)


def _rmse(means: Float64) -> Float64:
    root: Float64 = np.sqrt(means[..., 0])
    return root


def _r2(means: Float64) -> Float64:
    """1 - squared error / variance of the labels, all elements of them together; NaN where they do
    not vary (by more than the rounding of their squares)."""
    variance = means[..., 2] - np.square(means[..., 1])
    varied = np.where(variance > 1e-14 * means[..., 2], variance, np.nan)
    share: Float64 = 1 - means[..., 0] / varied
    return share


def _cosines(outputs: Array, labels: Array) -> Float64:
    rows = zip(*_pair(outputs, labels), strict=True)
    return np.array([[metrics.cosine(a, b)] for a, b in rows])


# ---- noise ---------------------------------------------------------------------------------------
def _powers(outputs: Array, reference: Array) -> Float64:
    """Signal and noise of every input; scaled, so that squares of large numbers are finite."""
    got, wanted = _pair(outputs, reference)
    if got.shape != wanted.shape:
        raise InputError(f"cannot compare arrays of shapes {outputs.shape} and {reference.shape}")
    finite = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in (got, wanted)]
    scale = max(finite) or 1.0
    got, wanted = got / scale, wanted / scale
    # Noise without a bound is as little a number as NaN is, see `metrics.sqnr_db`.
    bad = ~(np.isfinite(got).all(axis=1) & np.isfinite(wanted).all(axis=1))
    with np.errstate(invalid="ignore"):
        powers = np.stack([np.square(wanted).sum(1), np.square(got - wanted).sum(1)], axis=1)
    powers[bad] = np.nan
    return powers


def _decibels(means: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(means[..., 1] == 0, np.inf, means[..., 0] / means[..., 1])
        found: Float64 = 10 * np.log10(np.where(np.isnan(means).any(axis=-1), np.nan, ratio))
    return found


def _classes_if_any(outputs: Array) -> Array | None:
    """The first class of every row of [n, classes]; None of outputs of another shape."""
    scores = _scores(outputs)
    return _classes(outputs) if scores.ndim == 2 and scores.shape[1] > 1 else None


# ---- tokens --------------------------------------------------------------------------------------
def _losses(sums: TokenSums) -> tuple[Float64, Float64]:
    return _with_counts(sums, sums.loss), _with_counts(sums, sums.loss_fp32)


def _divergences(sums: TokenSums) -> tuple[Float64, Float64]:
    return _with_counts(sums, sums.kl), _with_counts(sums, np.zeros_like(sums.kl))


def _agreements(sums: TokenSums) -> tuple[Float64, Float64]:
    return _with_counts(sums, sums.agreed), _with_counts(sums, sums.tokens)


def _with_counts(sums: TokenSums, values: Float64) -> Float64:
    return np.stack([values, sums.tokens], axis=1)


def _token_metric(
    name: str,
    of_tokens: Callable[[TokenSums], tuple[Float64, Float64]],
    value: Callable[[Float64], Float64] = tokens.per_token,
    *,
    higher_is_better: bool = False,
    beside_float32: bool = True,
) -> Metric:
    def statistics(outputs: Array, labels: Array) -> Float64:
        if beside_float32:
            return of_tokens(tokens.token_sums(outputs, labels))[0]
        return of_tokens(tokens.token_sums(outputs, outputs, labels))[0]

    return Metric(
        name,
        statistics,
        value,
        higher_is_better,
        beside_float32=beside_float32,
        undefined="no token counts",
        of_tokens=of_tokens,
        in_batches=True,
    )


# ---- by name -------------------------------------------------------------------------------------
#: Name -> the metric for a data set whose classes have these texts.
_METRICS: dict[str, Callable[[tuple[str, ...]], Metric]] = {
    "top1": lambda classes: Metric("top1", _right, answers=_classes),
    "ctc_exact": lambda classes: Metric(
        "ctc_exact", partial(_exact, classes), answers=partial(greedy_text, alphabet=classes)
    ),
    "ctc_cer": lambda classes: Metric(
        "ctc_cer",
        partial(_edits, classes),
        _rate,
        higher_is_better=False,
        answers=partial(greedy_text, alphabet=classes),
        undefined="the labels have no characters",
    ),
    "rmse": lambda classes: Metric("rmse", _squares, _rmse, higher_is_better=False),
    "r2": lambda classes: Metric("r2", _squares, _r2, undefined="all labels are the same"),
    "cosine": lambda classes: Metric("cosine", _cosines),
    "sqnr": lambda classes: Metric(
        "sqnr", _powers, _decibels, answers=_classes_if_any, beside_float32=True
    ),
    "perplexity": lambda classes: _token_metric(
        "perplexity", _losses, tokens.perplexity, beside_float32=False
    ),
    "kl_float32": lambda classes: _token_metric("kl_float32", _divergences),
    "top_token_agreement": lambda classes: _token_metric(
        "top_token_agreement", _agreements, higher_is_better=True
    ),
}
#: Metrics of language models: of scores [n, tokens, vocabulary].
OF_TOKENS = frozenset({"perplexity", "kl_float32", "top_token_agreement"})
_SHIPPED = frozenset(_METRICS)
Score = Callable[[Array, Array], Any]
Value = Callable[[Float64], Any]
_REGISTERED: dict[str, tuple[Score, bool] | tuple[Score, bool, Value]] = {}


def names() -> list[str]:
    """Names of the metrics, those of the user included."""
    return sorted(_METRICS)


def register_metric(
    name: str, score: Score, *, higher_is_better: bool = True, value: Value | None = None
) -> None:
    """Make `score` a metric that specifications can name: `metric = "NAME"`.

    Args:
        name: what specifications and results call it.
        score: takes outputs [n, ...] and labels [n, ...] to a number of every input [n]; their mean
            is the figure.
        higher_is_better: False for errors.
        value: where the figure is no mean: `score` then gives several numbers of every input
            [n, k], such as a loss and a count, and `value` takes means of them [..., k] to the
            figure [...]: exp(losses / counts). Outputs come a batch at a time.

    Raises:
        ConfigError: a shipped metric has this name.
    """
    if name in _SHIPPED:
        raise ConfigError(f"the metric {name!r} ships with dtypelab; choose another name")
    _METRICS[name] = lambda classes: _scored(name, score, higher_is_better, value)
    _REGISTERED[name] = (score, higher_is_better, *(() if value is None else (value,)))


def _scored(name: str, score: Score, higher_is_better: bool, value: Value | None) -> Metric:
    def statistics(outputs: Array, labels: Array) -> Float64:
        with activity.at(f"metric {name}{activity.place_of(score)}"):
            found = np.asarray(score(outputs, labels), dtype=np.float64)
        many = value is not None and found.ndim == 2 and found.size
        if found.shape[:1] != outputs.shape[:1] or not (found.ndim == 1 or many):
            raise InputError(
                f"metric {name!r} must give one number for each of {len(outputs)} inputs, gave "
                f"shape {found.shape}"
            )
        return found.reshape(len(found), -1)

    if value is None:
        return Metric(name, statistics, higher_is_better=higher_is_better)

    def figure(means: Float64) -> Float64:
        with activity.at(f"metric {name}{activity.place_of(value)}"):
            found = np.asarray(value(means), dtype=np.float64)
        if found.shape != means.shape[:-1]:
            raise InputError(
                f"metric {name!r}: value must take means {list(means.shape)} to figures "
                f"{list(means.shape[:-1])}, gave shape {found.shape}"
            )
        return found

    return Metric(name, statistics, figure, higher_is_better, in_batches=True)


def find(name: str, classes: tuple[str, ...] = ()) -> Metric:
    """The metric of that name, or of FILE.py:FUNCTION (as `register_metric` takes it; an attribute
    `higher_is_better = False` of the function says that less is better, `value` is as there).

    Raises:
        ConfigError: there is none.
    """
    if adapters.is_reference(name):
        score = adapters.function(name)
        better = bool(getattr(score, "higher_is_better", True))
        value = getattr(score, "value", None)
        return _scored(name.rpartition(":")[2], score, better, value)
    if name not in _METRICS:
        raise ConfigError(f"{unknown('metric', name, names())} (or FILE.py:FUNCTION)")
    return _METRICS[name](classes)


def registered(name: str) -> tuple[Score, bool] | tuple[Score, bool, Value] | None:
    """What `register_metric` made a metric: its function, whether more is better, and what makes
    the figure of means if anything does; None of metrics that ship and of those of other names."""
    return _REGISTERED.get(name)


def beside_float32(metric_name: str) -> bool:
    """Whether a figure of this name, as results record it, stands beside the float32 network."""
    if metric_name.endswith(OF_FLOAT32):
        return True
    return metric_name in _SHIPPED and find(metric_name).beside_float32


def is_share(metric_name: str) -> bool:
    """Whether a figure of this name, as results record it, is a share of the inputs that are right
    (results of earlier versions, which have no name, are top-1)."""
    return metric_name.removesuffix(OF_FLOAT32) in ("", "top1", "ctc_exact")
