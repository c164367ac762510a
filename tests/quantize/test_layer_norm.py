"""Layer norm in integers: every execution, against float, in a text encoder."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from encoder_net import LAYERS, encoder, sentences
from hypothesis import given, settings
from hypothesis import strategies as st
from qnn_checks import check, check_compiled, reference
from reference_checks import check_plan

import compiler
import quantize
from compiler.errors import ConfigError, TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.op.qnn.layer_norm import LARGEST_EPSILON, MOST, root_bits
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import QConfig

INTEGER = QConfig(softmax="integer", layer_norm="integer")


def constants(gain: Array, offset: Array) -> tuple[Array, Array]:
    """As the operator takes them."""
    return (
        np.rint(gain * 2.0**16).astype(np.int64),
        np.rint(offset * 2.0**32).astype(np.int64),
    )


SOME = settings(max_examples=15, deadline=None)
DATA = given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.sampled_from(["int8", "uint8"]),
    st.sampled_from([1, 3, 128, 255]),
    st.floats(1e-6, 1.0),
    st.data(),
)


def integers(
    shape: list[int], dtype: str, spread: int, draw: st.DataObject
) -> tuple[Array, np.random.Generator]:
    """Data anywhere in its range, `spread` apart at most, and what it was drawn by."""
    low = int(np.iinfo(dtype).min) + draw.draw(st.integers(0, 255 - spread))
    rng = np.random.default_rng(sum(shape) + spread)
    return rng.integers(low, low + spread, shape, endpoint=True).astype(dtype), rng


@pytest.mark.thorough
@SOME
@DATA
def test_every_axis_dtype_and_spread(
    shape: list[int], dtype: str, spread: int, epsilon: float, draw: st.DataObject
) -> None:
    axis = draw.draw(st.integers(-len(shape), len(shape) - 1))
    x, rng = integers(shape, dtype, spread, draw)
    inner = shape[axis % len(shape) :]
    n = math.prod(inner)
    gain, offset = rng.normal(0, 30, inner), rng.normal(0, 5, inner)
    unit = n * 2.0 ** root_bits(n)
    got = check(
        "qnn.layer_norm", x, *constants(gain, offset), axis=axis,
        epsilon=round(epsilon * unit * unit), output_zero_point=100,
    )  # fmt: skip
    axes = tuple(range(axis % len(shape), len(shape)))
    real = x.astype(np.float64)
    apart = real - real.mean(axes, keepdims=True)
    root = np.sqrt((apart * apart).mean(axes, keepdims=True) + epsilon)
    want = np.clip(apart / root * gain + offset + 100, 0, 255)
    assert np.abs(got - want).max() < 0.51


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [1, 2, 33_025, 33_026, MOST])
def test_the_longest_rows_and_the_largest_constants_do_not_overflow(size: int) -> None:
    gain = np.full(1, (1 << 36) - 1, np.int64)
    offset = np.full(1, (1 << 62) - 1, np.int64)
    half = np.zeros((1, size), np.uint8)
    half[:, size // 2 :] = 255
    one = np.zeros((1, size), np.uint8)
    one[0, 0] = 1
    for x in (half, one, 255 - one):
        q = [int(v) for v in x[0]]
        total, bits = sum(q), root_bits(size)
        spread = size * sum(v * v for v in q) - total**2
        for epsilon in (1, LARGEST_EPSILON):
            inverse = 2**60 // math.isqrt(spread * 4**bits + epsilon)
            for sign in (1, -1):
                sums = [
                    (((size * v - total) * inverse) >> (44 - bits)) * int(sign * gain[0])
                    + int(sign * offset[0])
                    + 2**31
                    for v in (q[0], q[-1])
                ]
                assert max(map(abs, sums)) < 2**63
                args = [x, sign * gain, sign * offset]
                got = reference("qnn.layer_norm", *args, epsilon=epsilon)
                check_compiled("qnn.layer_norm", args, got, ["llvm"], epsilon=epsilon)
                want = [min(max(s >> 32, 0), 255) for s in sums]
                assert [got[0, 0], got[0, -1]] == want


@pytest.mark.thorough
@SOME
@DATA
def test_root_mean_squares_are_about_the_zero_point(
    shape: list[int], dtype: str, spread: int, epsilon: float, draw: st.DataObject
) -> None:
    axis = draw.draw(st.integers(-len(shape), len(shape) - 1))
    zero = draw.draw(st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)))
    x, rng = integers(shape, dtype, spread, draw)
    inner = shape[axis % len(shape) :]
    n = math.prod(inner)
    gain = rng.normal(0, 30, inner)
    unit = n * 2.0 ** root_bits(n)
    got = check(
        "qnn.layer_norm", x, *constants(gain, np.zeros(1)), axis=axis, centred=False,
        epsilon=round(epsilon * unit * unit), output_zero_point=100, input_zero_point=zero,
    )  # fmt: skip
    axes = tuple(range(axis % len(shape), len(shape)))
    real = x.astype(np.float64) - zero
    root = np.sqrt((real * real).mean(axes, keepdims=True) + epsilon)
    want = np.clip(real / root * gain + 100, 0, 255)
    assert np.abs(got - want).max() < 0.51


@pytest.mark.parametrize("size", [1, 33_026, MOST])
def test_the_largest_root_mean_squares_do_not_overflow(size: int) -> None:
    gain, none = np.full(1, (1 << 36) - 1, np.int64), np.zeros(1, np.int64)
    x, bits = np.full((1, size), 255, np.uint8), root_bits(size)
    for epsilon in (1, LARGEST_EPSILON):
        inverse = 2**60 // math.isqrt(size * size * 255**2 * 4**bits + epsilon)
        unit = (size * 255 * inverse) >> (44 - bits)
        want = min((unit * int(gain[0]) + 2**31) >> 32, 255)
        attrs = {"epsilon": epsilon, "centred": False, "input_zero_point": 0}
        got = reference("qnn.layer_norm", x, gain, none, **attrs)
        check_compiled("qnn.layer_norm", [x, gain, none], got, ["llvm"], **attrs)
        assert got[0, 0] == want


def test_rows_of_one_value_are_the_offset() -> None:
    for value in (0, 7, 255):
        x = np.full((3, 24), value, np.uint8)
        got = check("qnn.layer_norm", x, *constants(np.full(24, 9.0), np.arange(24.0)), epsilon=1)
        assert got.tolist() == [list(range(24))] * 3


def test_what_does_not_fit_is_refused() -> None:
    one = np.ones(4, np.int64)
    x = np.zeros((2, 4), np.uint8)
    with pytest.raises(TypeInferenceError, match="int8 or uint8 data"):
        check("qnn.layer_norm", x.astype(np.int16), one, one)
    with pytest.raises(TypeInferenceError, match="int64 gain and offset"):
        check("qnn.layer_norm", x, one.astype(np.int32), one)
    with pytest.raises(TypeInferenceError, match=r"does not fit rows|broadcast"):
        check("qnn.layer_norm", x, one[:3], one)
    with pytest.raises(TypeInferenceError, match="from 1 to 2\\^60"):
        check("qnn.layer_norm", x, one, one, epsilon=0)
    long = np.zeros((1, MOST + 1), np.uint8)
    with pytest.raises(TypeInferenceError, match="rows of 1 to 65536"):
        check("qnn.layer_norm", long, one[:1], one[:1])


# ---- in networks ---------------------------------------------------------------------------------
def normalized(offset: bool, axis: int = -1, op: str = "nn.layer_norm") -> IRModule:
    """dense, a norm, dense over [2, 5, 8]."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (2, 5, 8))

    def weights(*shape: int) -> Array:
        return rng.normal(0, 0.4, shape).astype(np.float32)

    y = b.call("nn.dense", x, b.const(weights(8, 8)), name="first")
    shape = (8,) if axis == -1 else (5, 8)
    given = [b.const(weights(*shape)) for _ in range(1 + offset)]
    y = b.call(op, y, *given, axis=axis, name="norm")
    return IRModule({"main": b.finish(b.call("nn.dense", y, b.const(weights(4, 8)), name="last"))})


@pytest.mark.thorough
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_realized_as_the_plan_says(offset: bool, axis: int, dtype: str) -> None:
    realized(normalized(offset, axis), dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_root_mean_square_norms_are_realized_as_the_plan_says(dtype: str) -> None:
    realized(normalized(False, op="nn.rms_norm"), dtype)


def test_root_mean_square_norms_are_exported_as_their_operations(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    mod = normalized(False, axis=1, op="nn.rms_norm")
    data = np.random.default_rng(0).normal(0, 1, (2, 5, 8)).astype(np.float32)
    plan = quantize.calibrate(mod, [data])
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    session = ort.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": data})
    want = compiler.evaluate(quantize.realize(mod, plan), data)
    assert metrics.sqnr_db(got, want) > 35


def realized(mod: IRModule, dtype: str) -> None:
    """The plan's integers are the reference's, and near the float results."""
    data = [np.random.default_rng(k).normal(0, 1, (2, 5, 8)).astype(np.float32) for k in range(4)]
    config = replace(INTEGER, activation_dtype=dtype)
    plan = quantize.calibrate(mod, data, config)
    assert plan.nodes["norm"].decision == "integer"
    assert check_plan(mod, plan, data[0])["integer"] >= 1
    q = quantize.realize(mod, plan)
    got, want = compiler.build(q)(data[0]), compiler.evaluate(mod, data[0])
    assert metrics.sqnr_db(got, want) > 30
    simulated = compiler.evaluate(quantize.simulate(mod, plan), data[0])
    assert metrics.sqnr_db(simulated, got) > 40
    reason = quantize.annotate(mod).nodes["norm"].reason
    assert reason == "layer_norm='float' leaves it in float"


def test_rows_of_hardly_any_differences_leave_the_result_room() -> None:
    """All that calibration sees of the norm is far below epsilon, and so is what it gives."""
    b = FunctionBuilder()
    one = np.eye(8, dtype=np.float32)
    flat = b.call("nn.dense", b.param("x", (2, 8)), b.const(one * np.float32(1e-8)))
    y = b.call("nn.layer_norm", flat, b.const(one[0] + 1), epsilon=1.0, name="norm")
    mod = IRModule({"main": b.finish(b.call("nn.dense", y, b.const(one)))})
    data = np.random.default_rng(0).normal(0, 1, (2, 8)).astype(np.float32)
    plan = quantize.calibrate(mod, data, replace(INTEGER, smoothing=0.0))
    assert plan.values["norm"].scale * 2.0**24 >= 2.0**10
    assert check_plan(mod, plan, data)["integer"] >= 1
    assert np.abs(compiler.build(quantize.realize(mod, plan))(data)).max() < 1e-3


def test_plans_without_room_are_refused() -> None:
    mod = normalized(True)
    data = [np.ones((2, 5, 8), np.float32)]
    plan = quantize.calibrate(mod, data, INTEGER)
    tiny = replace(plan.values["norm"], scale=1e-9)
    with pytest.raises(ConfigError, match="is too small"):
        quantize.realize(mod, replace(plan, values={**plan.values, "norm": tiny}))


def test_reasons() -> None:
    wide = quantize.annotate(normalized(True), replace(INTEGER, activation_bits=12))
    assert wide.nodes["norm"].reason == "layer norms of more than 8 bits have no integer form"
    b = FunctionBuilder()
    x, gain = b.param("x", (2, 8)), b.param("gain", (8,))
    y = b.call("nn.layer_norm", x, gain, name="norm")
    mod = IRModule({"main": b.finish(b.call("nn.dense", y, b.const(np.eye(8, dtype=np.float32))))})
    assert quantize.annotate(mod, INTEGER).nodes["norm"].reason == (
        "its gain or offset is not constant"
    )


@pytest.mark.thorough
def test_an_encoder_without_float_normalizations() -> None:
    mod = compiler.from_onnx(encoder(12, fused=True, outliers=1.0))
    batches = [{"tokens": sentences(16, 12, k)} for k in range(6)]
    config = replace(INTEGER, functions="integer", arithmetic="integer")
    plan = quantize.calibrate(mod, batches, config)
    assert plan.coverage == 1.0
    left = {n.op for n in plan.nodes.values() if n.decision == "float"}
    assert left == {"take"}  # of embeddings
    check_plan(mod, plan, sentences(2, 12, 7))
    q = quantize.realize(mod, plan)
    made = [str(b.value.op) for b in q.main.bindings if isinstance(b.value, Call)]
    assert made.count("qnn.layer_norm") == 2 * LAYERS + 1
    assert made.count("qnn.softmax") == LAYERS
    tokens = sentences(200, 12, 99)
    got, want = compiler.build(q)(tokens), compiler.build(mod)(tokens)
    assert (got.argmax(1) == want.argmax(1)).mean() >= 0.9
    assert metrics.sqnr_db(got, want) >= 20


@pytest.mark.thorough
@pytest.mark.parametrize("tensorflow", [False, True])
def test_layer_norms_of_many_operators_are_quantized_as_one(tensorflow: bool) -> None:
    """As exporters write them, they give the same plan and the same integers as one operator."""
    fused, written = (
        compiler.from_onnx(encoder(12, fused, 4.0, tensorflow)) for fused in (True, False)
    )
    batches = [{"tokens": sentences(16, 12, k)} for k in range(2)]
    plans = [quantize.calibrate(mod, batches, INTEGER) for mod in (fused, written)]
    one, other = (
        [(n.op, n.decision, n.macs) for n in plan.nodes.values() if n.op != "take"]
        for plan in plans
    )
    assert one == other
    assert ("nn.layer_norm", "integer", 0) in one
    tokens = sentences(40, 12, 99)
    a, b = (
        compiler.build(quantize.realize(mod, plan))(tokens)
        for mod, plan in zip((fused, written), plans, strict=True)
    )
    assert np.array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.parametrize("tensorflow", [False, True])
def test_recovered_layer_norms_are_those_of_onnxruntime(tensorflow: bool) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = encoder(12, False, 4.0, tensorflow).SerializeToString()
    tokens = sentences(20, 12, 5)
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"tokens": tokens})
    mod = compiler.from_onnx(model)
    assert sum(n.op == "nn.layer_norm" for n in quantize.annotate(mod).nodes.values()) == (
        2 * LAYERS + 1
    )
    assert np.allclose(compiler.build(mod)(tokens), want, atol=2e-5)
