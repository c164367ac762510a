"""The onnx package's single-operator cases that we refuse, handed to onnxruntime: all that it runs
alone pass through a program of ours, interpreted and compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from foreign_models import ENGINES, by_onnxruntime
from test_onnx_node_cases import cases, imported

from compiler.build import build
from compiler.errors import DtypelabError
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.thorough

PASSING = 59
"""Of the refused cases, those that must pass (63 where the locale en_US.UTF-8 is installed)."""

REASONS = {
    "onnxruntime has no operators that train": ("preview.training",),
    "onnxruntime has no kernel for files of pictures": ("ImageDecoder",),
    "onnxruntime has no kernel of the newest version of RandomUniformLike": ("RandomUniformLike(",),
    "onnxruntime has no kernel of opset 28's optional values": ("Optional",),
    "onnxruntime needs a locale that may not be installed": ("locale",),
    "onnxruntime gives other numbers than the standard's reference": ("other values",),
}
"""Why cases do not pass, and what is said then."""


def value(v: Any) -> Any:
    """An operand or result as callers have it: an array, a list, None."""
    if isinstance(v, onnx.TensorProto):
        return onnx.numpy_helper.to_array(v)
    if isinstance(v, list):
        return [value(x) for x in v]
    return v if v is None else np.asarray(v)


def same(got: Any, wanted: Any, case: Any) -> bool:
    if wanted is None or isinstance(wanted, list):
        lists = isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted)
        return got is wanted if wanted is None else lists and all(
            same(g, w, case) for g, w in zip(got, wanted, strict=True)
        )  # fmt: skip
    got = np.asarray(got)
    if wanted.dtype.kind in "OU":
        return got.shape == wanted.shape and bool((got == wanted).all())
    kinds = (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    return kinds and np.allclose(got, wanted, case.rtol, case.atol, equal_nan=True)


@cache
def refused() -> list[str]:
    """The cases that are refused as they are."""
    out = []
    for name, case in cases().items():
        try:
            imported(case, case.data_sets[0][0])
        except DtypelabError:
            out.append(name)
    return out


def given(case: Any, operands: Any) -> dict[str, Any]:
    names = [i.name for i in case.model.graph.input]
    return dict(zip(names, map(value, operands), strict=True))


def through_ours(case: Any) -> str:
    """ "pass", or what is said or wrong."""
    for operands, wanted in case.data_sets:
        inputs = given(case, operands)
        shapes = {n: a.shape for n, a in inputs.items() if isinstance(a, np.ndarray) and not a.size}
        try:
            mod = from_onnx(case.model, shapes, engines=ENGINES)
            runs = {"interpreted": evaluate(mod, inputs), "compiled": build(mod)(inputs)}
        except DtypelabError as e:
            return f"refused: {e}"
        for how, got in runs.items():
            every = [got] if len(wanted) == 1 else got
            if not all(same(g, value(w), case) for g, w in zip(every, wanted, strict=True)):
                return f"{how}: other values"
    return "pass"


def alone(case: Any) -> bool:
    """Whether onnxruntime runs a case as it is."""
    for operands, wanted in case.data_sets:
        try:
            got = by_onnxruntime(case.model, **given(case, operands))
        except Exception:  # of several classes that share no other
            return False
        if not all(same(g, value(w), case) for g, w in zip(got, wanted, strict=True)):
            return False
    return True


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return {name: through_ours(cases()[name]) for name in refused()}


def test_all_that_onnxruntime_runs_passes(outcomes: dict[str, str]) -> None:
    runs = {name for name in refused() if alone(cases()[name])}
    passed = {name for name, said in outcomes.items() if said == "pass"}
    assert runs - passed == set()
    assert len(passed) >= PASSING


def test_every_case_that_does_not_pass_has_its_reason(outcomes: dict[str, str]) -> None:
    """The table, as `-s` shows it."""
    left = {n: said for n, said in outcomes.items() if said != "pass"}
    print(f"{len(outcomes) - len(left)} of {len(outcomes)} pass")
    for reason, words in REASONS.items():
        names = [n for n, said in left.items() if any(w in said for w in words)]
        print(f"{len(names):4}  {reason}: {', '.join(names)}")
        left = {n: said for n, said in left.items() if n not in names}
    assert left == {}


def test_refusals_are_sentences(outcomes: dict[str, str]) -> None:
    for name, said in outcomes.items():
        assert "\n" not in said, name


def test_advice_is_given_only_where_it_helps(outcomes: dict[str, str]) -> None:
    """Who follows it gets a program, unless the machine lacks a locale, or finds a fault of
    onnxruntime's own."""
    advised, helped = set(), 0
    for name in refused():
        with pytest.raises(DtypelabError) as said:
            imported(cases()[name], cases()[name].data_sets[0][0])
        if "engines=['onnxruntime']" in str(said.value):
            advised.add(name)
            helped += outcomes[name] == "pass"
    wrong = {n: outcomes[n] for n in advised if outcomes[n] != "pass"}
    assert {n: s for n, s in wrong.items() if "locale" not in s and s != "interpreted: other values"
            } == {}  # fmt: skip
    assert helped >= 50
