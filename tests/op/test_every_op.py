"""Every operator: its type, its reference, its loop nest and its compiled code say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_cases import CASES, Case, values
from op_harness import N, check_agreement, known

from compiler.dtypes import DType
from compiler.ir.types import TensorType
from compiler.op.opdef import all_ops

BATCH = 2
RUNS = [(c, d) for c in CASES for d in c.dtypes]


def label(run: tuple[Case, Any]) -> str:
    """Name of a test."""
    case, dtypes = run
    return f"{case.op}-{'x'.join(map(str, case.shapes))}-{dtypes}".replace(" ", "")


def types_of(case: Case, dtypes: tuple[DType, ...]) -> list[TensorType]:
    """Operand types, with a symbolic batch dimension where the case says `n`."""
    return [
        TensorType.of([N if d == "n" else d for d in shape], dtype)
        for shape, dtype in zip(case.shapes, dtypes, strict=True)
    ]


def checked_ops() -> set[str]:
    """All but the integer operators qnn.*, and match_shape, which has no loops: they have tests of
    their own."""
    return {n for n in all_ops() if not n.startswith("qnn.") and n != "match_shape"}


def test_every_op_has_a_case() -> None:
    missing = checked_ops() - {c.op for c in CASES}
    assert not missing, f"add cases to tests/op/op_cases.py for {sorted(missing)}"


def test_every_op_is_documented() -> None:
    assert [n for n in checked_ops() if not all_ops()[n].doc] == []


@pytest.mark.sampled(21)
@pytest.mark.parametrize("run", RUNS, ids=label)
def test_reference_and_loops_and_compiled_code_agree(run: tuple[Case, Any]) -> None:
    case, which = run
    types = types_of(case, case.operand_dtypes(which))
    rng = np.random.default_rng(0)
    dims = {N: BATCH}
    args = [values(rng, TensorType.of(known(t, dims), t.dtype), case.low, case.high) for t in types]
    check_agreement(case.op, case.attrs, types, args, dims)
