"""dtypelab tune and bench --tuned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compiler.tuning.log import append_records, read_log
from compiler.tuning.tuner import Tuning, tune
from experiments.cli.main import run_command
from experiments.pipeline import load_for_batch
from experiments.zoo import model_path

Capture = pytest.CaptureFixture[str]


def test_tune_writes_a_log_that_bench_applies(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "tune.jsonl"
    # A clock that prefers every candidate, so that there is something to apply.
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    arguments = ["tune", "mnist_mlp", "--budget", "1", "--seed", "5", "-o", str(log)]
    assert run_command([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["workloads"] == len(facts["records"]) == 2
    assert (facts["default_ms"], facts["tuned_ms"], facts["seed"]) == (2.0, 1.0, 5)
    records = read_log(log)
    assert [r.workload for r in records] == [r["workload"] for r in facts["records"]]
    assert run_command(arguments) == 0
    assert "2 of 2 workloads faster" in capsys.readouterr().out
    bench = ["bench", "mnist_mlp", "--runs", "2", "--warmup", "0"]
    assert run_command([*bench, "--tuned", str(log), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tuned_kernels"] == 2
    assert facts["speedup_vs_untuned"] > 0
    assert run_command([*bench, "--tuned", str(log)]) == 0
    assert "2 kernels with tiles from" in capsys.readouterr().out
    assert run_command([*bench, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuned_kernels"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "mnist_mlp"], "Missing option '-o'"),
        (["tune", "mnist_mlp", "--budget", "0", "-o", "{dir}/t"], "0.0 is not in the range"),
        (["tune", "mnist_mpl", "-o", "{dir}/t"], "did you mean 'mnist_mlp'"),
        (["tune", "mnist_mlp", "-o", "{dir}/no/t"], "there is no folder"),
        (["tune", "mnist_mlp", "--target", "lvm", "-o", "{dir}/t"], "unknown target 'lvm'"),
        (["bench", "mnist_mlp", "--tuned", "{dir}/no"], "cannot read the tuning log"),
        (["bench", "mnist_mlp", "--tuned", __file__], "is no tuning log"),
    ],
)
def test_bad_input(capsys: Capture, tmp_path: Path, arguments: list[str], message: str) -> None:
    assert run_command([a.replace("{dir}", str(tmp_path)) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_default_is_kept_where_nothing_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (1.0, 0.99))
    path = model_path("mnist_mlp")
    assert path is not None
    done = tune(load_for_batch(path, (1, 28, 28), 1), log=tmp_path / "t", trials=5)
    assert isinstance(done, Tuning)
    assert done.records == ()
    append_records(tmp_path / "t", [])
    assert (tmp_path / "t").read_text() == ""
