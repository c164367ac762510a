"""Calibration takes the same memory for any number of batches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak is read from /proc"
)

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import compiler, quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var

kind, count = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
b = FunctionBuilder()
x = b.param("x", (Var("n"), 8, 12, 12))
for k in range(3):
    w = rng.normal(0, 0.2, (8, 8, 3, 3)).astype(np.float32)
    x = b.call("nn.relu", b.call("nn.conv2d", x, b.const(w), padding=(1, 1, 1, 1)))
mod = IRModule({"main": b.finish(x)})
batches = (rng.normal(0, 1 + k % 7, (8, 8, 12, 12)).astype(np.float32) for k in range(count))
plan = quantize.calibrate(mod, batches, quantize.QConfig(calibrate=kind), threads=1)
assert len(plan.values) == 3, plan
# Not getrusage: its peak starts from that of the process that started this one.
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def peak(kind: str, batches: int) -> int:
    """Peak resident memory, in KiB, of a process that calibrates; a batch has 36 KiB."""
    arguments = [sys.executable, "-c", SCRIPT, kind, str(batches)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return int(result.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "few", "many"),
    [
        ("percentile", 20, 300),
        pytest.param("percentile", 100, 10_000, marks=pytest.mark.slow),
        pytest.param("kl", 100, 10_000, marks=pytest.mark.slow),
    ],
)
def test_peak_memory_does_not_grow_with_the_number_of_batches(
    kind: str, few: int, many: int
) -> None:
    peak(kind, 1)  # from here on the compiled network is kept
    before, after = peak(kind, few), peak(kind, many)
    assert after <= 1.05 * before, f"{before} KiB for {few} batches, {after} KiB for {many}"
