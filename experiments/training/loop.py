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
from experiments.layers.curves import Point

from .checkpoints import Checkpoint, State
from .data import Examples
from .initial import initial, order
from .loss_scale import ScaleState
from .network import Floats
from .programs import Programs, one_hot, programs
from .spec import RANDOM, Run
from .step import RATE, SCALE, TARGETS, UNSCALE

Tell = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is, and of how much."""


@dataclass(frozen=True)
class Pace:
    """Steps between checkpoints, and between lines of the curve; threads of kernels."""

    checkpoint_steps: int
    curve_steps: int
    threads: int


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a run: the last state, its share of right answers and mean loss on the test
    examples, and the mean loss of the last line of the curve."""

    state: State
    metric: float
    test_loss: float

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
    made = programs(run, data.x.shape[1:], pace.threads)
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
    metric, loss = training.judged(state.arrays)
    return Trained(state, metric, loss)


class _Training:
    def __init__(self, run: Run, made: Programs, data: Examples, pace: Pace):
        self.run, self.made, self.data, self.pace = run, made, data, pace
        self.targets = one_hot(data.y[: run.n_train], made.network.classes)
        one_hot(data.y_test[: run.n_test], made.network.classes)
        self._order: tuple[int, NDArray[np.intp]] = (-1, np.zeros(0, np.intp))

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

    def batch(self, step: int) -> NDArray[np.intp]:
        """The numbers of the examples of a step."""
        epoch, place = divmod(step, self.run.steps_an_epoch)
        if self._order[0] != epoch:
            self._order = epoch, order(self.run.seed, epoch, self.run.n_train)
        start = place * self.run.batch
        return self._order[1][start : start + self.run.batch]

    def after(self, state: State) -> State:
        """The state after the next step."""
        run, step = self.run, self.made.step
        chosen = self.batch(state.step)
        rate = run.schedule.at(state.step, run.steps)
        scalars = {
            RATE: rate, SCALE: state.scale.value, UNSCALE: 1 / state.scale.value,
            **run.rules.optimizer.scalars_at(state.updates),
        }  # fmt: skip
        numbers = {n: np.array(scalars[n], np.float32) for n in step.numbers}
        out = self.made.run_step(**{
            step.input: self.data.x[chosen], TARGETS: self.targets[chosen], **numbers,
            **state.arrays,
        })  # fmt: skip
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
        metric = self.judged(state.arrays)[0] if whole else None
        point = Point(
            state.step, state.step / self.run.steps_an_epoch, float(np.mean(state.losses)), metric,
            rate, scale, state.scale.skipped,
        )  # fmt: skip
        return replace(state, curve=(*state.curve, point), losses=())

    def judged(self, weights: Mapping[str, Floats]) -> tuple[float, float]:
        """The share of right answers on the test examples, and their mean cross entropy; of ties
        the first class is the answer."""
        y = self.data.y_test[: self.run.n_test]
        scores: NDArray[Any] = self.made.scores(self.data.x_test[: self.run.n_test], weights)
        wide = scores.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            logs = wide - wide.max(axis=1, keepdims=True)
            logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
            loss = float(-logs[np.arange(len(y)), y].mean())
        return float((scores.argmax(axis=1) == y).mean()), loss
