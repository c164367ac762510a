"""Latency on a machine that others use: what a whole sweep reports beside busy processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import experiments
from experiments.measure import disturbance

BUSY = {
    "counting": "while True: pass",
    "matrices": "import numpy as np\na = np.ones((700, 700), 'f')\nwhile True: a @ a",
    "memory": "import numpy as np\na = np.zeros(1 << 25)\nwhile True: a += 1",
}
SPEC: dict[str, Any] = {
    "models": ["mnist_resnet8", "mnist_dwsep"],
    "schemes": ["float32", "int8_channel"],
    "n_eval": 20,
    "n_calib": 20,
    "latency": {"warmup": 3, "runs": 30},
}


@contextmanager
def beside(work: str, processes: int) -> Iterator[None]:
    """Others who are busy with `work`."""
    alone = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    started = [
        subprocess.Popen([sys.executable, "-c", BUSY[work]], env=alone) for _ in range(processes)
    ]
    try:
        time.sleep(0.5)
        assert all(process.poll() is None for process in started)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def swept(out: Path, **changes: Any) -> pd.DataFrame:
    rows = experiments.sweep({**SPEC, **changes}, out, progress=False)
    assert set(rows["status"]) == {"ok"}
    return rows


def reasons(rows: pd.DataFrame) -> list[set[str]]:
    return [set(disturbance.read(said)) for said in rows["latency_noise"]]


@pytest.mark.thorough
def test_a_busy_process_beside_it_is_flagged(tmp_path: Path) -> None:
    with beside("counting", 1):
        rows = swept(tmp_path / "r.csv", models=["mnist_dwsep"], n_eval=1)
    assert all({disturbance.LOADED, disturbance.PREEMPTED} & said for said in reasons(rows)), (
        rows.iloc[0]
    )
    assert (rows["latency_load"] > 0.25).all()


@pytest.mark.slow
@pytest.mark.parametrize("work", BUSY)
@pytest.mark.parametrize("processes", [1, os.cpu_count() or 1], ids=["one", "one each"])
def test_on_a_loaded_machine_noise_is_flagged_and_int8_is_as_many_times_as_fast_within_10_percent(
    work: str, processes: int, tmp_path: Path
) -> None:
    for attempt in range(3):
        quiet = swept(tmp_path / f"quiet{attempt}.csv")
        if not any(said & {disturbance.LOADED, disturbance.PREEMPTED} for said in reasons(quiet)):
            break
    else:
        pytest.skip(f"this machine is not quiet: {quiet['latency_noise'].tolist()}")
    with beside(work, processes):
        loaded = swept(tmp_path / "loaded.csv")
    for said, before, after in zip(
        reasons(loaded), quiet.to_dict("records"), loaded.to_dict("records"), strict=True
    ):
        ratio = after["speedup_vs_fp32"] / before["speedup_vs_fp32"]
        print(work, processes, after["model"], after["scheme"], f"{ratio:.3f}", *said)
        assert said & {disturbance.LOADED, disturbance.PREEMPTED}
        assert 0.9 <= ratio <= 1.1


@pytest.mark.slow
def test_two_threads_on_a_loaded_machine_are_flagged(tmp_path: Path) -> None:
    """Their speed-up is that of what they are left, which nothing here could correct."""
    with beside("counting", os.cpu_count() or 1):
        rows = swept(tmp_path / "r.csv", threads=[2])
    assert all(disturbance.LOADED in said for said in reasons(rows))
    assert rows["latency_lost"].isna().all()
