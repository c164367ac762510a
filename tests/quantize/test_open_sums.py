"""Integer products whose sums run over an open number of positions, as attention's over a past."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import InputError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.symbolic import Var
from quantize.reference.trace import trace_plan

INTEGERS: dict[str, Any] = {"smoothing": 0.0, "bias_correction": "none"}
SITES: dict[str, Any] = {
    "value_dtype": "int8", "value_granularity": "head", "probability_dtype": "uint8",
}  # fmt: skip


def mixing() -> IRModule:
    """softmax(scores [2, n]) times values [n, 3], by heads."""
    b, n = FunctionBuilder(), Var("n")
    scores, values = b.param("scores", (2, 2, n)), b.param("values", (2, n, 3))
    p = b.call("nn.softmax", scores, name="p")
    return IRModule({"main": b.finish(b.call("nn.matmul", p, values, name="mixed"))})


def data(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "scores": (3 * rng.normal(size=(2, 2, n))).astype(np.float32),
        "values": rng.normal(size=(2, n, 3)).astype(np.float32),
    }


@pytest.mark.parametrize("fields", [INTEGERS, INTEGERS | SITES])
@settings(max_examples=3)
@given(st.integers(1, 70), st.integers(0, 1000))
def test_sums_of_any_length_are_those_of_numpy(fields: dict[str, Any], n: int, seed: int) -> None:
    plan = quantize.calibrate(mixing(), [data(9, 1)], quantize.QConfig(**fields))
    q = quantize.realize(mixing(), plan)
    (sums,) = (
        b.value for b in q.main.bindings
        if isinstance(b.value, Call) and str(b.value.op) == "nn.matmul"
    )  # fmt: skip
    assert all(str(a.type.dtype) in ("int8", "uint8") for a in sums.args)
    x = data(n, seed)
    want = compiler.evaluate(q, **x)
    np.testing.assert_array_equal(compiler.build(q)(**x), want)
    p = compiler.evaluate(_probabilities(), x["scores"])
    if fields is INTEGERS:
        found = trace_plan(mixing(), plan, x, given={"p": p})["mixed"]
        np.testing.assert_array_equal(found.values, _sums(plan, p, x["values"]))
        return
    first, second = plan.formats["mixed"]
    qp = np.clip(np.rint(p / np.float32(first.scales[0])), 0, 255) - first.zero_point
    scales = np.asarray(second.scales, np.float32)[:, None, None]
    qv = np.clip(np.rint(x["values"] / scales), -127, 127)
    real = np.matmul(qp, qv).astype(np.float32) * scales
    np.testing.assert_array_equal(want, real * np.float32(first.scales[0]))


def _probabilities() -> IRModule:
    b = FunctionBuilder()
    return IRModule({"main": b.finish(b.call("nn.softmax", b.param("s", (2, 2, Var("n")))))})


def _sums(plan: quantize.Plan, p: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums of the integers of both factors, of which nothing narrower is made."""
    grids = [plan.values["p"], plan.values["values"]]
    q = [
        np.clip(np.rint(a / np.float32(g.scale)) + g.zero_point, g.clipped(-np.inf),
                g.clipped(np.inf)) - g.zero_point
        for a, g in zip((p, values), grids, strict=True)
    ]  # fmt: skip
    return np.matmul(*q)


@pytest.mark.parametrize(("fields", "most"), [(INTEGERS, 33025), (INTEGERS | SITES, 65793)])
@pytest.mark.thorough
def test_more_than_an_accumulator_holds_are_refused_when_called(
    fields: dict[str, Any], most: int
) -> None:
    plan = quantize.calibrate(mixing(), [data(9, 1)], quantize.QConfig(**fields))
    q = quantize.realize(mixing(), plan)
    run = compiler.build(q)
    # As many as are allowed, at the ends of their ranges: the sums are exact.
    x = {"scores": np.zeros((2, 2, most), "f4"), "values": np.full((2, most, 3), 99, "f4")}
    np.testing.assert_array_equal(run(**x), compiler.evaluate(q, **x))
    said = rf"n = {most + 1} \(axis 2 of input 'scores'\) does not fit: .*mixed.* of at most {most}"
    for call in (run, lambda **given: compiler.evaluate(q, **given)):
        with pytest.raises(InputError, match=said):
            call(**data(most + 1, 0))
