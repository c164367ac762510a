"""Training in float32 beside torch: the same weights, batches and learning rates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import tiny_files

from experiments.benchmarks import torch_training
from experiments.training.checkpoints import Checkpoint
from experiments.training.initial import initial, order
from experiments.training.loop import Pace, train_run
from experiments.training.programs import programs
from experiments.training.spec import Run, TrainSpec, load_training

torch = pytest.importorskip("torch")

OPTIMIZERS = {
    "sgd": {"name": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "adam": {"name": "adam", "weight_decay": 0.01},
    "adamw": {"name": "adamw", "weight_decay": 0.1},
}


def torch_optimizer(run: Run, parameters: Any) -> Any:
    o = run.rules.optimizer
    if o.name == "sgd":
        return torch.optim.SGD(
            parameters, run.schedule.rate, o.momentum, weight_decay=o.weight_decay,
            nesterov=o.nesterov,
        )  # fmt: skip
    kind = torch.optim.Adam if o.name == "adam" else torch.optim.AdamW
    return kind(
        parameters, run.schedule.rate, (o.beta1, o.beta2), o.epsilon, weight_decay=o.weight_decay
    )


def trained_by_torch(run: Run, spec: TrainSpec, module: Any, names: dict[str, str]) -> Any:
    """Weights by our names, and the loss of every step."""
    made = programs(run, spec.data, 1)
    begin, held = initial(made.network, run.seed), module.state_dict()
    module.load_state_dict(
        held | {theirs: torch.from_numpy(begin[ours].copy()) for ours, theirs in names.items()}
    )
    optimizer, losses = torch_optimizer(run, module.parameters()), []
    module.train()
    for step in range(run.steps):
        epoch, place = divmod(step, run.steps_an_epoch)
        chosen = order(run.seed, epoch, run.n_train)[place * run.batch : (place + 1) * run.batch]
        for group in optimizer.param_groups:
            group["lr"] = run.schedule.at(step, run.steps)
        scores = module(torch.from_numpy(spec.data.x[chosen]))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(spec.data.y[chosen]))
        optimizer.zero_grad()
        loss.backward()
        if run.rules.clip_norm:
            torch.nn.utils.clip_grad_norm_(module.parameters(), run.rules.clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    after = module.state_dict()
    return {ours: after[theirs].numpy() for ours, theirs in names.items()}, losses


def compare(
    spec: TrainSpec, module: Any, names: dict[str, str], tmp_path: Path, atol: float
) -> None:
    (run,) = spec.runs
    kept = Checkpoint(tmp_path / "c.npz", run.config_hash)
    ours = train_run(run, spec.data, Pace(1000, 1, 1), kept, lambda *_: None)
    wanted, losses = trained_by_torch(run, spec, module, names)
    np.testing.assert_allclose([p.loss for p in ours.state.curve], losses, atol=atol)
    for name, array in wanted.items():
        np.testing.assert_allclose(ours.state.arrays[name], array, atol=atol, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_network_with_batch_normalization(optimizer: str, tmp_path: Path) -> None:
    schedule = {"name": "cosine", "rate": 0.02, "warmup": 3}
    change = {"optimizer": OPTIMIZERS[optimizer], "schedule": schedule, "clip_norm": 1.0}
    spec = load_training(tiny_files(tmp_path) | change | {"epochs": 4})
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    )  # fmt: skip
    names = {
        "conv.weight": "0.weight", "norm.gain": "1.weight", "norm.shift": "1.bias",
        "norm.variance": "1.running_var", "scores.weight": "4.weight", "scores.bias": "4.bias",
    }  # fmt: skip
    if optimizer in ("sgd", "nesterov"):  # else what is noise around 0 decides its direction
        names |= {"conv.bias": "0.bias", "norm.mean": "1.running_mean"}
    compare(spec, module, names, tmp_path, 2e-4)


@pytest.mark.thorough
def test_the_perceptron_of_the_digits(tmp_path: Path) -> None:
    spec = load_training({"models": ["mnist_mlp"], "epochs": 2, "batch": 64})
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    names = {"linear.weight": "1.weight", "linear.bias": "1.bias"}
    names |= {"logits.weight": "3.weight", "logits.bias": "3.bias"}
    compare(spec, module, names, tmp_path, 1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("model", torch_training.SPECS)
def test_networks_from_scratch_follow_torch(model: str, tmp_path: Path) -> None:
    spec = torch_training.runs(model, tmp_path, (0,), epochs=1, n_train=1000)
    run = spec.runs[0]
    ours = train_run(run, spec.data, Pace(1000, 1, 1), None, lambda *_: None)
    share, losses = torch_training.by_torch(run, spec.data)
    np.testing.assert_allclose([p.loss for p in ours.state.curve], losses, atol=2e-3)
    assert abs(ours.metric - share) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("model", torch_training.SPECS)
def test_networks_from_scratch_reach_what_torch_reaches(model: str, tmp_path: Path) -> None:
    spec = torch_training.runs(model, tmp_path)
    pairs = [torch_training.pair(run, spec.data) for run in spec.runs]
    _, low, high = torch_training.interval(pairs)
    assert low <= 0 <= high
