"""dtypelab tune --network: choices for the network as a whole, in the log that bench applies. Times
are given by the test."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compiler
from compiler.scheduling.network_choice import read_networks
from compiler.tuning import network
from experiments.cli.main import run_command

Capture = pytest.CaptureFixture[str]


def test_what_is_chosen_is_in_the_log_and_bench_applies_it(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "tune.jsonl"

    def in_turns(first: Any, second: Any, rounds: int) -> tuple[float, float]:
        return 10.0 / len(first.kernels), 10.0 / len(second.kernels)  # the more, the better

    monkeypatch.setattr(network, "in_turns", in_turns)
    monkeypatch.setattr(network, "repeated", lambda exe, arrays: exe)
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (1.0, 2.0))
    arguments = ["tune", "mnist_mlp", "--trials", "1", "--network", "-o", str(log)]
    assert run_command([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["network"]
    assert facts["choice"]["config"] == {"FuseOps.max_depth": 1}
    assert facts["tuned_ms"] < facts["default_ms"]
    (record,) = read_networks(log)
    assert record.choice.config == facts["choice"]["config"]
    assert run_command(arguments) == 0
    assert "the network as a whole: FuseOps.max_depth=1, of" in capsys.readouterr().out
    bench = ["bench", "mnist_mlp", "--runs", "2", "--warmup", "0", "--json"]
    assert run_command([*bench, "--tuned", str(log)]) == 0
    assert json.loads(capsys.readouterr().out)["speedup_vs_untuned"] > 0


@pytest.mark.thorough
def test_kernels_and_network_share_one_budget(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernels leave of it is the network's."""
    budgets: list[float] = []
    real = {name: getattr(compiler, name) for name in ("tune", "choose_network")}

    def tuned(module: Any, target: Any, budget: float, *rest: Any) -> Any:
        budgets.append(budget)
        return replace(real["tune"](module, target, 300, *rest), seconds=17.0)

    def chosen(module: Any, target: Any, log: Any, *, budget_s: float, **rest: Any) -> Any:
        budgets.append(budget_s)
        return real["choose_network"](module, target, log, budget_s=0.0, **rest)

    monkeypatch.setattr(compiler, "tune", tuned, raising=False)
    monkeypatch.setattr(compiler, "choose_network", chosen, raising=False)
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (1.0, 2.0))
    arguments = ["tune", "mnist_mlp", "--trials", "1", "-o", str(tmp_path / "log.jsonl")]
    assert run_command([*arguments, "--budget", "40", "--network"]) == 0
    assert budgets == [30.0, 23.0]
    assert "the network as a whole: rules, of 0 alternatives" in capsys.readouterr().out
    assert run_command([*arguments, "--budget", "40"]) == 0
    assert budgets[2:] == [40.0]
    assert run_command([*arguments, "--network"]) == 0
    assert budgets[3:] == [math.inf, math.inf]


def test_devices_have_no_networks_of_their_own(capsys: Capture, tmp_path: Path) -> None:
    log = tmp_path / "t"
    assert run_command(["tune", "mnist_mlp", "--network", "--device", "x:1", "-o", str(log)]) == 2
    assert "not with --device" in capsys.readouterr().err
    assert not log.exists()
