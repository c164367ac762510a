"""Softmax in integers: every execution, against float, in attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qnn_checks import check
from reference_checks import check_plan
from test_attention import attention, batches

import compiler
import quantize
from compiler.errors import TypeInferenceError
from compiler.ir.expr import Call
from compiler.op.qnn.softmax import exponentials
from experiments.measure import metrics
from quantize import QConfig


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.sampled_from(["int8", "uint8"]),
    st.sampled_from([0.001, 0.05, 1.0]),
    st.data(),
)
def test_every_axis_and_dtype(
    shape: list[int], dtype: str, scale: float, draw: st.DataObject
) -> None:
    axis = draw.draw(st.integers(-len(shape), len(shape) - 1))
    info = np.iinfo(dtype)
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    got = check("qnn.softmax", x, exponentials(scale), axis=axis, inverse=255.0)
    real = x.astype(np.float64) * scale
    e = np.exp(real - real.max(axis, keepdims=True))
    want = 255 * e / e.sum(axis, keepdims=True)
    assert np.abs(got - want).max() < 0.52


@pytest.mark.thorough
def test_long_rows_do_not_overflow() -> None:
    x = np.full((1, 70_000), 7, np.uint8)
    x[0, 0] = 8
    got = check("qnn.softmax", x, exponentials(20.0), inverse=255.0)
    assert got[0, 0] == 255
    assert not got[0, 1:].any()
    flat = check("qnn.softmax", np.zeros((1, 70_000), np.uint8), exponentials(1.0), inverse=7e6)
    assert set(flat.ravel().tolist()) == {100}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeInferenceError, match="int32 table of 256 entries"):
        check("qnn.softmax", np.zeros((2, 3), np.int8), np.zeros(256, np.float32))


def test_attention_without_float_operators() -> None:
    mod = attention()
    data = batches(mod)
    plan = quantize.calibrate(mod, data, QConfig(softmax="integer"))
    assert [n.decision for n in plan.nodes.values() if n.op == "nn.softmax"] == ["integer"]
    check_plan(mod, plan, data[0])
    q = quantize.realize(mod, plan)
    made = [str(b.value.op) for b in q.main.bindings if isinstance(b.value, Call)]
    assert "qnn.softmax" in made
    assert "nn.softmax" not in made
    got, want = compiler.build(q)(data[0]), compiler.evaluate(mod, data[0])
    assert metrics.sqnr_db(got, want) > 30
    reasons = [n.reason for n in quantize.annotate(mod).nodes.values() if n.op == "nn.softmax"]
    assert reasons == ["softmax='float' leaves it in float"]
