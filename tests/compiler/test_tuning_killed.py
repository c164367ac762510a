"""A tuner that is killed at any moment goes on from its log."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from compiler.scheduling.tuning_log import read_log
from compiler.tuning.trials import Trial, read_trials

ROOT = Path(__file__).parent.parent.parent
TRIALS = 25
SCRIPT = f"""
import sys
import numpy as np
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.tuning.trials import Journal
from compiler.tuning.tuner import tune

append = Journal.append

def said(journal, line):
    append(journal, line)
    print(line, end="", flush=True)

Journal.append = said
rng = np.random.default_rng(0)
b = FunctionBuilder()
y = b.param("x", (1, 32, 28, 28))
for size in (3, 1):
    weight = b.const(rng.normal(size=(32, 32, size, size)).astype(np.float32))
    y = b.call("nn.relu", b.call("nn.conv2d", y, weight, padding=(size // 2,) * 4))
mod = IRModule({{"main": b.finish(y)}})
done = tune(mod, budget_s=600, log=sys.argv[1], trials={TRIALS})
print("resumed", done.resumed, "measured", len(done.trials), "of", done.workloads)
"""


def started(log: Path, said: Path) -> subprocess.Popen[bytes]:
    """A tuner that writes its lines to a file as well, once they are in the log."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with said.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(log)], stdout=out, env=environment
        )


def measured(log: Path) -> list[Trial]:
    return [t for t in read_trials(log) if t.choice]


def killed(folder: Path, kills: int) -> None:
    """Kill a tuner that often, at random moments, mostly after a few lines; then let it end."""
    log, said, rng, reported = folder / "tune.jsonl", folder / "said", random.Random(kills), 0
    for _ in range(kills):
        with started(log, said) as process:
            wanted, end = rng.randint(0, 3), time.monotonic() + 120
            while said.read_bytes().count(b"\n") < wanted and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.2) if wanted else rng.uniform(0, 2))
            process.kill()
            assert process.wait() == -signal.SIGKILL, "it was quicker than its killer"
        whole = [x for x in said.read_bytes().split(b"\n")[:-1] if x.startswith(b'{"trial"')]
        text = log.read_bytes() if log.exists() else b""
        assert all(x + b"\n" in text for x in whole)
        reported += len(whole)
    with started(log, said) as process:
        assert process.wait(600) == 0
    found = measured(log)
    for_each = Counter((t.workload, t.program) for t in found)
    assert max(for_each.values()) == 1, "a candidate was measured twice"
    assert reported > 0, "it was always killed before its first candidate"
    words = said.read_text().splitlines()[-1].split()
    assert int(words[1]) + int(words[3]) == len(found) <= TRIALS * int(words[5])
    read_log(log)


@pytest.mark.thorough
def test_two_kills(tmp_path: Path) -> None:
    killed(tmp_path, 2)


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    killed(tmp_path, 20)
