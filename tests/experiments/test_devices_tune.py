"""tune on a device: kernels are timed there, and the log is for that device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from served import hostile, serving

import compiler
from compiler.errors import MachineError
from compiler.scheduling.tuning_log import apply_records, read_log
from compiler.tuning.tuner import tune
from experiments.cli.main import run_command
from experiments.devices import client, executable
from experiments.devices.tuning import DevicePlace
from experiments.zoo import model_path
from experiments.zoo.model_batches import load_for_batch

Capture = pytest.CaptureFixture[str]
CPU = "x86-64-v4"
"""What the device says that LLVM calls its CPU, which no other machine is called."""


@pytest.mark.thorough
def test_tune_and_bench_on_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A clock that prefers every candidate gives a log; it holds on the device, and not here."""
    log = tmp_path / "tune.jsonl"
    timed = DevicePlace.kernels_in_turns
    seen = []

    def slower(place: DevicePlace, *arguments: object) -> tuple[float, float]:
        seen.append(timed(place, *arguments))  # type: ignore[arg-type]
        return 2.0, 1.0

    monkeypatch.setattr(DevicePlace, "kernels_in_turns", slower)
    monkeypatch.setattr(DevicePlace, "networks_in_turns", lambda *arguments: (2.0, 1.0))
    monkeypatch.setattr(client, "_devices", {})
    with serving(llvm_cpu=CPU) as s:
        mod = load_for_batch(model_path("mnist_mlp"), (1, 28, 28), 1)
        device = client.device(s.address)
        target = device.machine.target()
        found = tune(mod, target, 600, 0, log, trials=3, place=DevicePlace(device))
        assert seen
        assert all(0 < ms < 1e4 for pair in seen for ms in pair)
        assert (found.default_ms, found.tuned_ms) == (2.0, 1.0)
        records = read_log(log)
        assert len(records) == len(found.records) > 0
        assert {(r.cpu, r.target, r.isa) for r in records} == {(CPU, "llvm", target.isa)}
        x = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
        with apply_records(records):
            there, here = executable.build(mod, device), compiler.build(mod)
        assert (there.tuned, here.tuned) == (len(records), 0)
        np.testing.assert_array_equal(there(x), executable.build(mod, device)(x))
        line = ["bench", "mnist_mlp", "--device", s.address, "--tuned", str(log), "--runs", "2"]
        assert run_command([*line, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["tuned_kernels"] == len(records)
        assert facts["speedup_vs_untuned"] > 0
        line = ["tune", "mnist_mlp", "--device", s.address, "--budget", "1", "-o", str(log)]
        assert run_command([*line, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["device"] == s.address
        device.close()


@pytest.mark.thorough
def test_a_device_that_dies_ends_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no candidate that is left out: a sentence says so, and nothing is in the log."""
    run, calls = client.Device.run, []

    def killing(device: client.Device, program: bytes, arrays: list[object]) -> object:
        calls.append(program)
        if len(calls) == 2:
            return run(device, hostile("abort();"), [np.ones(3, np.float32)])
        return run(device, program, arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(client.Device, "run", killing)
    log = tmp_path / "tune.jsonl"
    with serving() as s:
        mod = load_for_batch(model_path("mnist_mlp"), (1, 28, 28), 1)
        device = s.device()
        place = DevicePlace(device)
        with pytest.raises(MachineError, match="died of SIGABRT"):
            tune(mod, device.machine.target(), 600, 0, log, trials=3, place=place)
        assert not log.exists()
        device.close()
