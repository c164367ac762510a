"""Every operator on the grids of a GPU, whose threads this CPU runs as loops: the interpreter's
results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "elsewhere"))

from op_runs import RUNS, Case, check_on, label


@pytest.mark.sampled(60)
@pytest.mark.parametrize("run", RUNS, ids=label)
def test_operators(run: tuple[Case, Any]) -> None:
    check_on("cuda -arch=sm_80 -runner=simt", run)
