"""The onnx package's own cases on the grids of a GPU: control flow, sizes found in data and all
operators that ONNX has give what they give on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from compiler.build import build
from compiler.errors import DtypelabError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frontend"))

from test_onnx_node_cases import PASSING, ROUNDED, cases, imported, mistake

SIMT = "cuda -arch=sm_80 -runner=simt"


def outcome(case: Any) -> str:
    """As that of the same name there, on a grid."""
    atol = 1e-6 if case.name in ROUNDED else case.atol
    for operands, wanted in case.data_sets:
        try:
            mod, given = imported(case, operands)
            got = build(mod, target=SIMT)(*given)
        except DtypelabError as error:
            return f"refused: {error}"
        if wrong := mistake(got, wanted, (case.rtol, atol)):
            return wrong
    return "pass"


@pytest.mark.parametrize(
    "one_in", [pytest.param(5, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)]
)
def test_no_case_gives_a_wrong_answer_and_as_many_pass(one_in: int) -> None:
    found = {name: outcome(case) for name, case in list(cases().items())[::one_in]}
    wrong = {n: o for n, o in found.items() if o != "pass" and not o.startswith("refused")}
    assert wrong == {}
    passing = sum(o == "pass" for o in found.values())
    assert passing >= (PASSING if one_in == 1 else 0.93 * len(found))
