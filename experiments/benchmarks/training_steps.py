"""Training steps: forward, loss, gradients and update, in formats beside our own float32, and
torch's where it is installed.

Shipped networks, and those of results/training_cnn.toml and training_vit.toml, from random weights,
in batches of digits. Every contender takes its next step again and again, after a few that its
weights have moved by: what gradients are like decides how many sums are computed twice.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from experiments.benchmarks.report import Row
from experiments.benchmarks.turns import Effort, always, medians
from experiments.measure.disturbance import pinned
from experiments.training.data import Examples
from experiments.training.loop import Pace, beginning
from experiments.training.spec import Run, load_training
from experiments.zoo.untrained import MODELS

SHIPPED = ("mnist_mlp", "mnist_resnet8")
NETWORKS = (*SHIPPED, *MODELS)
BATCH = 50
STEPS = 8
"""Steps before the one that is measured."""
NATIVE, TORCH = "float32", "torch float32"
MOST = 12.0
"""The most that a step in posits of 16 bits may take, in our float32's."""
FORMATS: dict[str, Any] = {
    NATIVE: NATIVE,
    "posit16_es1": {"forward": "posit16_es1"},
    "posit16_es2": {"forward": "posit16_es2"},
    "posit16_es1, weights too": "posit16_es1",
    "bfloat16": {"forward": "bfloat16"},
    "float8 e4m3, e5m2, sums float32": {
        "forward": "float8_e4m3fn", "backward": "float8_e5m2", "accumulate": "float32",
    },
    "float8 e4m3, e5m2": {"forward": "float8_e4m3fn", "backward": "float8_e5m2"},
    "posit8_es2, sums float32": {"forward": "posit8_es2", "accumulate": "float32"},
    "posit8_es2": {"forward": "posit8_es2"},
}  # fmt: skip
"""What a row calls a system, and how a specification writes it."""
BOUNDED = ("posit16_es1", "posit16_es2", "posit16_es1, weights too")


def run(effort: Effort) -> bool:
    """Measure and print all rows; whether every one passed."""
    with pinned(1):
        found = [row for name in NETWORKS for row in rows(name, effort)]
    for row in found:
        click.echo(str(row))
    return all(row.passed for row in found)


def rows(name: str, effort: Effort) -> list[Row]:
    """The figures of one network."""
    calls = steps(name)
    times = medians({key: always(call) for key, call in calls.items()}, effort)
    click.echo(f"training steps of {name}, batches of {BATCH}, one thread")
    for key, ms in times.items():
        click.echo(f"  {key:<52} {ms:9.3f} ms {times[NATIVE] / ms:8.3f}x")
    return [
        Row(f"{name}, {key} / {NATIVE}", ms / times[NATIVE], "x", most=_most(key))
        for key, ms in times.items()
        if key != NATIVE
    ]


def _most(key: str) -> float | None:
    return MOST if key in BOUNDED else None


def steps(name: str, systems: Mapping[str, Any] = FORMATS) -> dict[str, Callable[[], object]]:
    """What takes a step of a network's training, by the name of the system."""
    with tempfile.TemporaryDirectory() as folder:
        model = name
        if name in MODELS:
            model = str(Path(folder) / f"{name}.onnx")
            Path(model).write_bytes(MODELS[name]())
        spec = load_training({
            "models": [model], "formats": [*systems.values()], "batch": BATCH, "epochs": 1,
            "schedule": {"rate": 0.01},
        })  # fmt: skip
        runs = zip(systems, spec.runs, strict=True)
        calls = {key: _step(run, spec.data) for key, run in runs}
    if importlib.util.find_spec("torch") is not None:
        calls[TORCH] = _torch_step(name, spec.data)
    return calls


def _step(run: Run, data: Examples) -> Callable[[], object]:
    state, after = beginning(run, data, Pace(run.steps, run.steps, 1))
    for _ in range(STEPS):
        state = after(state)
    return lambda: after(state)


def _torch_step(name: str, data: Examples) -> Callable[[], object]:
    """The same of torch's module, with fresh weights."""
    import torch

    from experiments.benchmarks.torch_untrained import torch_module
    from experiments.zoo.train import RECIPES

    torch.manual_seed(0)
    torch.set_num_threads(1)
    module = RECIPES[name].make() if name in SHIPPED else torch_module(name)[0]
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), 0.01, 0.9)
    chosen = np.arange(BATCH)
    assert data.y is not None
    wanted = torch.from_numpy(data.y[chosen])

    def step() -> None:
        x, y = torch.from_numpy(data.x[chosen]), wanted
        loss = torch.nn.functional.cross_entropy(module(x), y)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return step
