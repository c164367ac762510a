"""How well a model picks, by what logs have: nothing is measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from compiler.scheduling.choices import Sketch
from compiler.tuning.cost_model import CostModel
from compiler.tuning.features import NAMES
from compiler.tuning.trials import Trial, read_trials
from compiler.types.dtypes import Array
from experiments.benchmarks import cost_ranks
from experiments.benchmarks.__main__ import main
from experiments.benchmarks.cost_ranks import Rank, ranked, samples_of

KERNELS, CANDIDATES, SPLITS = 12, 12, 2


@pytest.fixture(autouse=True)
def few_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_ranks, "SPLITS", SPLITS)


def log(path: Path, seed: int = 0, kernels: int = KERNELS) -> Path:
    """Trials of kernels whose time follows one feature, which the analysis does not use."""
    rng, lines = np.random.default_rng(seed), []
    deciding = NAMES.index("strided_loads")
    for k in range(kernels):
        where = f"w{seed}.{k}", f"s{k % 6}", "p", "llvm", "avx2", "cpu"
        for n in range(CANDIDATES + 1):
            features = np.abs(rng.normal(size=len(NAMES))) * (4 if n else 0)
            ratio = 2.0 ** (features[deciding] / 4 - 1) if n else 1.0
            choice = {"mac": Sketch(unrolled=n)} if n else {}
            times = 1.0, float(ratio), 0.9, 1.1
            trial = Trial(
                *where, choice, *times, "", bool(k % 2), 0, tuple(features), f"kernel {k}"
            )
            lines.append(trial.to_line())
    path.write_text("".join(lines))
    return path


def test_kernels_of_a_log_in_cold_and_in_warm_caches_are_apart(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl")
    trials = read_trials(path)
    samples = samples_of([*trials, *(t for t in trials if t.workload == "w0.1")])
    assert len(samples) == KERNELS
    assert [len(s.trials) for s in samples[:2]] == [CANDIDATES, 2 * CANDIDATES]
    assert samples[0].times.tolist() == [t.ratio for t in trials[1 : CANDIDATES + 1]]


@pytest.mark.thorough
def test_a_kernel_is_ranked_by_what_others_taught(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    samples = samples_of(read_trials(log(tmp_path / "a.jsonl", kernels=36)))
    learned, analysis = ranked(samples), ranked(samples, learned=False)
    assert [s for s, _ in learned] == [s for s, _ in analysis] == samples
    assert np.median([r.order for _, r in learned]) > 0.6
    assert abs(np.median([r.order for _, r in analysis])) < 0.4


def test_no_kernel_is_ranked_by_its_own_structure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the model is taught of a structure, it is not asked about."""
    samples = samples_of(read_trials(log(tmp_path / "a.jsonl")))
    more = samples_of(read_trials(log(tmp_path / "b.jsonl", seed=1)))
    structure = {s.trials[0].features: s.structure for s in (*samples, *more)}
    of_first = {s.trials[0].array[:-2].tobytes(): s.structure for s in samples}
    asked = []

    class Watching(CostModel):
        def __init__(self, learning: bool) -> None:
            super().__init__(learning=False)
            self.taught: set[str] = set()

        def add(self, features: Array, default: Array, ratio: float) -> None:
            if name := structure.get(tuple(features)):
                self.taught.add(name)

        def predict(self, features: Sequence[Array], default: Array) -> Array:
            name = of_first[features[0][:-2].tobytes()]
            assert name not in self.taught
            asked.append(len(self.taught))
            return super().predict(features, default)

    monkeypatch.setattr(cost_ranks, "CostModel", Watching)
    ranked(samples, more=more)
    assert len(asked) == KERNELS * SPLITS
    assert min(asked) >= 4


def test_the_mean_of_several_picks() -> None:
    one, other = Rank(0.0, 0.02, 1, 1, 1.0, 0.9), Rank(0.2, 0.3, 0, 0, 1.21, 0.7)
    mean = Rank.mean([one, other])
    assert mean.position == pytest.approx(0.1)
    assert (mean.within, mean.strictly) == (0.5, 0.5)
    assert mean.loss == pytest.approx(1.1)
    assert mean.order == pytest.approx(0.8)
    assert Rank.mean([one]) == one


@pytest.mark.thorough
def test_further_kernels_help(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    few = samples_of(read_trials(log(tmp_path / "a.jsonl", kernels=6)))
    more = samples_of(read_trials(log(tmp_path / "b.jsonl", seed=1, kernels=36)))
    assert {s.structure for s in few} == {s.structure for s in more}
    alone, together = (np.mean([r.order for _, r in ranked(few, more=m)]) for m in ([], more))
    assert together > alone


@pytest.mark.thorough
def test_logs_on_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    paths = [log(tmp_path / "a.jsonl"), log(tmp_path / "b.jsonl", seed=1)]
    given = [x for p in paths for x in ("--log", str(p))]
    result = CliRunner().invoke(main, ["cost_model", *given])
    assert result.exit_code in (0, 1)
    assert result.output.count(f"{KERNELS} kernels, {KERNELS * CANDIDATES} trials") == 2
    assert result.output.count("learned from all: the pick is in the top 5 %") == 2
    assert ("PASS" in result.output) == (result.exit_code == 0)


def test_a_log_that_says_too_little(tmp_path: Path) -> None:
    path = log(tmp_path / "a.jsonl", kernels=3)
    result = CliRunner().invoke(main, ["cost_model", "--log", str(path)])
    assert result.exit_code == 2
    assert "less than 5 kernels with 10 candidates" in result.output
    old = [json.loads(x) | {"of": 0} for x in log(path).read_text().splitlines()]
    path.write_text("".join(json.dumps(x) + "\n" for x in old))
    result = CliRunner().invoke(main, ["cost_model", "--log", str(path)])
    assert result.exit_code == 2
    assert "whose features this version computes" in result.output
    missing = CliRunner().invoke(main, ["cost_model", "--log", str(tmp_path / "none")])
    assert missing.exit_code == 2
    assert "Traceback" not in missing.output
