"""A text encoder quantizes by default: written as exporters do, with outliers, of any length."""

from __future__ import annotations

import pytest
from encoder_net import LAYERS, encoder, sentences

import compiler
import quantize
from compiler.ir.expr import Call, IRModule, tensor_type
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import Plan, QConfig


def batches(lengths: tuple[int, ...]) -> list[dict[str, Array]]:
    return [{"tokens": sentences(16, n, k)} for k, n in enumerate(lengths)]


def scores(mod: IRModule, plan: Plan, tokens: Array) -> tuple[Array, Array]:
    """Of the integer graph, and of the float network."""
    return compiler.build(quantize.realize(mod, plan))(tokens), compiler.build(mod)(tokens)


@pytest.mark.thorough
def test_by_default_all_products_are_in_integers_and_the_answers_stay() -> None:
    mod = compiler.from_onnx(encoder(12, fused=True, outliers=1.0))
    plan = quantize.calibrate(mod, batches((12,) * 6))
    assert plan.coverage == 1.0
    q = quantize.realize(mod, plan)
    products = [
        [str(tensor_type(a).dtype) for a in b.value.args[:2]]
        for b in q.main.bindings
        if isinstance(b.value, Call) and str(b.value.op) in ("nn.dense", "nn.matmul")
    ]
    assert len(products) == LAYERS * 8 + 2
    assert all(set(p) <= {"uint8", "int8"} for p in products)
    got, want = scores(mod, plan, sentences(200, 12, 99))
    assert (got.argmax(1) == want.argmax(1)).mean() >= 0.97
    assert metrics.sqnr_db(got, want) >= 32


def test_what_stays_float_says_why() -> None:
    plan = quantize.annotate(compiler.from_onnx(encoder(12, fused=True)))
    reasons = {(n.op, n.reason) for n in plan.nodes.values() if n.decision == "float"}
    assert {op for op, _ in reasons} >= {"nn.layer_norm", "nn.softmax", "erf"}
    assert all(reason for _, reason in reasons)
    with_tables = quantize.annotate(
        compiler.from_onnx(encoder(12, fused=True)), QConfig(functions="integer")
    )
    gelus = [n for n in with_tables.nodes.values() if n.function_of and n.op == "multiply"]
    assert len(gelus) == LAYERS  # each of five operators


@pytest.mark.thorough
@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sentences_of_any_length(fused: bool) -> None:
    mod = compiler.from_onnx(encoder("length", fused))
    plan = quantize.calibrate(mod, batches((5, 8, 11, 14)))
    for length in (1, 7, 20):
        got, want = scores(mod, plan, sentences(60, length, 50 + length))
        assert (got.argmax(1) == want.argmax(1)).mean() >= 0.9
        assert metrics.sqnr_db(got, want) > 12


@pytest.mark.thorough
def test_layer_norms_are_smoothed_by_default_where_that_pays() -> None:
    """Two channels of every layer norm are four times as large as the others."""
    mod = compiler.from_onnx(encoder(12, fused=True, outliers=4.0))
    tokens = sentences(200, 12, 99)
    plans = [
        quantize.calibrate(mod, batches((12,) * 6), QConfig(smoothing=s)) for s in (0.0, "auto")
    ]
    plain, default = (metrics.sqnr_db(*scores(mod, plan, tokens)) for plan in plans)
    assert default > plain + 1.5
    assert plans[1].config == QConfig()
    assert not plans[0].factors
    assert {plans[1].nodes[name].op for name in plans[1].factors} == {"nn.layer_norm"}


@pytest.mark.slow
def test_smoothing_helps_where_channels_stand_out() -> None:
    """Two channels of every layer norm are twelve times as large as the others."""
    mod = compiler.from_onnx(encoder(12, fused=True))
    tokens = sentences(200, 12, 99)
    quality = []
    for smoothing in (0.0, 0.5):
        plan = quantize.calibrate(mod, batches((12,) * 6), QConfig(smoothing=smoothing))
        got, want = scores(mod, plan, tokens)
        quality.append(metrics.sqnr_db(got, want))
        assert (got.argmax(1) == want.argmax(1)).mean() >= 0.96
    assert quality[1] > quality[0] + 3 > 18
