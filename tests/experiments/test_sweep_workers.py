"""Cells on worker processes: those that take too long, and those that cost their workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import experiments
from compiler.errors import ConfigError
from experiments.running.workers import PATIENCE, _Spawned
from experiments.spec.specification import load_spec

#: An adapter runs in every worker, and not in the process of the sweep: this one makes int8 cells
#: there do what a file beside it says, which is no part of what a row is.
ADAPTER = """
import os, pathlib, signal, time
from experiments.systems import pipeline

working = pipeline.prepare

def prepare(path, scheme, **options):
    if scheme.kind == "int8":
        exec(pathlib.Path(__file__).with_name("action.txt").read_text())
    return working(path, scheme, **options)

pipeline.prepare = prepare
"""


def spec(folder: Path, action: str, **more: Any) -> dict[str, Any]:
    adapter = folder / "adapter.py"
    adapter.write_text(ADAPTER)
    (folder / "action.txt").write_text(action)
    return {
        "models": ["mnist_mlp"],
        "schemes": ["int8_tensor", "float32", "bfloat16"],
        "calibrators": ["minmax"],
        "n_eval": 20,
        "n_calib": 20,
        "latency": {"runs": 0},
        "adapters": [str(adapter)],
        **more,
    }


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_a_cell_that_takes_too_long_is_a_row_that_says_so(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    started = time.monotonic()
    asked = spec(tmp_path, "time.sleep(3600)", timeout_s=4)
    table = experiments.sweep(asked, out, jobs=2)
    assert time.monotonic() - started < 120
    assert table["status"].tolist() == ["timeout", "ok", "ok"]
    assert table["error"].tolist() == ["preparing int8_tensor: took more than 4 s", "", ""]
    assert table["metric"].notna().tolist() == [False, True, True]
    # The rows of the others are those without a limit; the failed cell runs again when asked.
    again = experiments.sweep(spec(tmp_path, "pass"), out, retry_failed=True)
    assert again["status"].tolist() == ["ok"] * 3
    assert again["run_id"].eq(table["run_id"]).tolist() == [False, True, True]


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_a_limit_also_holds_for_cells_that_measure_latency(tmp_path: Path) -> None:
    latency = {"warmup": 0, "runs": 2}
    asked = spec(tmp_path, "time.sleep(3600)", timeout_s=4, latency=latency)
    table = experiments.sweep(asked, tmp_path / "r.csv")
    assert table["status"].tolist() == ["timeout", "ok", "ok"]
    assert table["latency_ms_median"].notna().tolist() == [False, True, True]


@pytest.mark.thorough
@pytest.mark.usefixtures("fake")
def test_a_cell_that_costs_worker_after_worker_is_a_failed_row(tmp_path: Path) -> None:
    asked = spec(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    table = experiments.sweep(asked, tmp_path / "r.csv", jobs=2)
    assert table["status"].tolist() == ["error", "ok", "ok"]
    assert table["error"][0] == (
        "preparing int8_tensor: killed by the system, which was out of memory, or by somebody "
        f"(SIGKILL), {PATIENCE} times"
    )


@pytest.mark.usefixtures("fake")
def test_a_cell_whose_worker_dies_once_is_run_by_another(tmp_path: Path) -> None:
    flag = tmp_path / "died"
    killed = "os.kill(os.getpid(), signal.SIGKILL)"
    action = f"os.path.exists({str(flag)!r}) or (open({str(flag)!r}, 'w').close(), {killed})"
    table = experiments.sweep(spec(tmp_path, action), tmp_path / "r.csv", jobs=2)
    assert flag.exists()
    assert table["status"].tolist() == ["ok"] * 3


@pytest.mark.usefixtures("fake")
def test_workers_that_cannot_start_end_the_sweep_in_words(tmp_path: Path) -> None:
    asked = spec(tmp_path, "pass")
    flag = tmp_path / "read"
    (tmp_path / "adapter.py").write_text(
        f"import os\nflag = {str(flag)!r}\n"
        "os.path.exists(flag) and os._exit(3)\nopen(flag, 'w').close()\n"
    )
    says = "worker processes end as they start: adapter .*adapter.py: ended the process with exit"
    with pytest.raises(ConfigError, match=f"{says} code 3"):
        experiments.sweep(asked, tmp_path / "r.csv", jobs=2)


@pytest.mark.thorough
def test_a_program_that_workers_cannot_import_is_told_how(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import experiments\n"
        "spec = {'models': ['mnist_mlp'], 'schemes': ['float32'], 'n_eval': 2,\n"
        "        'latency': {'runs': 0}}\n"
        "experiments.sweep(spec, 'r.csv', jobs=2)\n"
    )
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert (
        'with several jobs is a file, and does so below if __name__ == "__main__":' in done.stderr
    )


@pytest.mark.usefixtures("fake")
def test_a_limit_is_a_number_of_seconds_and_no_part_of_a_cell(tmp_path: Path) -> None:
    asked = spec(tmp_path, "pass")
    free, limited = load_spec(asked), load_spec(asked, ["timeout_s=0.5"])
    assert (free.timeout_s, limited.timeout_s) == (None, 0.5)
    assert [c.config_hash for c in free.cells] == [c.config_hash for c in limited.cells]
    for wrong in (0, -1, True, "1 min", float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="timeout_s must be a number of seconds above 0"):
            load_spec({**asked, "timeout_s": wrong})
    with pytest.raises(ConfigError, match="leave out timeout_s: cells on a cluster are not timed"):
        experiments.sweep(limited, tmp_path / "r.csv", scheduler="127.0.0.1:1")


def test_fresh_processes_import_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of data may hold a file called as a module of Python is."""
    for name in ("signal", "pickle", "multiprocessing", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('was run', 'w')\n")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    worker = _Spawned()
    try:
        assert dict(os.environ) == before
        assert worker.received() == "started"
    finally:
        worker.stop()
    assert not (tmp_path / "was run").exists()
