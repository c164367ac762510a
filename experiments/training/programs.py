"""The programs of a training: the step, and the network as it is judged, compiled once for all runs
that share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError
from experiments.layers.answers import log_shares

from .data import Examples
from .formats import FORWARD, Formats, in_formats, tagged
from .models import model
from .network import Floats, Network, network
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
        judge: the compiled network, whose parameters are the input and the weights.
        judged: how many examples it takes at once.
        quantized: how the network is quantized, if it is.
    """

    network: Network
    step: Step
    run_step: Executable
    judge: Executable
    judged: int
    quantized: Quantized | None = None

    def scores(self, x: Floats, weights: Mapping[str, Floats]) -> Floats:
        """The scores of examples [n, ...], float32 [n, classes]."""
        given = {p.name: weights[p.name] for p in self.network.parameters}
        return in_parts(lambda part: self.judge(**{self.step.input: part}, **given), x, self.judged)


def programs(run: Run, data: Examples, threads: int) -> Programs:
    """The programs of a run on such examples.

    Raises:
        DtypelabError: the model does not take such examples, or has no step in these formats.
    """
    example = data.x.shape[1:]
    key = run.path, run.model_sha256, run.batch, min(JUDGED, run.n_test), example
    plan = planned(run.path, run.model_sha256, run.qat, data) if run.qat else None
    return _programs(key, run.rules, run.formats, threads, run.qat, _Same(plan))


@lru_cache(maxsize=4)
def float32_scores(path: Path, digest: str, data: Examples, threads: int) -> Floats:
    """What the model file gives to the test examples, in float32. `digest`: of the file."""
    import compiler

    size = min(JUDGED, len(data.x_test))
    exe = compiler.build(model(path, size, data.x_test.shape[1:]), threads=threads)
    return in_parts(lambda part: exe(part), data.x_test, size)


@lru_cache(maxsize=4)
def float32_shares(
    path: Path, digest: str, batch: int, example: tuple[int, ...], threads: int
) -> Callable[[Floats], Floats]:
    """The shares that the model file gives the classes of a batch, in float32."""
    import compiler

    exe = compiler.build(model(path, batch, example), threads=threads)
    return lambda x: np.exp(log_shares(exe(x))).astype(np.float32)


def post_training_scores(run: Run, data: Examples, threads: int) -> Floats:
    """The scores of the test examples by the plan of a run, as it is calibrated."""
    import compiler
    import quantize

    assert run.qat is not None
    x = data.x_test[: run.n_test]
    plan, size = planned(run.path, run.model_sha256, run.qat, data), min(JUDGED, run.n_test)
    exe = compiler.build(
        quantize.realize(model(run.path, size, x.shape[1:]), plan), threads=threads
    )
    return in_parts(lambda part: exe(part), x, size)


def in_parts(scores: Callable[[Floats], Floats], x: Floats, size: int) -> Floats:
    """The scores of examples [n, ...], so many at once, the last ones filled up with zeros."""
    found = []
    for start in range(0, len(x), size):
        part = x[start : start + size]
        whole = np.zeros((size, *x.shape[1:]), np.float32)
        whole[: len(part)] = part
        found.append(scores(whole)[: len(part)])
    return np.concatenate(found)


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
    step = training_step(net, rules, formats)
    judge = compiler.build(judging(judged_net, formats), threads=threads)
    return Programs(net, step, compiler.build(step.module, threads=threads), judge, judged, made)


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
