"""The file of answers: what trained and post-training networks say to each test example, a CSV line
a run, beside the file of its runs; and what training gains over the best without, example by
example."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.measure.statistics import student95

from .long_file import Kind, Line, LongFile, beside, read_long

if TYPE_CHECKING:
    import pandas as pd

_TEXT = ("run_id", "config_hash", "right", "kl", "groups")
_KIND = Kind("file of answers", _TEXT, _TEXT, "dtypelab train with qat", later=("groups",))
POST = "post-training "
"""What the systems begin with that were not trained."""
QAT = "qat "


def answers_path(results: str | os.PathLike[str]) -> Path:
    """`x.answers.csv` for the runs in `x.csv`."""
    return beside(results, "answers")


@dataclass(frozen=True, eq=False)
class Answers:
    """Of every test example: whether the answer was right, and the Kullback-Leibler divergence of
    the network's classes from those of the model file in float32, in nats (of three digits);
    `groups`: the number of what it shows, if several show the same."""

    right: NDArray[np.bool_]
    kl: NDArray[np.float64]
    groups: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls, scores: NDArray[Any], float32: NDArray[Any], labels: NDArray[Any],
        groups: NDArray[np.int64] | None = None,
    ) -> Answers:  # fmt: skip
        """Those of scores [n, classes]."""
        wanted, found = log_shares(float32), log_shares(scores)
        kl = (np.exp(wanted) * (wanted - found)).sum(axis=1)
        return cls(scores.argmax(axis=1) == labels, kl, groups)

    def line(self, run_id: str, config_hash: str) -> Line:
        """As a line of the file."""
        right = "".join("01"[int(r)] for r in self.right)
        kl = " ".join(f"{v:.3g}" for v in self.kl)
        groups = "" if self.groups is None else " ".join(map(str, self.groups))
        named = {"run_id": run_id, "config_hash": config_hash}
        return {**named, "right": f"r{right}", "kl": kl, "groups": groups}

    def each(self, measure: str) -> NDArray[np.float64]:
        """A number for each group, or example, if each is for itself: by "top1" the share of right
        answers, by "kl" the mean divergence."""
        values = self.right.astype(np.float64) if measure == "top1" else self.kl
        if self.groups is None:
            return values
        _, of = np.unique(self.groups, return_inverse=True)
        means: NDArray[np.float64] = np.bincount(of, values) / np.bincount(of)
        return means


class AnswersFile(LongFile):
    """A CSV of answers."""

    kind = _KIND


def read_answers(path: str | os.PathLike[str]) -> dict[str, Answers]:
    """`config_hash` -> the answers of a run."""
    table = read_long(path, _KIND)
    return {
        str(r["config_hash"]): Answers(
            np.array([c == "1" for c in str(r["right"])[1:]]),
            np.array(str(r["kl"]).split(), np.float64),
            np.array(str(r["groups"]).split(), np.int64) if r["groups"] else None,
        )
        for r in table.to_dict("records")
    }


def log_shares(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Logarithms of the softmax, float64 [n, classes]."""
    wide = scores.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        logs = wide - wide.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    return np.asarray(logs)


@dataclass(frozen=True)
class Gain:
    """What training with quantization gains over the best that was not trained.

    Attributes:
        model, system: what was trained, and how. seeds: in how many runs.
        measure: "top1", the share of right answers, or "kl", the mean divergence from float32.
        best: the system without training that is best by it, of those judged alike. reached: what
            that reaches; mean: what training does, over its seeds.
        gain: by how much training is better. low, high: its 95 % interval (Student's t, over the
            test examples, paired: of each the mean over the seeds less the best one's; of examples
            in groups over these, of each the mean).
    """

    model: str
    system: str
    seeds: int
    measure: str
    best: str
    reached: float
    mean: float
    gain: float
    low: float
    high: float


def gains(rows: pd.DataFrame, answers: dict[str, Answers]) -> list[Gain]:
    """Those of every model and system that was trained, by both measures, in the order of the
    rows."""
    ended = rows[(rows["status"] == "ok") & rows["config_hash"].isin(list(answers))]
    found = []
    for model, of_model in ended.groupby("model", sort=False):
        post = of_model[of_model["system"].str.startswith(POST)]
        trained = of_model[of_model["system"].str.startswith(QAT)]
        for system, runs in trained.groupby("system", sort=False):
            for measure, sign in (("top1", 1.0), ("kl", -1.0)):
                each = [sign * answers[str(h)].each(measure) for h in runs["config_hash"]]
                rest = {
                    str(r["system"]): sign * answers[str(r["config_hash"])].each(measure)
                    for r in post.to_dict("records")
                }
                if not rest:
                    continue
                best = max(rest, key=lambda k: float(rest[k].mean()))
                mean = np.mean(each, axis=0)
                more = mean - rest[best]
                half = student95(len(more) - 1) * float(more.std(ddof=1)) / len(more) ** 0.5
                gain = float(more.mean())
                found.append(
                    Gain(
                        str(model), str(system), len(each), measure, best,
                        sign * float(rest[best].mean()), sign * float(mean.mean()),
                        gain, gain - half, gain + half,
                    )
                )  # fmt: skip
    return found
