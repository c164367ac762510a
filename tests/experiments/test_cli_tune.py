"""dtypelab tune and bench --tuned."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.scheduling.tuning_log import append_records, read_log
from compiler.tuning.session import Session
from compiler.tuning.subject import Subject
from compiler.tuning.trials import read_trials
from compiler.tuning.tuner import Tuning, tune
from experiments.cli.main import run_command
from experiments.zoo import model_path
from experiments.zoo.model_batches import load_for_batch

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _networks_are_not_timed_by_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks here are made up, and this one would be real."""
    monkeypatch.setattr("compiler.tuning.tuner.shares_in_network", lambda *given: {})


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
        (["tune", "mnist_mlp", "--seed", "-1", "-o", "{dir}/t"], "-1 is not in the range x>=0"),
        (["dtype", "check", "posit8_es0", "--seed", "-1"], "-1 is not in the range x>=0"),
        (["generate", "stdlib_lm", "--seed", "-1"], "-1 is not in the range x>=0"),
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


@pytest.mark.thorough
def test_a_tuning_says_what_became_of_each_workload(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "tune.jsonl"
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    line = ["tune", "mnist_mlp", "--trials", "3", "-o", str(log)]
    assert run_command([*line, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["trials"], facts["resumed"], facts["interrupted"]) == (6, 0, False)
    assert facts["budget_s"] == "inf"
    assert facts["curve_ms"] == [2.0, 2.0, 2.0]  # two workloads, both at 1 ms from the first trial
    for t in facts["tasks"]:
        assert (t["count"], t["trials"], t["kept"], t["curve"]) == (1, 3, True, [0.5] * 3)
        assert t["demand"]["float_products"] > 0
    assert run_command(line) == 0
    out = capsys.readouterr().out
    assert "6 candidates were in" in out
    assert "before ms" in out
    assert "50.0%" in out
    assert "2.00x" in out
    assert run_command(["tune", "--report", str(log)]) == 0
    out = capsys.readouterr().out
    assert "6 trials of 2 workloads, 2 of them with a record" in out
    assert out.count("0.500") == 2
    assert "dense_relu" in out


@pytest.mark.parametrize("content", [None, "name,age\nx,3\n"])
def test_a_report_needs_a_log(capsys: Capture, tmp_path: Path, content: str | None) -> None:
    log = tmp_path / "tune.jsonl"
    if content is not None:
        log.write_text(content)
    assert run_command(["tune", "--report", str(log)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.thorough
def test_a_log_of_another_cpu_is_refused_and_transferred(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = tmp_path / "mine.jsonl", tmp_path / "other.jsonl"
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    line = ["tune", "mnist_mlp", "--trials", "1", "-o"]
    assert run_command([*line, str(mine)]) == 0
    records = [replace(r, cpu="another") for r in read_log(mine)]
    append_records(other, records)
    capsys.readouterr()
    assert run_command(["bench", "mnist_mlp", "--runs", "1", "--tuned", str(other)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "other.jsonl was measured on another" in said.err
    assert said.err.count("\n") == 1
    new = str(tmp_path / "new.jsonl")
    assert run_command([*line, new, "--transfer", str(other)]) == 0
    assert [r.choice for r in read_log(new)] == [r.choice for r in records]
    capsys.readouterr()
    assert run_command([*line, str(other), "--transfer", str(other)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.thorough
def test_ctrl_c_says_how_to_go_on(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "tune.jsonl"
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    tell, told = Session._tell, []

    def interrupted(session: Session, subject: Subject) -> None:
        tell(session, subject)
        told.append(subject)
        if len(told) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Session, "_tell", interrupted)
    line = ["tune", "mnist_mlp", "--trials", "3", "-o", str(log)]
    assert run_command(line) == 1
    out = capsys.readouterr().out
    assert "1 of 2 workloads faster, 1 candidates" in out
    assert "interrupted: all candidates are in the log, and the same command goes on" in out
    assert run_command(line) == 0
    assert "1 candidates were in" in capsys.readouterr().out


@pytest.mark.thorough
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
