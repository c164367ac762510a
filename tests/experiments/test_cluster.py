"""Sweeps on a dask.distributed cluster over loopback: the rows of a local sweep, come what may."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import experiments
from compiler.errors import ConfigError
from experiments.results.store import VOLATILE_COLUMNS

pytest.importorskip("distributed", reason="needs dask.distributed")

ROOT = Path(__file__).parents[2]
SPEC: dict[str, Any] = {
    "models": ["mnist_mlp", "mnist_dwsep"],
    "schemes": ["float32", "int8_channel", "bfloat16", {"scheme": "posit8_es0", "n_eval": 10}],
    "calibrators": ["minmax", "percentile"],
    "n_eval": 40,
    "n_calib": 20,
    "latency": {"runs": 0},
}


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.start(
            *("distributed.cli.dask_scheduler", "--host", "127.0.0.1"),
            *("--port", str(port), "--no-dashboard"),
        )

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start(
            *("distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-nanny"),
            *("--no-dashboard", "--local-directory", str(self.folder)),
        )

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def wait_for_workers(self, count: int) -> None:
        deadline = time.monotonic() + 90
        log = self.folder / "0.log"
        while len(re.findall("Register worker|Starting worker compute", log.read_text())) < count:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = Cluster(folder)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait(30)


def stable(table: pd.DataFrame) -> pd.DataFrame:
    return table.drop(columns=list(VOLATILE_COLUMNS))


@pytest.mark.thorough
def test_a_cluster_finds_what_a_local_sweep_does_though_a_worker_dies(
    cluster: Cluster, tmp_path: Path
) -> None:
    local = experiments.sweep(SPEC, tmp_path / "local.csv")
    assert local["status"].tolist() == ["ok"] * 10, local["error"].tolist()
    first = cluster.worker()
    cluster.worker()
    cluster.wait_for_workers(2)
    out = tmp_path / "remote.csv"
    call = f"experiments.sweep({SPEC!r}, {str(out)!r}, scheduler={cluster.address!r})"
    code = f"import experiments\n{call}"
    sweep = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE)
    while sweep.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > 2):
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    _, errors = sweep.communicate(timeout=200)
    assert sweep.returncode == 0, errors.decode()
    remote = experiments.sweep(SPEC, out, resume=True)
    pd.testing.assert_frame_equal(stable(remote), stable(local))


@pytest.mark.thorough
def test_a_scheduler_that_dies_leaves_a_sweep_to_resume(cluster: Cluster, tmp_path: Path) -> None:
    cluster.worker()
    cluster.wait_for_workers(1)
    out = tmp_path / "r.csv"
    code = (
        "import sys\nfrom experiments.cli.main import run_command\n"
        f"sys.exit(run_command(['sweep', {str(spec_file(tmp_path))!r}, '-o', {str(out)!r}, "
        f"'--scheduler', {cluster.address!r}]))"
    )
    sweep = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE)
    while sweep.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > 1):
        time.sleep(0.02)
    cluster.scheduler.send_signal(signal.SIGKILL)
    _, errors = sweep.communicate(timeout=200)
    assert sweep.returncode == 2, errors.decode()
    assert "has gone; the rows so far are written, continue with --resume" in errors.decode()
    assert "Traceback" not in errors.decode()
    kept = experiments.read_results(out)
    assert 0 < len(kept) < 10
    whole = experiments.sweep(spec_file(tmp_path), out, resume=True)
    assert whole["status"].tolist() == ["ok"] * 10


def spec_file(folder: Path) -> Path:
    path = folder / "spec.toml"
    path.write_text("""
        models = ["mnist_mlp", "mnist_dwsep"]
        schemes = ["float32", "int8_channel", "bfloat16", {scheme = "posit8_es0", n_eval = 10}]
        calibrators = ["minmax", "percentile"]
        n_eval = 40
        n_calib = 20
        latency = {runs = 0}
    """)
    return path


def test_what_cannot_run_there_is_refused(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    out = tmp_path / "r.csv"
    code = (
        "import sys, experiments.running.cluster\nfrom experiments.cli.main import run_command\n"
        "experiments.running.cluster.CONNECT_S = 1\n"
        f"sys.exit(run_command(['sweep', {str(spec_file(tmp_path))!r}, '-o', {str(out)!r}, "
        f"'--scheduler', {nobody!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"no dask scheduler answers at {nobody}" in done.stderr
    assert "Traceback" not in done.stderr
    for address in ("no address", "http://there:80", "127.0.0.1:port", ":80"):
        with pytest.raises(ConfigError, match=r"is not an address such as tcp://10\.0\.0\.1:8786"):
            experiments.sweep(SPEC, out, resume=True, scheduler=address)
    timed = {**SPEC, "latency": {"runs": 2}}
    with pytest.raises(ConfigError, match="a cluster would measure latency on a loaded machine"):
        experiments.sweep(timed, tmp_path / "t.csv", scheduler=nobody)
    with pytest.raises(ConfigError, match="either jobs or a scheduler"):
        experiments.sweep(SPEC, tmp_path / "t.csv", scheduler=nobody, jobs=2)
