"""Training that a kill cannot spoil: checkpoints are whole or absent, and a run that goes on from
one takes the same batches as one that was never stopped.

The learning rate rises over the first steps, stays, and falls linearly to zero over the last part
(Hägele et al. 2024), so that a run that must end early still gets its fall.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Recipe:
    """How long and how fast; `fall` steps of falling rate end it."""

    steps: int
    batch: int
    rate: float
    rise: int
    fall: int
    seed: int = 0
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate_at(self, step: int, steps: int, fall: int) -> float:
        """The learning rate of a step of `steps`, in the last `fall` of which it falls."""
        return self.rate * min(1.0, (step + 1) / self.rise, (steps - step) / fall)


#: Loss of a batch of the training step's number, drawn by the generator.
Loss = Callable[[Any, np.random.Generator], Any]


def train(
    network: Any,
    loss_of: Loss,
    recipe: Recipe,
    folder: Path,
    evaluate: Callable[[Any], dict[str, float]],
    *,
    every_s: float = 60.0,
    threads: int = 1,
) -> Any:
    """Train to the end, from the checkpoint in `folder` if there is one; appends to `log.jsonl`.

    A file `cooldown` in the folder makes the rate fall from the next checkpoint on: the run then
    ends `recipe.fall` steps later, or as many as the file says.

    Args:
        network: torch module.
        loss_of: batch loss.
        recipe: how.
        folder: of checkpoint.pt and log.jsonl.
        evaluate: figures for the log.
        every_s: seconds between checkpoints.
        threads: torch's.

    Returns:
        The network, trained.
    """
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    matrices = [p for p in network.parameters() if p.ndim > 1]
    vectors = [p for p in network.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.rate,
        betas=(0.9, 0.95),
        weight_decay=recipe.weight_decay,
    )
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, log = folder / "checkpoint.pt", folder / "log.jsonl"
    step, steps, fall, seconds = 0, recipe.steps, recipe.fall, 0.0

    def note(**fields: Any) -> None:
        with log.open("a", encoding="utf-8") as file:
            print(json.dumps(fields), file=file)

    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        step, steps, seconds = saved["step"], saved["steps"], saved["seconds"]
        fall = saved.get("fall", fall)
        note(resumed=step)
    else:
        note(recipe=asdict(recipe), torch=torch.__version__, threads=threads)
    began = time.monotonic() - seconds
    losses: list[float] = []

    def save() -> None:
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"step": step, "steps": steps, "fall": fall}
        state["seconds"] = time.monotonic() - began
        torch.save(state, checkpoint.with_suffix(".new"))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)
        mean = float(np.mean(losses)) if losses else None
        figures = {"step": step, "steps": steps, "seconds": round(state["seconds"], 1)}
        note(**figures, loss=mean, **evaluate(network))
        losses.clear()

    due = time.monotonic() + every_s
    while step < steps:
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(step, steps, fall)
        network.train()
        loss = loss_of(network, np.random.default_rng((recipe.seed, step)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        optimizer.step()
        losses.append(float(loss.detach()))
        step += 1
        if time.monotonic() >= due:
            if (ask := folder / "cooldown").exists() and steps - step > fall:
                fall = int(ask.read_text().strip() or fall)
                steps = step + fall
            save()
            due = time.monotonic() + every_s
    save()
    return network.eval()
