"""SIGKILLs over sweeps with two workers: the tables end up as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from experiments.layers.table import layers_path, read_layers
from experiments.results.store import VOLATILE_COLUMNS, read_rows

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "slow_sweep.py"
MARK = "DTYPELAB_SWEEP_TO_KILL"
Table = pd.DataFrame


def start(out: Path, repeats: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), MARK: str(out)}
    command = [sys.executable, str(PROGRAM), str(out), str(repeats)]
    return subprocess.Popen(command, env=environment)


def family(out: Path) -> set[int]:
    """The processes of sweeps that write `out`: the sweeps, their workers, their helpers."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={out}\0".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def workers(process: subprocess.Popen[bytes], out: Path) -> list[int]:
    """Those of the family that run cells (the others serve `multiprocessing`)."""
    found = []
    for pid in family(out) - {process.pid}:
        try:
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def size(out: Path) -> int:
    return out.stat().st_size if out.exists() else 0


def rows(out: Path) -> int:
    """Complete rows; a sweep that was killed before its header was written has none."""
    return len(read_rows(out)) if size(out) else 0


def tables(out: Path) -> tuple[Table, Table]:
    """Results and layers without what may differ, in an order that does not depend on luck."""
    results = read_rows(out).drop(columns=list(VOLATILE_COLUMNS)).sort_values("config_hash")
    layers = read_layers(layers_path(out)).drop(columns="run_id").sort_values("config_hash")
    return results.reset_index(drop=True), layers.reset_index(drop=True)


def expect_same(out: Path, expected: tuple[Table, Table], repeats: int) -> None:
    results, layers = tables(out)
    assert results["config_hash"].is_unique
    assert results["status"].tolist() == ["ok"] * (2 * 3 * repeats)
    assert len(layers) == 2 * 2 * repeats
    pd.testing.assert_frame_equal(results, expected[0])
    pd.testing.assert_frame_equal(layers, expected[1])
    assert {p.name for p in out.parent.iterdir()} == {out.name, layers_path(out).name}


def await_end(out: Path) -> None:
    deadline = time.monotonic() + 60
    while family(out):
        assert time.monotonic() < deadline, f"still running: {family(out)}"
        time.sleep(0.01)


def moment(process: subprocess.Popen[bytes], out: Path, generator: random.Random) -> None:
    """Sleep until a random moment: mostly among the cells, else also while processes start."""
    if generator.random() < 0.2:
        time.sleep(generator.uniform(0, 1))
        return
    before = size(out)
    while size(out) <= before and process.poll() is None:
        time.sleep(0.001)
    time.sleep(generator.uniform(0, 0.1))


def kill_often(folder: Path, kills: int, repeats: int) -> None:
    whole, killed = folder / "whole" / "r.csv", folder / "killed" / "r.csv"
    for out in (whole, killed):
        out.parent.mkdir()
    assert start(whole, repeats).wait(600) == 0
    expected = tables(whole)
    expect_same(whole, expected, repeats)
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    process, kept, done = start(killed, repeats), 0, 0
    while done < kills:
        moment(process, killed, generator)
        assert process.poll() is None, f"ended after {done} kills: too few cells (seed {seed})"
        at_work = workers(process, killed)
        one_worker = bool(at_work) and generator.random() < 0.25
        victim = generator.choice(at_work) if one_worker else process.pid
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue  # a worker that had nothing left to do
        done += 1
        if not one_worker:
            process.wait(60)
            await_end(killed)
            found = rows(killed)
            assert found >= kept
            kept = found
            process = start(killed, repeats)
    assert process.wait(600) == 0
    await_end(killed)
    expect_same(killed, expected, repeats)


@pytest.mark.thorough
def test_two_kills_of_a_sweep_with_two_workers_leave_no_trace(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=2, repeats=20)


@pytest.mark.thorough
def test_five_kills_of_a_sweep_with_two_workers_leave_no_trace(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=5, repeats=50)


@pytest.mark.slow
def test_a_hundred_kills_of_a_sweep_with_two_workers_leave_no_trace(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=100, repeats=250)


@pytest.mark.thorough
def test_two_sweeps_that_write_one_file_at_once_leave_what_one_does(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone" / "r.csv", tmp_path / "shared" / "r.csv"
    for out in (alone, shared):
        out.parent.mkdir()
    assert start(alone, 5).wait(600) == 0
    for process in [start(shared, 5), start(shared, 5)]:
        assert process.wait(600) == 0
    expect_same(shared, tables(alone), 5)
