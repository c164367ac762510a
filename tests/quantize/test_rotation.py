"""Rotated networks compute what they did, in a basis without outliers; plans say how."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import ConfigError, DtypelabError
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Binding, Call, Constant, IRModule
from compiler.types.dtypes import Array
from experiments import zoo
from experiments.cli.main import run_command
from quantize import Plan, QConfig
from quantize.annotation.annotate import prepared
from quantize.annotation.graph import Graph
from quantize.annotation.sites import sites
from quantize.plan.diff import plan_diff
from quantize.plan.rotation import (
    Rotation,
    hadamard,
    hadamard_width,
    random_hadamard,
    rotated,
    rotation_of,
    with_heads,
)
from quantize.plan.streams import Stream, residual_streams

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import mixed_net, noise
from small_decoder import decoder, texts

FOUR = QConfig(weight_bits=4, activation_dtype="float32", bias_correction="none", rotate=True)


@given(st.sampled_from([1, 2, 12, 20, 24, 28, 40, 56, 64, 96]), st.integers(0, 99))
def test_matrices_are_orthogonal_and_no_element_is_larger_than_another(n: int, seed: int) -> None:
    for matrix in (hadamard(n), random_hadamard(n, seed)):
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(n), atol=1e-12)
        np.testing.assert_allclose(np.abs(matrix), n**-0.5)


def test_widths_without_a_matrix_are_known() -> None:
    widths = [n for n in range(60) if hadamard_width(n)]
    assert widths == [1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56]


@settings(max_examples=6)
@given(st.sampled_from([(32, 64), (24, 40), (40, 16)]), st.integers(0, 1000), st.integers(1, 2))
def test_rotated_networks_compute_what_they_did(
    sizes: tuple[int, int], seed: int, layers: int
) -> None:
    mod = prepared(decoder(*sizes, outlier=20.0, seed=seed, layers=layers))
    turned = rotated(mod, rotation_of(mod, seed))
    x = texts(3, seed)
    y = compiler.evaluate(mod, x)
    np.testing.assert_allclose(compiler.evaluate(turned, x), y, atol=2e-4 * np.abs(y).max())
    names = {b.var.name for b in turned.main.bindings}
    assert names >= {b.var.name for b in mod.main.bindings}


def test_the_whole_stream_is_found_and_what_must_be_transformed_at_run_time() -> None:
    mod = prepared(decoder())
    (stream,) = residual_streams(mod)
    assert isinstance(stream, Stream)
    assert {v.name for v in stream.values} == {
        "embedding", "attended0", "stream0", "attended1", "stream1", "out0", "down0", "out1",
        "down1",
    }  # fmt: skip
    assert [v.name for v in stream.tables] == ["embedding"]
    assert len(stream.readers) == 2 * 5 + 1
    found = rotation_of(mod, 7)
    assert found == Rotation(7, ("embedding",), ("out0", "down0", "out1", "down1"))
    inside = prepared(decoder(inner=48))  # no power of two: those layers read what they did
    assert rotation_of(inside, 7).online == ("out0", "out1")


def test_no_channel_of_a_rotated_stream_is_larger_than_the_others() -> None:
    mod = prepared(decoder(outlier=30.0))
    x = texts(8, 0)
    largest = []
    for m in (mod, rotated(mod, rotation_of(mod, 0))):
        values = {b.var.name: v for b, v in trace(m, x)}["stream0"]
        sizes = np.sqrt(np.square(values).mean(axis=(0, 1)))
        largest.append(sizes.max() / np.median(sizes))
    assert largest[0] > 15
    assert largest[1] < 3


def test_streams_that_begin_with_layers_biases_and_constants() -> None:
    rng = np.random.default_rng(0)

    def const(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    b = FunctionBuilder()
    x = b.param("x", (5, 6))
    y = b.call("nn.dense", x, b.const(const(16, 6)), b.const(const(16)), name="into")
    y = b.call("multiply", b.call("add", y, b.const(const(16))), b.const(np.float32(3)))
    y = b.call("subtract", y, b.call("nn.dense", y, b.const(const(16, 16)), name="inside"))
    y = b.call("nn.rms_norm", y, b.const(const(16)), name="norm")
    y = b.call("nn.dense", b.call("reshape", y, newshape=(5, 1, 16)), b.const(const(4, 16)))
    mod = prepared(IRModule({"main": b.finish(y)}))
    found = rotation_of(mod, 3)
    assert found.online == ()  # 6 inputs are no power of two, and `inside` reads the stream
    data = const(5, 6)
    want = compiler.evaluate(mod, data)
    got = compiler.evaluate(rotated(mod, found), data)
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def odd_net(kind: str) -> IRModule:
    """A norm whose stream no basis can be folded into."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    size = 36 if kind == "width" else 16
    weight = rng.normal(size=(size, size)).astype(np.float32)
    gain = np.ones(size, np.float32)
    x = b.param("x", (4, size))
    y = x if kind == "input" else b.call("nn.dense", x, b.const(weight), name="into")
    y = b.call("nn.relu", y, name="relu") if kind == "made" else y
    z = b.call("nn.rms_norm", y, b.const(gain), name="norm")
    z = b.call("nn.relu", z, name="bent") if kind == "read" else z
    z = b.call("nn.dense", z, b.const(weight), name="behind")
    if kind == "layer_norm":
        other = b.call("nn.layer_norm", y, b.const(gain), b.const(gain), name="centred")
        z = b.call("add", z, b.call("nn.dense", other, b.const(weight)))
    return IRModule({"main": b.finish(z, y) if kind == "result" else b.finish(z)})


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("input", "'x' is an input"),
        ("made", "'relu' is made by nn.relu, which no basis can be folded into"),
        ("read", "'bent' .nn.relu. reads the channels of 'norm' one by one"),
        ("layer_norm", "the layer norm 'centred' takes a mean away"),
        ("result", "'into' is a result of the network"),
        ("width", "'into' has 36 channels, but there are Hadamard matrices for 2.k, 12 2.k"),
    ],
)
def test_what_cannot_be_rotated_says_why(kind: str, why: str) -> None:
    mod = odd_net(kind)
    size = 36 if kind == "width" else 16
    with pytest.raises(ConfigError, match=f"rotate=True finds no .* be rotated: {why}"):
        quantize.calibrate(mod, [np.ones((4, size), np.float32)], FOUR)


def test_networks_without_such_norms_are_refused_by_the_command_line_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match="it has no root mean square norm"):
        quantize.calibrate(mixed_net(), [noise(4)], FOUR)
    given_flags = ["--calib", "mnist1k", "--set", "rotate=true", "-o", "/dev/null"]
    assert run_command(["quantize", "mnist_mlp", *given_flags]) == 2
    assert "rotate=True finds no residual stream" in capsys.readouterr().err


# ---- plans ---------------------------------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.parametrize(
    "fields",
    [
        {"weight_bits": 4},
        {"weight_dtype": "nvfp4", "activation_dtype": "nvfp4", "weight_rounding": "gptq"},
        {"weight_bits": 8, "activation_dtype": "uint8", "smoothing": 0.5},
    ],
    ids=str,
)
def test_plans_hold_the_rotation_and_every_path_follows_it(fields: dict[str, object]) -> None:
    mod, x = decoder(), texts(6, 1)
    config = QConfig.from_dict({**FOUR.to_dict(), "seed": 5, **fields})
    plan = quantize.calibrate(mod, [texts(20, 0)], config)
    assert plan.rotation.seed == 5
    assert "rotated (seed 5): the residual streams of embedding, 4 layers" in plan.summary()
    read = Plan.from_json(plan.to_json())
    assert read == plan
    realized = quantize.realize(mod, read)
    y = compiler.build(realized)(x)
    np.testing.assert_allclose(y, compiler.evaluate(realized, x), atol=1e-4 * np.abs(y).max())
    simulated = compiler.evaluate(quantize.simulate(mod, plan), x)
    np.testing.assert_allclose(simulated, y, atol=0.05 * np.abs(y).max())
    if config.weight_only:
        traced = quantize.trace_plan(mod, plan, x)["scores"].values
        np.testing.assert_allclose(traced, y, atol=1e-4 * np.abs(y).max())
    reference = compiler.evaluate(mod, x)
    assert np.square(y - reference).mean() < 0.2 * np.square(reference).mean()


def test_configurations_and_plans_are_checked() -> None:
    plan = quantize.calibrate(decoder(), [texts(20, 0)], FOUR)
    plain = quantize.calibrate(decoder(), [texts(20, 0)], replace(FOUR, rotate=False))
    assert plain.rotation == Rotation()
    assert "rotation" not in plain.to_dict()
    for broken, message in (
        ({"streams": ["nothing"]}, "unknown residual stream 'nothing'"),
        ({"online": ["embedding"]}, "made for another model"),
        ({"seed": -1}, "seed must be an integer"),
        ({"streams": 3}, "streams must be a list"),
    ):
        saved = json.loads(plan.to_json())
        saved["rotation"] |= broken
        with pytest.raises(DtypelabError, match=message):
            quantize.realize(decoder(), Plan.from_dict(saved))
    with pytest.raises(ConfigError, match="rotate must be true or false"):
        QConfig(rotate=1)  # type: ignore[arg-type]


# ---- heads ---------------------------------------------------------------------------------------
KEYS = QConfig(
    weight_dtype="float8_e4m3fn", activation_dtype="float32", key_dtype="int4", value_dtype="int4",
    key_granularity="token", value_granularity="token",
)  # fmt: skip


def uneven_heads() -> IRModule:
    """A decoder with a channel in every head of keys and values that is far larger than the others;
    queries and what reads the averages weigh it as much less."""
    mod = prepared(decoder())
    size = np.ones(32, np.float32)
    size[[3, 19]] = 12

    def scaled(b: Binding) -> Binding:
        factors = {"k": size, "v": size, "q": 1 / size, "out": None}
        if b.var.name[:-1] not in factors:
            return b
        factor = factors[b.var.name[:-1]]
        assert isinstance(b.value, Call)
        x, weight = b.value.args
        assert isinstance(weight, Constant)
        data = weight.data / size if factor is None else weight.data * factor[:, None]
        return replace(b, value=replace(b.value, args=(x, Constant(data, weight.dtype))))

    f = mod.main
    return mod.with_function("main", f.with_body([scaled(b) for b in f.bindings], f.results))


@pytest.mark.thorough
def test_heads_are_transformed_at_run_time_and_back() -> None:
    mod, x = uneven_heads(), texts(6, 1)
    plans = [
        quantize.calibrate(mod, [texts(20, 0)], replace(KEYS, rotate_heads=rotate))
        for rotate in (False, True)
    ]
    found = plans[1].rotation
    assert len(found.scores) == len(found.averages) == 2
    assert not found.streams
    assert "rotated along heads: 2 scores, 2 averages" in plans[1].summary()
    assert Plan.from_json(plans[1].to_json()) == plans[1]
    reference = compiler.evaluate(mod, x)
    turned = compiler.evaluate(rotated(prepared(mod), found), x)
    np.testing.assert_allclose(turned, reference, atol=1e-4 * np.abs(reference).max())
    errors = []
    for plan in plans:
        realized = quantize.realize(mod, plan)
        y = compiler.build(realized)(x)
        np.testing.assert_allclose(y, compiler.evaluate(realized, x), atol=1e-4)
        errors.append(float(np.square(y - reference).mean()))
    assert errors[1] < 0.7 * errors[0], errors


def test_heads_of_other_sizes_and_networks_without_attention_are_refused() -> None:
    config = replace(KEYS, rotate_heads=True)
    with pytest.raises(ConfigError, match=r"the heads of .* have 12 channels, and nn.hadamard"):
        quantize.calibrate(decoder(width=24), [texts(4, 0)], config)
    with pytest.raises(ConfigError, match="rotate_heads=True finds no attention"):
        quantize.calibrate(mixed_net(), [noise(4)], replace(FOUR, rotate=False, rotate_heads=True))
    plan = quantize.calibrate(decoder(), [texts(4, 0)], config)
    wrong = replace(plan, rotation=replace(plan.rotation, scores=("embedding",)))
    with pytest.raises(ConfigError, match="unknown product 'embedding'"):
        quantize.realize(decoder(), wrong)


def test_rotated_plans_are_exported_and_compared(tmp_path: Path) -> None:
    mod, x = decoder(), texts(3, 1)
    config = replace(FOUR, rotate_heads=True)
    plan = quantize.calibrate(mod, [texts(20, 0)], config)
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    options = onnxruntime.SessionOptions()  # which would round activations of such layers
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", options)
    (theirs,) = session.run(None, {"tokens": x})
    ours = compiler.evaluate(quantize.realize(mod, plan), x)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    other = quantize.calibrate(mod, [texts(20, 0)], replace(config, seed=1))
    changed = {change.field for change in plan_diff(plan, other)}
    assert {"rotation", "seed", "scales"} <= changed


@pytest.mark.thorough
def test_the_shipped_language_model_is_rotated_as_it_is_exported() -> None:
    mod = prepared(compiler.from_onnx(zoo.FOLDER / "stdlib_lm.onnx"))
    found = rotation_of(mod, 0)
    assert found.streams == ("embedding",)
    assert len(found.online) == 8
    assert not found.declined
    roles = sites(Graph(mod.main))
    scores = [name for name, of in roles.items() if "key" in of]
    found = with_heads(mod, found, scores, [name for name, of in roles.items() if "value" in of])
    assert len(found.scores) == len(found.averages) == 4
    ids = np.random.default_rng(0).integers(0, 1024, (1, 12))
    empty = np.zeros((1, 2, 0, 32), np.float32)
    caches = [p.name for p in mod.main.params if p.name != "input_ids"]
    inputs = {"input_ids": ids, **dict.fromkeys(caches, empty)}
    plain, turned = (compiler.evaluate(m, **inputs) for m in (mod, rotated(mod, found)))
    for a, b in zip(plain, turned, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-4 * np.abs(a).max())
