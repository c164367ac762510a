"""One training, step by step, from where its checkpoint left it."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import tensor_type
from experiments.layers.answers import log_shares
from experiments.layers.curves import Point

from .checkpoints import Checkpoint, State
from .data import Examples
from .feeding import Feeding
from .initial import draw, initial
from .loss_scale import ScaleState
from .network import Floats
from .programs import Programs, one_hot, post_training_scores, programs, test_labels
from .spec import RANDOM, Run
from .step import DRAW, RATE, SCALE, UNSCALE

Tell = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is, and of how much."""


@dataclass(frozen=True)
class Pace:
    """Steps between checkpoints, and between lines of the curve; threads of kernels; epochs between
    two judgements on the test examples."""

    checkpoint_steps: int
    curve_steps: int
    threads: int
    judge_epochs: int = 1


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a run: the last state, its share of right answers and mean loss on the test
    examples, its scores there, and the mean loss of the last line of the curve."""

    state: State
    metric: float
    test_loss: float
    scores: Floats

    @property
    def loss(self) -> float:
        """That of the last line of the curve."""
        return self.state.curve[-1].loss if self.state.curve else math.nan

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of all weights and states, with their names."""
        digest = hashlib.sha256()
        for name, array in self.state.arrays.items():
            digest.update(name.encode())
            digest.update(array.tobytes())
        return digest.hexdigest()


def train_run(run: Run, data: Examples, pace: Pace, kept: Checkpoint | None, tell: Tell) -> Trained:
    """Train to the end, from the checkpoint that is there or from the beginning.

    Raises:
        DtypelabError: the step cannot be made in these formats, or the checkpoint not be used.
    """
    tell("compiling", 0, run.steps)
    if run.judged_only:
        scores = post_training_scores(run, data, pace.threads)
        labels = test_labels(run, data, pace.threads)
        one_hot(labels, scores.shape[1])
        state = State({}, ScaleState(run.rules.loss_scale.value))
        return Trained(state, *judged(scores, labels), scores)
    made = programs(run, data, pace.threads)
    training = _Training(run, made, data, pace)
    state = (kept.load() if kept else None) or training.beginning()
    begun, before = time.monotonic(), state.seconds
    while state.step < run.steps:
        state = training.after(state)
        if kept and (state.step % pace.checkpoint_steps == 0 or state.step == run.steps):
            state = replace(state, seconds=before + time.monotonic() - begun)
            kept.save(state)
        shown = f"loss {state.curve[-1].loss:.4f}" if state.curve else "training"
        tell(shown, state.step, run.steps)
    scores = training.scores(state.arrays)
    return Trained(state, *judged(scores, training.labels), scores)


def beginning(run: Run, data: Examples, pace: Pace) -> tuple[State, Callable[[State], State]]:
    """The state before the first step of a run, and what makes of a state the one after a step.

    Raises:
        DtypelabError: the step cannot be made in these formats.
    """
    training = _Training(run, programs(run, data, pace.threads), data, pace)
    return training.beginning(), training.after


class _Training:
    def __init__(self, run: Run, made: Programs, data: Examples, pace: Pace):
        self.run, self.made, self.data, self.pace = run, made, data, pace
        self.feeding = Feeding(run, made, data, pace.threads)
        self.labels = test_labels(run, data, pace.threads)
        one_hot(self.labels, made.network.classes)
        self._features: tuple[NDArray[Any], ...] | None = None

    def beginning(self) -> State:
        """The state before the first step."""
        net = self.made.network
        if self.run.initial == RANDOM:
            arrays = initial(net, self.run.seed)
        else:
            arrays = {p.name: p.value for p in net.parameters}
        params = self.made.step.module.main.params
        shapes = {p.name: tensor_type(p).static_shape for p in params}
        given = {
            name: arrays[name] if name in arrays else np.zeros(shapes[name], np.float32)
            for name in self.made.step.kept
        }
        return State(given, ScaleState(self.run.rules.loss_scale.value))

    def after(self, state: State) -> State:
        """The state after the next step."""
        run, step = self.run, self.made.step
        rate = run.schedule.at(state.step, run.steps)
        scalars = {
            RATE: rate, SCALE: state.scale.value, UNSCALE: 1 / state.scale.value,
            **run.rules.optimizer.scalars_at(state.updates),
        }  # fmt: skip
        numbers: dict[str, NDArray[Any]] = {
            n: np.array(scalars[n], np.float32) for n in step.numbers
        }
        if step.random:
            numbers[DRAW] = np.array(draw(run.seed, state.step), np.int64)
        out = self.made.run_step(**self.feeding.at(state.step), **numbers, **state.arrays)
        results = dict(zip((*step.results, *step.kept), out, strict=True))
        finite = bool(results.get("finite", True))
        new = State(
            {name: results[name] for name in step.kept},
            state.scale.after(run.rules.loss_scale, finite),
            state.step + 1,
            (*state.losses, float(results["loss"])),
            state.curve,
            state.seconds,
        )
        return self._with_point(new, rate, state.scale.value)

    def _with_point(self, state: State, rate: float, scale: float) -> State:
        """With another line of the curve, if one is due."""
        whole = state.step % self.run.steps_an_epoch == 0
        if not whole and state.step % self.pace.curve_steps:
            return state
        epoch = state.step // self.run.steps_an_epoch
        due = whole and (epoch % self.pace.judge_epochs == 0 or epoch == self.run.epochs)
        metric = judged(self.scores(state.arrays), self.labels)[0] if due else None
        point = Point(
            state.step, state.step / self.run.steps_an_epoch, float(np.mean(state.losses)), metric,
            rate, scale, state.scale.skipped,
        )  # fmt: skip
        return replace(state, curve=(*state.curve, point), losses=())

    def scores(self, weights: Mapping[str, Floats]) -> Floats:
        """Those of the test examples."""
        if self._features is None:
            self._features = self.made.features(self.data.x_test[: self.run.n_test])
        return self.made.scores_of(self._features, weights)


def judged(scores: NDArray[Any], y: NDArray[np.int64]) -> tuple[float, float]:
    """The share of right answers, and their mean cross entropy; of ties the first class is the
    answer."""
    loss = float(-log_shares(scores)[np.arange(len(y)), y].mean())
    return float((scores.argmax(axis=1) == y).mean()), loss
