"""The programs of a training: the step, and the network as it is judged, compiled once for all runs
that share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError
from experiments.layers.answers import log_shares

from .data import Examples
from .formats import FORWARD, Formats, in_formats, tagged
from .models import at_once, model
from .network import Floats, Network, network
from .partial import parts_of
from .qat import Qat, Quantized, planned, quantized
from .step import Rules, Step, training_step

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule
    from quantize import Plan

    from .spec import Run

JUDGED = 250
"""Examples that are judged at once."""


@dataclass(frozen=True, eq=False)
class Programs:
    """What a run calls.

    Attributes:
        network: with the weights of the model file.
        step, run_step: the program of a step, and that compiled.
        judge: the compiled network, whose parameters are the step's inputs and the weights.
        judged: how many examples it takes at once.
        quantized: how the network is quantized, if it is.
        front: of so many examples, too: what the inputs are, from the model's own; None where they
            are that.
    """

    network: Network
    step: Step
    run_step: Executable
    judge: Executable
    judged: int
    quantized: Quantized | None = None
    front: Executable | None = None

    def features(self, x: Floats) -> tuple[NDArray[Any], ...]:
        """What the step and the judge read of examples [n, ...]: a row each."""
        front = self.front
        return (
            (x,) if front is None else in_parts(lambda part: _all(front(part)), (x,), self.judged)
        )

    def scores(self, x: Floats, weights: Mapping[str, Floats]) -> Floats:
        """The scores of examples [n, ...], float32 [n, classes]."""
        return self.scores_of(self.features(x), weights)

    def scores_of(self, read: tuple[NDArray[Any], ...], weights: Mapping[str, Floats]) -> Floats:
        """The scores of examples by their `features`."""
        given = {p.name: weights[p.name] for p in self.network.parameters}
        names = self.step.inputs

        def judge(*parts: NDArray[Any]) -> tuple[NDArray[Any], ...]:
            return (self.judge(**dict(zip(names, parts, strict=True)), **given),)

        return in_parts(judge, read, self.judged)[0]


def programs(run: Run, data: Examples, threads: int) -> Programs:
    """The programs of a run on such examples.

    Raises:
        DtypelabError: the model does not take such examples, or has no step in these formats.
    """
    example = data.x.shape[1:]
    judged = min(JUDGED, at_once(run.n_test, example))
    key = run.path, run.model_sha256, run.batch, judged, example
    plan = planned(run.path, run.model_sha256, run.qat, data) if run.qat else None
    return _programs(key, run.rules, run.formats, threads, run.qat, _Same(plan))


@lru_cache(maxsize=4)
def float32_scores(path: Path, digest: str, data: Examples, threads: int) -> Floats:
    """What the model file gives to the test examples, in float32. `digest`: of the file."""
    import compiler

    example = data.x_test.shape[1:]
    size = min(JUDGED, at_once(len(data.x_test), example))
    exe = compiler.build(model(path, size, example), threads=threads)
    return in_parts(lambda part: (exe(part),), (data.x_test,), size)[0]


def test_labels(run: Run, data: Examples, threads: int) -> NDArray[np.int64]:
    """The right answers of the test examples; of data without labels, those of float32."""
    if data.y_test is not None:
        return data.y_test[: run.n_test]
    known = float32_scores(run.path, run.model_sha256, data, threads)
    answers: NDArray[np.int64] = known[: run.n_test].argmax(axis=1).astype(np.int64)
    return answers


@lru_cache(maxsize=4)
def float32_shares(
    path: Path, digest: str, batch: int, example: tuple[int, ...], temperature: float, threads: int
) -> Callable[[Floats], Floats]:
    """The shares that the model file gives the classes of a batch, in float32, of its scores
    divided by the temperature."""
    import compiler

    exe = compiler.build(model(path, batch, example), threads=threads)
    heat = np.float32(temperature)
    return lambda x: np.exp(log_shares(exe(x) / heat)).astype(np.float32)


def post_training_scores(run: Run, data: Examples, threads: int) -> Floats:
    """The scores of the test examples by the plan of a run, as it is calibrated."""
    import compiler
    import quantize

    assert run.qat is not None
    x = data.x_test[: run.n_test]
    plan = planned(run.path, run.model_sha256, run.qat, data)
    size = min(JUDGED, at_once(run.n_test, x.shape[1:]))
    exe = compiler.build(
        quantize.realize(model(run.path, size, x.shape[1:]), plan), threads=threads
    )
    return in_parts(lambda part: (exe(part),), (x,), size)[0]


def in_parts(
    called: Callable[..., tuple[NDArray[Any], ...]], given: tuple[NDArray[Any], ...], size: int
) -> tuple[NDArray[Any], ...]:
    """The results of a call that takes `size` rows of each array, for all rows; the last ones
    filled up with zeros."""
    found, count = [], len(given[0])
    for start in range(0, count, size):
        rows = min(size, count - start)
        parts = [np.zeros((size, *a.shape[1:]), a.dtype) for a in given]
        for part, a in zip(parts, given, strict=True):
            part[:rows] = a[start : start + rows]
        found.append([a[:rows] for a in called(*parts)])
    return tuple(np.concatenate(results) for results in zip(*found, strict=True))


def _all(results: NDArray[Any] | list[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    return tuple(results) if isinstance(results, list) else (results,)


@dataclass(frozen=True, eq=False)
class _Same:
    """A plan as a key: plans are not hashed, and `planned` gives the same one again."""

    plan: Plan | None

    def __hash__(self) -> int:
        return id(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.plan is other.plan


@lru_cache(maxsize=2)
def _programs(
    key: tuple[Path, str, int, int, tuple[int, ...]], rules: Rules, formats: Formats, threads: int,
    qat: Qat | None, same: _Same,
) -> Programs:  # fmt: skip
    import compiler
    from compiler.ir.expr import IRModule

    path, _, batch, judged, example = key
    made = None
    if qat is None or same.plan is None:
        net, judged_net = (network(model(path, n, example)) for n in (batch, judged))
    else:
        made = quantized(model(path, batch, example), same.plan, qat)
        net, judged_net = (
            made.network,
            quantized(model(path, judged, example), same.plan, qat).network,
        )
    front = None
    if qat is not None and qat.layers:
        net, parts = parts_of(net).tail, parts_of(judged_net)
        judged_net = parts.tail
        front = compiler.build(IRModule({"main": parts.front}), threads=threads)
    step = training_step(net, rules, formats)
    judge = compiler.build(judging(judged_net, formats), threads=threads)
    run_step = compiler.build(step.module, threads=threads)
    return Programs(net, step, run_step, judge, judged, made, front)


def judging(net: Network, formats: Formats) -> IRModule:
    """The network after training, in the format of the forward pass, rounding to nearest."""
    part = {b.var.name: FORWARD for b in net.function.bindings}
    module = net.module.with_function("main", tagged(net.function, part))
    return in_formats(module, replace(formats, forward=formats.forward.to_nearest))


def one_hot(labels: NDArray[np.int64], classes: int) -> Floats:
    """float32 [n, classes]: 1 for the class of each, else 0.

    Raises:
        ConfigError: there are more classes than scores.
    """
    if labels.max() >= classes:
        raise ConfigError(f"there is a label {labels.max()}, but the model has {classes} scores")
    out: Floats = np.zeros((len(labels), classes), np.float32)
    out[np.arange(len(labels)), labels] = 1
    return out
