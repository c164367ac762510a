"""bench, sweep and devices on a device: whose figures they are, and what if it is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from served import ONES, TOKEN, hostile, load, serving

import experiments
from compiler.errors import ConfigError
from compiler.types.dtypes import Array
from experiments.cli.main import run_command
from experiments.devices import client, tokens
from experiments.devices.protocol import Kind, Limits, with_arrays

Capture = pytest.CaptureFixture[str]
SPEC: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "dataset": "mnist1k",
    "schemes": ["float32", "int8_channel", "posit8_es0"],
    "n_eval": 100,
    "n_calib": 50,
    "latency": {"warmup": 1, "runs": 3, "batch": 2, "budget_s": 0.2},
}
WHERE = ["cpu", "cores", "os"]
FIGURES = ["metric", "metric_fp32", "sqnr_db", "cosine", "size_bytes", "isa"]


@pytest.fixture(autouse=True)
def _no_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has devices of its own."""
    monkeypatch.setattr(client, "_devices", {})
    monkeypatch.setenv(tokens.TOKEN, "x" * 20)
    monkeypatch.delenv(tokens.TOKEN_FILE, raising=False)
    yield
    for device in client._devices.values():
        device.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """That holds the token."""
    path = tmp_path / "token.txt"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@pytest.mark.thorough
def test_rows_of_a_device(tmp_path: Path) -> None:
    """Its machine stands in them, the figures are those of here, and another run finds them."""
    here = experiments.sweep({**SPEC, "latency": {"runs": 0}}, out=tmp_path / "here.csv")
    with serving() as s:
        spec = {**SPEC, "device": s.address}
        rows = experiments.sweep(spec, out=tmp_path / "there.csv")
        assert rows["status"].tolist() == ["ok"] * 3
        assert rows[WHERE].to_numpy().tolist() == [["Test CPU", 3, "TestOS 1"]] * 3
        pd.testing.assert_frame_equal(rows[FIGURES], here[FIGURES])
        assert (rows["latency_ms_median"] > 0).all()
        assert rows["speedup_vs_fp32"].tolist()[0] == 1
        assert set(rows["machine"]) == {s.address}
        assert set(rows["emulated"]) == {"no"}
        assert set(rows["config_hash"]).isdisjoint(here["config_hash"])
        assert [json.loads(c)["device"] for c in rows["config"]] == [s.address] * 3
        again = experiments.sweep(spec, out=tmp_path / "there.csv", resume=True)
        assert again["run_id"].tolist() == rows["run_id"].tolist()


@pytest.mark.thorough
def test_a_program_that_dies_there_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second network's program ends its process, and the third cell runs."""
    sent: list[bytes] = []
    run = client.Device.run

    def crashing(device: client.Device, program: bytes, arrays: Sequence[Array]) -> list[Array]:
        sent.append(program)
        if len(set(sent)) == 2:
            return run(device, hostile("abort();"), [ONES])
        return run(device, program, arrays)

    out = tmp_path / "r.csv"
    with serving() as s:
        few = {
            "schemes": ["float32", "posit8_es0", "bfloat16"],
            "n_eval": 4,
            "latency": {"runs": 0},
        }
        spec = {**SPEC, **few, "device": s.address}
        monkeypatch.setattr(client.Device, "run", crashing)
        rows = experiments.sweep(spec, out=out)
        assert rows["status"].tolist() == ["ok", "error", "ok"]
        said = f"device {s.address}: its process died of SIGABRT"
        assert said in rows["error"].tolist()[1]
        assert rows["cpu"].tolist() == ["Test CPU"] * 3


@contextmanager
def _heard(number: signal.Signals) -> Iterator[None]:
    """A signal is not ignored, by this process and by what it starts."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class _Process:
    """A server in a process of its own, which may be killed."""

    def __init__(self, file: Path, port: int = 0) -> None:
        words = ["serve", "--token-file", str(file), "--port", str(port)]
        with _heard(signal.SIGINT):  # shells have what they start in the background ignore it
            self.process = subprocess.Popen(
                [sys.executable, "-m", "experiments.cli", *words], stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        self.address = line.split()[-1]

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        assert self.process.stdout is not None
        with self.process.stdout:
            self.process.send_signal(how)
            try:
                return self.process.wait(20)
            finally:  # nothing of it is left to the tests that follow
                self.process.kill()
                self.process.wait(20)


@pytest.mark.thorough
def test_a_device_that_dies_in_the_middle_of_a_cell(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Cells from then on are rows that name it; when it is back, a second run does these."""
    there, run, calls = _Process(file), client.Device.run, []

    def killing(device: client.Device, program: bytes, arrays: Sequence[Array]) -> list[Array]:
        calls.append(program)
        if len(set(calls)) == 2 and there.process.poll() is None:
            threading.Timer(4, there.kill).start()
            return run(device, hostile("sleep(60);"), [ONES])
        return run(device, program, arrays)

    spec, out = tmp_path / "s.toml", tmp_path / "r.csv"
    text = [f"{k} = {json.dumps(v)}" for k, v in SPEC.items() if k != "latency"]
    spec.write_text("\n".join([*text, "[latency]", "runs = 0", ""]))
    line = ["sweep", str(spec), "-o", str(out), "--device", there.address]
    line += ["--token-file", str(file)]
    with monkeypatch.context() as patch:
        patch.setattr(client.Device, "run", killing)
        assert run_command(line) == 0
    rows = pd.read_csv(out)
    assert rows["status"].tolist() == ["ok", "error", "error"]
    assert f"device {there.address} has closed the connection" in rows["error"][1]
    assert f"device {there.address} does not answer: Connection refused" in rows["error"][2]
    capsys.readouterr()
    before = out.read_bytes()
    assert run_command([*line, "--retry-failed"]) == 2
    assert "does not answer" in capsys.readouterr().err
    assert out.read_bytes() == before
    again = _Process(file, int(there.address.rpartition(":")[2]))
    assert run_command([*line, "--retry-failed"]) == 0
    assert pd.read_csv(out)["status"].tolist() == ["ok"] * 3
    assert again.kill(signal.SIGTERM) == 0


@pytest.mark.thorough
def test_a_killed_server_leaves_no_processes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tokens.TOKEN_FILE, str(file))
    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        there = _Process(file)
        device = client.Device(there.address)
        endless = hostile("FILE *f = fopen(\"pid\", \"w\"); fprintf(f, \"%d\", getpid()); "
                          "fclose(f); for (;;) sleep(1);")  # fmt: skip
        device._connected()
        channel = device._channel
        assert channel is not None
        message = load(endless)
        channel.send(message, 20)
        assert channel.receive(Limits()).kind is Kind.ANSWER
        channel.send(with_arrays(Kind.RUN, [ONES], program=message.header["program"]), 20)
        found = _descendants(there.process.pid)
        assert found
        time.sleep(0.3)
        there.kill(how)
        device.close()
        until = time.monotonic() + 20
        while any(map(_runs, found)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not [pid for pid in found if _runs(pid)]


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended (nobody may have asked how)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _descendants(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == pid:
            found.append(int(entry.name))
    return found


@pytest.mark.thorough
def test_bench(file: Path, capsys: Capture) -> None:
    with serving() as s:
        more = ["--device", s.address, "--token-file", str(file), "--runs", "5", "--json"]
        assert run_command(["bench", "mnist_mlp", "--calib", "mnist1k", *more]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [facts["provenance"][name] for name in WHERE] == ["Test CPU", 3, "TestOS 1"]
        assert facts["device"] == s.address
        assert facts["latency_ms"]["median"] > 0
        assert facts["speedup_vs_float32"] > 0
        assert run_command(["devices", s.address, "127.0.0.1:1", "--json"]) == 1
        there, none = json.loads(capsys.readouterr().out)["devices"]
        assert (there["cpu"], there["cores"], none["device"]) == ("Test CPU", 3, "127.0.0.1:1")
        assert "does not answer" in none["error"]
        assert run_command(["devices", s.address]) == 0
        assert capsys.readouterr().out.startswith(f"{s.address}: Test CPU, 3 cores, ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench mnist_mlp --device nowhere", "no address of a device"),
        ("bench mnist_mlp --device 127.0.0.1:1", "does not answer: Connection refused"),
        ("bench mnist_mlp --device 127.0.0.1:1 --vs onnxruntime", "give one of them"),
        ("bench mnist_mlp --device 127.0.0.1:1 --token-file /none", "/none cannot be read"),
        ("sweep quickstart -o x.csv --device 127.0.0.1:1", "does not answer: Connection refused"),
        ("sweep quickstart -o x.csv --device 127.0.0.1:99999", "no address of a device"),
        ("sweep quickstart -o x.csv --device a:1 --set threads=[2]", "on one thread, not on 2"),
        ("sweep quickstart -o x.csv --device a:1 --set gap.inputs=3", "taken on this machine"),
        (
            "sweep quickstart -o x.csv --device a:1 --scheduler b --set latency.runs=0",
            "give either a device or",
        ),
        ("serve --host 1.2.3.4.5", "is no address of this machine"),
        ("serve --host 192.0.2.1", "cannot listen on 192.0.2.1:0"),
        ("serve --stdio --port 7", "takes no --port"),
        ("serve --token-file /none", "/none cannot be read"),
        ("devices 127.0.0.1", "no address of a device"),
    ],
)
def test_bad_usage(
    line: str, message: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(line.split()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not os.listdir(tmp_path)


def test_without_a_token(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tokens.TOKEN)
    assert run_command(["devices", "127.0.0.1:1"]) == 2
    assert "wants the token of its server" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="wants the token"):
        _ = client.Device("127.0.0.1:1").machine
