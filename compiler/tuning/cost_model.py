"""Which candidates are worth measuring: a model of their time, learned from those that were.

It predicts a candidate's time as a share of the rules' schedule's, from the features of both: what
it learns of one kernel holds for others. The trees are lightgbm's (extra `tune`); without it, and
before there is enough to learn from, an analysis of the loops ranks (`features.estimated`).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from compiler.tuning.features import NAMES, estimated
from compiler.types.dtypes import Array

LEAST = 32
"""Trials before which nothing is learned."""
GROWTH = 1.25
"""How many times as many trials there must be before it is learned again."""
FAR_OFF, STEEP = 0.2, 3.0
"""What a trial weighs that is far from the best of its kernel; by what power of their ratio those
near it weigh more."""
FORESTS, ROUNDS, RATE = 8, 75, 0.16
"""Models whose mean is taken (each sees another part of trials and features), trees of each, and
how far each tree goes. Many that learn fast rank better than few that learn slowly, in as much
time."""
HOPELESS = 3.0
"""log2 of how many times the rules' cycles an analysis may expect of a candidate."""
LARGEST = 13.0
"""log2 of the operations that an unrolled body may have: LLVM would take seconds for more."""
_REPORTED = [NAMES.index("reloads"), NAMES.index("frame")]
_WORK = [NAMES.index(n) for n in ("vector_operations", "instructions", "scalar_operations")]
_COUNTED = [
    NAMES.index(n)
    for n in (
        "scalar_operations", "slow", "custom", "vector_loads", "broadcasts", "strided_loads",
        "gathers", "vector_stores", "other_stores", "loop_rounds", "near_bytes", "next_bytes",
        "far_bytes", "cycles", "reloads",
    )
]  # fmt: skip


@cache
def learns() -> bool:
    """Whether lightgbm is there to learn with."""
    try:
        importlib.import_module("lightgbm")
    except (ImportError, OSError):  # OSError: a library that it needs is missing
        return False
    return True


def hopeless(features: Array, default: Array) -> bool:
    """Whether the analysis alone says that a candidate is not worth compiling."""
    slower = estimated(features) - estimated(default) > HOPELESS
    body = NAMES.index("unrolled")
    return slower or bool(features[body] > max(LARGEST, default[body]))


def unreported(features: Array) -> Array:
    """Features as they are before LLVM has seen the candidate."""
    out = features.copy()
    out[_REPORTED] = np.nan
    return out


class CostModel:
    """Ranks candidates; learns as trials are added.

    Args:
        learning: whether to learn, where lightgbm is there.
        seed: of the trees.
    """

    def __init__(self, learning: bool = True, seed: int = 0):
        self._learning, self._seed = learning and learns(), seed
        self._rows: list[Array] = []
        self._blind: list[Array] = []  # the same, as it was before LLVM had seen the candidate
        self._ratios: list[float] = []
        self._kernels: list[bytes] = []
        self._learned = 0
        self._trees: list[Any] = []

    @property
    def kind(self) -> str:
        """What ranks: `lightgbm` or `analysis`."""
        return "lightgbm" if self._trees else "analysis"

    def add(self, features: Array, default: Array, ratio: float) -> None:
        """Add a trial.

        Args:
            features: of the candidate, with what LLVM reported, if that is known.
            default: those of the rules' schedule.
            ratio: its time as a share of that schedule's.
        """
        self._rows.append(_row(features, default))
        self._blind.append(_row(unreported(features), default))
        self._kernels.append(default.tobytes())
        self._ratios.append(min(3.0, max(-3.0, math.log2(ratio))))

    def predict(self, features: Sequence[Array], default: Array) -> Array:
        """log2 of the ratios that it expects."""
        if not len(features):
            return np.zeros(0)
        self._learn()
        if not self._trees:
            known = estimated(default)
            return np.array([estimated(f) - known for f in features])
        rows = np.stack([_row(f, default) for f in features])
        return np.asarray(np.mean([t.predict(rows) for t in self._trees], axis=0))

    def _learn(self) -> None:
        enough = max(LEAST, GROWTH * self._learned)
        if not self._learning or len(self._rows) < enough:
            return
        import lightgbm

        ratios = np.array(self._ratios)
        weights = self._weights(ratios)
        options = {
            "objective": "l1", "learning_rate": RATE, "num_leaves": 31, "verbose": -1,
            "min_data_in_leaf": 4, "feature_fraction": 0.4, "bagging_fraction": 0.8,
            "bagging_freq": 1, "lambda_l2": 0.1, "num_threads": 1, "deterministic": True,
            "force_row_wise": True,
        }  # fmt: skip
        # Candidates are ranked before LLVM has seen them: every trial counts both with its report
        # and without.
        both = np.stack([*self._rows, *self._blind]), np.concatenate([ratios, ratios])
        weight = np.concatenate([weights, weights])
        seen = lightgbm.Dataset(*both, weight=weight)  # sorted into bins once, for all of them
        seeds = range(self._seed, self._seed + FORESTS)
        self._trees = [
            lightgbm.train({**options, "bagging_seed": k, "feature_fraction_seed": k}, seen, ROUNDS)
            for k in seeds
        ]
        self._learned = len(self._rows)

    def _weights(self, ratios: Array) -> Array:
        """What is much slower than the best of its kernel need not be told apart well."""
        best: dict[bytes, float] = {}
        for kernel, ratio in zip(self._kernels, ratios.tolist(), strict=True):
            best[kernel] = min(ratio, best.get(kernel, ratio))
        return FAR_OFF + np.exp2(-STEEP * (ratios - [best[k] for k in self._kernels]))


def _row(features: Array, default: Array) -> Array:
    """What the trees see: the features, how they differ from the rules' schedule's, and counts for
    each operation, in which kernels of all sizes are alike."""
    work = np.log2(np.sum(np.exp2(features[_WORK])))
    return np.concatenate([features, features - default, features[_COUNTED] - work])
