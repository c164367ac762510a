"""The onnx package's own single-operator cases: what is imported gives the right answer,
interpreted and compiled; what is not is refused in words."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.errors import DtypelabError
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret import evaluate
from compiler.ir.expr import IRModule
from compiler.pipeline import build

PASSING = 1400
"""Cases that must pass; raise it as operators are added."""

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases


@cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {c.name: c for c in collect_testcases(None) if c.model is not None}


def array(value: Any) -> Any:
    """A case's operand or result as an array."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def imported(case: Any, operands: list[Any]) -> tuple[IRModule, list[Any]]:
    """The module and its operands; what must be known at import (axes, shapes) becomes constant."""
    names = [i.name for i in case.model.graph.input]
    constants: dict[str, Any] = {}
    while True:
        try:
            mod = from_onnx(case.model, constants=constants)
        except DtypelabError as error:
            found = re.search(r"constants=\{'([^']*)'", str(error))
            if not found or found[1] not in names or found[1] in constants:
                raise
            constants[found[1]] = array(operands[names.index(found[1])])
        else:
            rest = zip(names, operands, strict=True)
            return mod, [array(x) for n, x in rest if n not in constants]


def mistake(got: Any, wanted: Any, tolerance: tuple[float, float]) -> str:
    """What is wrong with a result; empty if nothing. float16 may be off by a few units in
    its last place, since the standard does not say in which precision sums are formed."""
    for g, w in zip(got if isinstance(got, list) else [got], map(array, wanted), strict=True):
        if (g.shape, g.dtype) != (w.shape, w.dtype):
            return f"{g.dtype}{g.shape} for {w.dtype}{w.shape}"
        rtol, atol = tolerance
        rtol = max(rtol, 4e-3) if w.dtype == np.float16 else rtol
        if not np.allclose(g, w, rtol, atol, equal_nan=w.dtype.kind == "f"):
            return "other values"
    return ""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Case -> "pass", "refused: reason", or what is wrong."""
    out = {}
    for name, case in cases().items():
        for operands, wanted in case.data_sets:
            try:
                mod, given = imported(case, operands)
                runs = {"interpreted": evaluate(mod, *given), "compiled": build(mod)(*given)}
            except DtypelabError as error:
                out[name] = f"refused: {error}"
                continue
            wrong = {
                how: said
                for how, got in runs.items()
                if (said := mistake(got, wanted, (case.rtol, case.atol)))
            }
            out[name] = "; ".join(f"{how}: {said}" for how, said in wrong.items()) or "pass"
    return out


def test_no_case_gives_a_wrong_answer(outcomes: dict[str, str]) -> None:
    wrong = {n: o for n, o in outcomes.items() if o != "pass" and not o.startswith("refused")}
    assert wrong == {}


def test_most_cases_pass(outcomes: dict[str, str]) -> None:
    assert sum(o == "pass" for o in outcomes.values()) >= PASSING


def test_refusals_are_one_sentence_that_names_the_reason(outcomes: dict[str, str]) -> None:
    for name, said in outcomes.items():
        if said.startswith("refused"):
            assert len(said) > len("refused: ") + 20, name
            assert "\n" not in said, name


def test_every_imported_operator_is_in_a_case_that_passes(outcomes: dict[str, str]) -> None:
    from test_onnx_operators import CASES

    from compiler.frontend.onnx_importer import supported_ops

    passed = {c.op for c in CASES.values()}
    for name, case in cases().items():
        if outcomes.get(name) == "pass":
            passed.update(n.op_type for n in case.model.graph.node)
    assert set(supported_ops()) - passed == set()
