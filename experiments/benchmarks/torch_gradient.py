"""A training step's forward and backward pass beside torch's eager ones: ResNet-18, a vision
transformer and two layers of BERT, in batches of 8.

Random weights; ResNet-18's batch norms are by the statistics of the batch. One compiled program
gives the loss, the running statistics and all gradients.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from compiler.errors import UnsupportedError
from experiments.benchmarks import torch_bert
from experiments.benchmarks.networks import Row
from experiments.benchmarks.turns import Effort, always, medians
from experiments.measure.disturbance import pinned

BATCH, SIZE, CLASSES = 8, 224, 1000
OURS, TORCH = "joint program", "torch"
LEAST = {"resnet18": 1 / 1.3, "vit_b_32": None, "bert": None}
"""Least ratio of torch's time to ours; None: it is shown."""
NEAR = 1e-4
"""How far the loss may be from torch's, relatively."""
Module = Any


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
        for name in LEAST:
            passed &= _measured(name, count, effort)
    return passed


def _network(torch: Any, name: str) -> tuple[Module, Any, str, Any]:
    """A network in evaluation mode, an input, a loss and what is wanted."""
    torch.manual_seed(0)
    if name == "bert":
        x = torch.randint(0, torch_bert.WORDS, (BATCH, torch_bert.TOKENS))
        wanted = torch.randn(BATCH, torch_bert.TOKENS, torch_bert.WIDTH)
        return torch_bert.network_of(torch, torch_bert.FEW).eval(), x, "squared_error", wanted
    import torchvision

    network = torchvision.models.get_model(name, weights=None).eval()
    for p in network.parameters():  # a head of zeros would give zeros
        if not p.any():
            torch.nn.init.normal_(p, std=0.02)
    x, labels = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, CLASSES, (BATCH,))
    return network, x, "cross_entropy", labels


def _measured(name: str, threads: int, effort: Effort) -> bool:
    import torch

    import compiler

    network, x, loss, wanted = _network(torch, name)
    mod = compiler.from_torch(network, (x,))
    weights = dict(compiler.parameters(mod))
    if statistics := any(isinstance(m, torch.nn.BatchNorm2d) for m in network.modules()):
        mod, _ = compiler.with_batch_statistics(mod)
    names = [n for n, _ in network.named_parameters() if n in weights]
    both = compiler.gradient(compiler.with_loss(mod, loss, "wanted"), names)
    exe = compiler.build(both, threads=threads)
    known = {**weights, "wanted": wanted.numpy()}
    args = [known.get(p.name, x.numpy()) for p in both.main.params]
    network.train(statistics)
    their_loss: Any = getattr(torch.nn.functional, {"squared_error": "mse_loss"}.get(loss, loss))

    def eager() -> Any:
        network.zero_grad()
        found = their_loss(network(x), wanted)
        torch.autograd.backward(found)
        return found

    title = f"batch {BATCH}, {threads} thread{'s' * (threads > 1)}"
    click.echo(f"{name} forward and backward, torch {torch.__version__}, {title}")
    torch.set_num_threads(threads)
    with pinned(threads):
        want, got = float(eager().detach()), float(np.asarray(exe(*args)[0]))
        times = medians({OURS: always(lambda: exe(*args)), TORCH: always(eager)}, effort)
    for contender, value in times.items():
        click.echo(f"  {contender:<26} {value:9.1f} ms")
    wrong = "" if abs(got - want) <= NEAR * abs(want) else f"a loss of {got}, torch's is {want}"
    row = Row(f"{name} gradients vs torch, {title}", times[TORCH] / times[OURS], LEAST[name], wrong)
    click.echo(f"{row}\n")
    return row.passed
