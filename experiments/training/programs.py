"""The programs of a training: the step, and the network as it is judged, compiled once for all runs
that share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, DtypelabError
from experiments.zoo import model_files

from .formats import FORWARD, Formats, in_formats, tagged
from .network import Floats, Network, network
from .step import Rules, Step, training_step

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule

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
    """

    network: Network
    step: Step
    run_step: Executable
    judge: Executable
    judged: int

    def scores(self, x: Floats, weights: Mapping[str, Floats]) -> Floats:
        """The scores of examples [n, ...], float32 [n, classes]."""
        given = {p.name: weights[p.name] for p in self.network.parameters}
        found = []
        for start in range(0, len(x), self.judged):
            part = x[start : start + self.judged]
            whole = np.zeros((self.judged, *x.shape[1:]), np.float32)
            whole[: len(part)] = part
            found.append(self.judge(**{self.step.input: whole}, **given)[: len(part)])
        return np.concatenate(found)


def programs(run: Run, example: tuple[int, ...], threads: int) -> Programs:
    """The programs of a run on examples of a shape.

    Raises:
        DtypelabError: the model does not take such examples, or has no step in these formats.
    """
    key = run.path, run.model_sha256, run.batch, min(JUDGED, run.n_test), example
    return _programs(key, run.rules, run.formats, threads)


@lru_cache(maxsize=2)
def _programs(
    key: tuple[Path, str, int, int, tuple[int, ...]], rules: Rules, formats: Formats, threads: int
) -> Programs:
    import compiler

    path, _, batch, judged, example = key
    net = network(_model(path, batch, example))
    step = training_step(net, rules, formats)
    judged_net = network(_model(path, judged, example))
    judge = compiler.build(judging(judged_net, formats), threads=threads)
    return Programs(net, step, compiler.build(step.module, threads=threads), judge, judged)


def judging(net: Network, formats: Formats) -> IRModule:
    """The network after training, in the format of the forward pass."""
    part = {b.var.name: FORWARD for b in net.function.bindings}
    return in_formats(net.module.with_function("main", tagged(net.function, part)), formats)


def _model(path: Path, batch: int, example: tuple[int, ...]) -> IRModule:
    """The imported model, for so many examples at once."""
    try:
        names = model_files.input_names(path)
        if len(names) != 1:
            raise ConfigError(f"training takes models with one input, not {', '.join(names)}")
        return model_files.load_model(path, ((names[0], (batch, *example)),))
    except DtypelabError as error:
        raise ConfigError(f"{path.name} in batches of {batch}: {error}") from error


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
