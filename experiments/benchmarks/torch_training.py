"""Networks trained from scratch in float32, beside torch: the same first weights, batches and
learning rates.

`python -m experiments.benchmarks.torch_training OUT.csv` trains each with every seed in both and
writes what they reach.
"""

from __future__ import annotations

import csv
import importlib.util
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click
import numpy as np

from compiler.errors import UnsupportedError
from experiments.benchmarks.torch_untrained import torch_module
from experiments.files import atomic_path
from experiments.measure.statistics import student95
from experiments.training.data import Examples
from experiments.training.initial import initial, order
from experiments.training.loop import Pace, train_run
from experiments.training.programs import programs
from experiments.training.spec import Run, load_training
from experiments.zoo.untrained import MODELS

SEEDS = (0, 1, 2, 3, 4)
_COSINE = {"name": "cosine", "warmup": 40}
SPECS: Mapping[str, dict[str, Any]] = {
    "mnist_cnn": {
        "optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 5e-4},
        "schedule": {**_COSINE, "rate": 0.05},
    },
    "mnist_vit_small": {
        "optimizer": {"name": "adamw", "weight_decay": 0.05},
        "schedule": {**_COSINE, "rate": 0.006},
    },
}
"""How each is trained; 10 epochs in batches of 50, as in results/training_cnn.toml and
training_vit.toml."""


@dataclass(frozen=True)
class Pair:
    """One network with one seed.

    Attributes:
        model, seed, steps: what was trained.
        ours, torch: the shares of right answers on the test examples.
        our_loss, torch_loss: the mean loss of the last ten steps.
        torch_version: which torch.
    """

    model: str
    seed: int
    steps: int
    ours: float
    torch: float
    our_loss: float
    torch_loss: float
    torch_version: str


def needed() -> None:
    """Raise UnsupportedError if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("this measures against torch: pip install torch")


def runs(model: str, folder: Path, seeds: tuple[int, ...] = SEEDS, **settings: Any) -> Any:
    """The specification of a network, whose file is put into `folder`."""
    path = folder / f"{model}.onnx"
    path.write_bytes(MODELS[model]())
    whole = {"models": [str(path)], "epochs": 10, "batch": 50, "seeds": list(seeds)}
    return load_training({**whole, **SPECS[model], **settings})


def pair(run: Run, data: Examples) -> Pair:
    """A run by us, and by torch."""
    import torch

    trained = train_run(run, data, Pace(run.steps, 10, 1), None, lambda *_: None)
    share, losses = by_torch(run, data)
    return Pair(
        run.model, run.seed, run.steps, trained.metric, share, trained.loss,
        float(np.mean(losses[-10:])), str(torch.__version__),
    )  # fmt: skip


def by_torch(run: Run, data: Examples) -> tuple[float, list[float]]:
    """(torch's share of right answers on the test examples, the loss of every step)."""
    import torch

    torch.set_num_threads(1)
    module, names = torch_module(run.model)
    begin = initial(programs(run, data, 1).network, run.seed)
    given = {theirs: torch.from_numpy(begin[ours].copy()) for ours, theirs in names.items()}
    module.load_state_dict(module.state_dict() | given)
    o, losses = run.rules.optimizer, []
    descent: Any
    if o.name == "sgd":
        descent = torch.optim.SGD(
            module.parameters(), run.schedule.rate, o.momentum, weight_decay=o.weight_decay
        )
    else:
        descent = torch.optim.AdamW(
            module.parameters(), run.schedule.rate, (o.beta1, o.beta2), o.epsilon, o.weight_decay
        )
    assert data.y is not None
    assert data.y_test is not None
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    module.train()
    for step in range(run.steps):
        epoch, place = divmod(step, run.steps_an_epoch)
        chosen = order(run.seed, epoch, run.n_train)[place * run.batch : (place + 1) * run.batch]
        for group in descent.param_groups:
            group["lr"] = run.schedule.at(step, run.steps)
        loss = torch.nn.functional.cross_entropy(module(x[chosen]), y[chosen])
        descent.zero_grad()
        torch.autograd.backward(loss)
        descent.step()
        losses.append(float(loss.detach()))
    module.eval()
    with torch.no_grad():
        answers = module(torch.from_numpy(data.x_test[: run.n_test])).argmax(1).numpy()
    return float((answers == data.y_test[: run.n_test]).mean()), losses


def interval(pairs: list[Pair]) -> tuple[float, float, float]:
    """(mean of ours - torch's, and the ends of its 95 % interval over seeds, Student's t)."""
    differences = np.array([p.ours - p.torch for p in pairs])
    half = student95(len(pairs) - 1) * float(differences.std(ddof=1)) / len(pairs) ** 0.5
    return (
        float(differences.mean()),
        float(differences.mean() - half),
        float(differences.mean() + half),
    )


def main(out: str) -> None:
    """Train all in both, write `out` and print a line of each network."""
    needed()
    found: list[Pair] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in SPECS:
            spec = runs(model, Path(folder))
            mine = [pair(run, spec.data) for run in spec.runs]
            mean, low, high = interval(mine)
            click.echo(
                f"{model}: ours {100 * np.mean([p.ours for p in mine]):.2f} %, torch "
                f"{100 * np.mean([p.torch for p in mine]):.2f} %, difference {100 * mean:.2f} "
                f"[{100 * low:.2f}, {100 * high:.2f}] points"
            )
            found += mine
    with atomic_path(Path(out)) as path, path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Pair)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, found))


if __name__ == "__main__":
    main(*sys.argv[1:])
