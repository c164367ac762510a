"""A training step's forward and backward of ResNet-18, batch 8, beside torch's eager one.

torchvision's module with random weights, batch norms by the statistics of the batch, cross entropy:
one compiled program gives the loss, the running statistics and all gradients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from compiler.errors import UnsupportedError
from experiments.benchmarks.networks import Row
from experiments.benchmarks.turns import Effort, always, medians
from experiments.measure.disturbance import pinned

BATCH, SIZE, CLASSES = 8, 224, 1000
OURS, TORCH = "joint program", "torch"
LEAST = 1 / 1.3
"""Least ratio of torch's time to ours."""
NEAR = 1e-4
"""How far the loss may be from torch's, relatively."""


def run(threads: Sequence[int], effort: Effort) -> bool:
    """Measure, print rows, and tell whether all pass.

    Raises:
        UnsupportedError: torch or torchvision is not installed.
    """
    if not all(importlib.util.find_spec(name) for name in ("torch", "torchvision")):
        raise UnsupportedError(
            "this benchmark measures against torch: pip install torch torchvision"
        )
    passed = True
    for count in sorted(threads):
        passed &= _measured(count, effort)
    return passed


def _measured(threads: int, effort: Effort) -> bool:
    import torch
    import torchvision

    import compiler

    torch.manual_seed(0)
    network: Any = torchvision.models.resnet18(weights=None)
    x, labels = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, CLASSES, (BATCH,))
    mod = compiler.from_torch(network.eval(), (x,))
    weights = dict(compiler.parameters(mod))
    mod, _ = compiler.with_batch_statistics(mod)
    names = [name for name, _ in network.named_parameters()]
    both = compiler.gradient(compiler.with_loss(mod, "cross_entropy", "labels"), names)
    exe = compiler.build(both, threads=threads)
    known = {**weights, "labels": labels.numpy()}
    args = [known.get(p.name, x.numpy()) for p in both.main.params]
    network.train()

    def eager() -> Any:
        network.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), labels)
        torch.autograd.backward(loss)
        return loss

    title = f"batch {BATCH}, {threads} thread{'s' * (threads > 1)}"
    click.echo(f"ResNet-18 forward and backward, torch {torch.__version__}, {title}")
    torch.set_num_threads(threads)
    with pinned(threads):
        want, got = float(eager().detach()), float(np.asarray(exe(*args)[0]))
        times = medians({OURS: always(lambda: exe(*args)), TORCH: always(eager)}, effort)
    for name, value in times.items():
        click.echo(f"  {name:<26} {value:9.1f} ms")
    wrong = "" if abs(got - want) <= NEAR * abs(want) else f"a loss of {got}, torch's is {want}"
    row = Row(f"resnet18 gradients vs torch, {title}", times[TORCH] / times[OURS], LEAST, wrong)
    click.echo(f"{row}\n")
    return row.passed
