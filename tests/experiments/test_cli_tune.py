"""dtypelab tune and bench --tuned."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from compiler.scheduling.tuning_log import append_records, read_log
from compiler.tuning.trials import read_trials
from compiler.tuning.tuner import Tuning, tune
from experiments.cli.main import run_command
from experiments.zoo import model_path
from experiments.zoo.model_files import load_for_batch

Capture = pytest.CaptureFixture[str]


def test_tune_writes_a_log_that_bench_applies(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "tune.jsonl"
    # A clock that prefers every candidate, so that there is something to apply.
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    arguments = ["tune", "mnist_mlp", "--trials", "2", "--seed", "5", "-o", str(log)]
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
    done = tune(load_for_batch(path, (1, 28, 28), 1), log=tmp_path / "t", trials=2)
    assert isinstance(done, Tuning)
    assert done.records == ()
    append_records(tmp_path / "t", [])
    assert read_log(tmp_path / "t") == []
    assert len([t for t in read_trials(tmp_path / "t") if t.choice]) == len(done.trials)


def test_an_int8_network_is_tuned_and_measured(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "tune.jsonl"
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    int8 = ["mnist_mlp", "--calib", "random", "--set", "weight_granularity=tensor"]
    assert run_command(["tune", *int8, "--trials", "2", "-o", str(log), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["dtype"] == "int8"
    assert facts["records"]
    assert any("uint8" in r["text"] for r in facts["records"])
    bench = ["bench", *int8, "--runs", "2", "--warmup", "0", "--tuned", str(log), "--json"]
    assert run_command(bench) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["dtype"] == "int8"
    assert measured["tuned_kernels"] == len(facts["records"])
    assert measured["speedup_vs_untuned"] > 0
    assert measured["speedup_vs_float32"] > 0
    # float32 networks have other workloads: the log does not touch them.
    assert run_command(["bench", "mnist_mlp", *bench[-7:]]) == 0
    assert json.loads(capsys.readouterr().out)["tuned_kernels"] == 0


def test_bench_int8_beside_onnxruntime(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    from experiments.benchmarks import models

    monkeypatch.setattr(models, "folder", lambda: tmp_path)
    arguments = ["bench", "mnist_mlp", "--calib", "mnist1k", "--vs", "onnxruntime", "--json"]
    assert run_command([*arguments, "--runs", "2", "--warmup", "1"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["latency_ms_onnxruntime_u8s8"]["median"] > 0
    assert facts["speedup_vs_onnxruntime_u8s8"] > 0
    assert facts["speedup_vs_onnxruntime"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "calibrate=minmax"], "give --calib as well"),
        (["--calib", "random", "--dtype", "bfloat16"], "leave --dtype out"),
        (["--calib", "random", "--set", "calibrate"], "is not KEY=VALUE"),
        (["--vs", "openvino"], "pip install openvino"),
    ],
)
def test_bad_int8_options(
    capsys: Capture, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # as if it were not installed
    assert run_command(["bench", "mnist_mlp", "--runs", "1", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
