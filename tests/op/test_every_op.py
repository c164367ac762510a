"""Every operator: its type, its reference, its loop nest and its compiled code say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_case import F32, I32, Case, values
from op_cases import CASES
from op_harness import N, check_agreement, known

from compiler.errors import TypeInferenceError
from compiler.op.library import all_ops
from compiler.types.dtypes import BOOL, UINT8, DType
from compiler.types.tensor_types import TensorType

BATCH = 2
RUNS = [(c, d) for c in CASES for d in c.dtypes]
OTHERS = (BOOL, UINT8, DType("uint", 64))


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


@pytest.mark.sampled(63)
@pytest.mark.parametrize("run", RUNS, ids=label)
def test_reference_and_loops_and_compiled_code_agree(run: tuple[Case, Any]) -> None:
    case, which = run
    types = types_of(case, case.operand_dtypes(which))
    rng = np.random.default_rng(0)
    dims = {N: BATCH}
    args = [values(rng, TensorType.of(known(t, dims), t.dtype), case.low, case.high) for t in types]
    check_agreement(case.op, case.attrs, types, args, dims)


def others() -> list[tuple[Case, tuple[DType, ...]]]:
    """The first case of every operator and its attributes, in each dtype that type inference takes
    though the case does not say so."""
    out = []
    for case in {f"{c.op}{c.attrs}": c for c in reversed(CASES)}.values():
        given = case.operand_dtypes(case.dtypes[0])
        op, main = all_ops()[case.op], F32 if F32 in given else I32
        for dtype in OTHERS:
            dtypes = tuple(dtype if d == main else d for d in given)
            if dtypes == given or dtypes in map(case.operand_dtypes, case.dtypes):
                continue
            try:
                op.infer_type(op.make_attrs(**case.attrs), types_of(case, dtypes))
            except TypeInferenceError:
                continue
            out.append((case, dtypes))
    return out


@pytest.mark.sampled(100)
@pytest.mark.parametrize("run", others(), ids=label)
def test_what_type_inference_takes_is_computed(run: tuple[Case, Any]) -> None:
    test_reference_and_loops_and_compiled_code_agree(run)
