"""results/training_torch.csv: what torch and we reach from the same weights."""

from pathlib import Path

import pandas as pd
import pytest

from experiments.benchmarks.torch_training import SEEDS, SPECS, Pair, interval, runs
from experiments.training.spec import load_training

RESULTS = Path(__file__).parents[2] / "results"


def recorded(model: str) -> list[Pair]:
    rows = pd.read_csv(RESULTS / "training_torch.csv")
    return [Pair(**row) for row in rows[rows["model"] == model].to_dict("records")]


@pytest.mark.parametrize("model", SPECS)
def test_the_interval_of_the_difference_holds_zero(model: str) -> None:
    pairs = recorded(model)
    assert [p.seed for p in pairs] == [*SEEDS]
    _, low, high = interval(pairs)
    assert low <= 0 <= high
    assert high - low < 0.02


@pytest.mark.parametrize("model", SPECS)
def test_the_readme_says_so(model: str) -> None:
    pairs = recorded(model)
    mean, low, high = (100 * v for v in interval(pairs))
    ours, torch = (100 * sum(getattr(p, k) for p in pairs) / len(pairs) for k in ("ours", "torch"))
    line = f"| {model} | {ours:.2f} | {torch:.2f} | {mean:.2f} | [{low:.2f}, {high:.2f}] |"
    assert line in (RESULTS / "README.md").read_text()


@pytest.mark.parametrize(("model", "table"), [("mnist_cnn", "cnn"), ("mnist_vit_small", "vit")])
def test_it_is_the_float32_of_the_table(model: str, table: str, tmp_path: Path) -> None:
    (run,) = runs(model, tmp_path, (0,)).runs
    assert run.config_hash == load_training(RESULTS / f"training_{table}.toml").runs[0].config_hash
