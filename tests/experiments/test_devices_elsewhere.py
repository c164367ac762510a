"""Devices that are machines beside a server: engines of WebAssembly, and emulators, whose times are
not told."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from served import ONES, doubling, serving

import compiler
import datatypes
import experiments
from compiler.errors import UnsupportedError
from compiler.exporting.export import relocatable
from compiler.runtime.machines.registry import missing
from compiler.target.registry import Target
from experiments.cli.main import run_command
from experiments.devices import client, executable
from experiments.devices.client import Device, DeviceError

MACHINES = ("wasm32", "wasm32 -runner=node", "aarch64-linux", "thumbv7em")


@pytest.mark.thorough
@pytest.mark.parametrize("target", MACHINES)
def test_over_a_pipe_to_a_machine_beside(target: str) -> None:
    if why := missing(Target.parse(target)):
        pytest.skip(why)
    words = f"{sys.executable} -m experiments.cli serve --stdio --limit 500"
    device = Device(f"pipe:{words} --target '{target}'")
    chosen = Target.parse(target)
    assert device.machine.triple == chosen.triple
    assert device.machine.cpu.startswith(f"{chosen.cpu} by {device.machine.runner} on ")
    for mod in (doubling(), datatypes.change_dtype(doubling(), "float32", "posit8_es0")):
        exe = executable.build(mod, device)
        for n in (1, 37):
            x = np.linspace(-3, 3, n, dtype=np.float32)
            np.testing.assert_array_equal(exe(x), compiler.evaluate(mod, x))
        if device.emulator:
            assert exe.emulated == device.machine.runner
            assert exe.instructions is None or exe.instructions > 10
            with pytest.raises(UnsupportedError, match="whose times say nothing"):
                executable.interleaved([exe], [x], 1, 2)
        else:
            (found,) = executable.interleaved([exe], [x], 1, 2)
            assert found.median > 0
    here = relocatable(doubling(), Target.parse("llvm"))
    with pytest.raises(DeviceError, match="is for another CPU"):
        device.run(here.content, [ONES])
    device.close()


@pytest.mark.thorough
def test_rows_of_an_emulator_have_no_milliseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "emulator", "qemu")
    monkeypatch.setattr(client, "_devices", {})
    with serving() as s:
        spec = {
            "models": ["mnist_mlp"],
            "schemes": ["float32"],
            "n_eval": 4,
            "latency": {"runs": 2, "budget_s": 0},
            "device": s.address,
        }
        (row,) = experiments.sweep(spec, out=tmp_path / "r.csv").to_dict("records")
        assert row["status"] == "ok"
        assert (row["machine"], row["emulated"]) == (s.address, "yes")
        assert np.isnan([row["latency_ms_median"], row["speedup_vs_fp32"]]).all()
        client.device(s.address).close()


def test_a_machine_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for target, message in (
        ("wasm32 -runner=none", "unknown machine for wasm32-unknown-unknown 'none'"),
        ("x", "unknown target 'x'"),
    ):
        assert run_command(["serve", "--stdio", "--target", target]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert (captured.out, captured.err.count("\n")) == ("", 1)
