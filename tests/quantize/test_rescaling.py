"""Equalization and smoothing change what channels are worth and leave what the network computes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes  # noqa: F401  formats
import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, IRModule
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import Plan, QConfig
from quantize.annotation.annotate import annotate, prepared
from quantize.calibration.rescaling.choosing import depends_on_data
from quantize.calibration.rescaling.cross_layer_equalization import equalizing
from quantize.plan.factors import Factors, constant, rescaled

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import images, net


def uneven(rng: np.random.Generator, *shape: int) -> Any:
    """Weights whose outputs, and whose inputs, differ in size by up to a thousand."""
    w = rng.normal(size=shape)
    for axis in (0, 1):
        sizes = [1] * len(shape)
        sizes[axis] = -1
        w = w * (10.0 ** rng.uniform(-1.5, 1.5, shape[axis])).reshape(sizes)
    return w.astype(np.float32)


def convolutions(seed: int, act: str = "nn.relu", pool: str = "") -> tuple[IRModule, Array]:
    """conv, activation, depthwise conv, pad, two convolutions that read it, dense, dense."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()
    x = b.param("x", (2, 3, 8, 8))
    attrs = {"a_min": 0.0, "a_max": 6.0} if act == "clip" else {}
    y = b.call("nn.conv2d", x, b.const(uneven(rng, 8, 3, 3, 3)), b.const(uneven(rng, 8, 1)[:, 0]),
               name="first")  # fmt: skip
    y = b.call(act, y, name="act", **attrs)
    y = b.call("nn.conv2d", y, b.const(uneven(rng, 8, 1, 3, 3)), groups=8, name="depthwise")
    y = b.call("nn.relu", y, name="act2")
    if pool:
        y = b.call(pool, y, pool_size=(2, 2), strides=(1, 1), name="pooled")
    y = b.call("nn.pad", y, pad_width=((0, 0), (0, 0), (1, 1), (0, 0)), name="padded")
    left = b.call("nn.conv2d", y, b.const(uneven(rng, 4, 4, 1, 1)), groups=2, name="left")
    right = b.call("nn.conv2d", y, b.const(uneven(rng, 4, 8, 1, 1)), name="right")
    y = b.call("nn.batch_flatten", b.call("nn.global_avg_pool2d", b.call("add", left, right)))
    y = b.call("nn.dense", y, b.const(uneven(rng, 6, 4)), b.const(uneven(rng, 6, 1)[:, 0]),
               name="units")  # fmt: skip
    y = b.call("nn.dense", b.call("nn.relu", y, name="act3"), b.const(uneven(rng, 5, 6)),
               name="last")  # fmt: skip
    return IRModule({"main": b.finish(y)}), rng.normal(size=(2, 3, 8, 8)).astype(np.float32)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from(["", "nn.max_pool2d", "nn.avg_pool2d"]))
def test_equalization_keeps_the_function_and_makes_the_ranges_alike(seed: int, pool: str) -> None:
    mod, x = convolutions(seed, pool=pool)
    module = prepared(mod)
    factors = equalizing(module)
    assert set(factors) == {"act", "padded", "act3"}
    assert factors["padded"].readers == ("left", "right")
    other = rescaled(module, factors)
    y = compiler.evaluate(module, x)
    np.testing.assert_allclose(compiler.evaluate(other, x), y, atol=1e-4 * np.abs(y).max() + 1e-9)
    weights = {b.var.name: constant(b.value.args[1]) for b in other.main.bindings
               if isinstance(b.value, Call) and len(b.value.args) > 1
               and b.var.name in ("first", "depthwise", "units", "last")}  # fmt: skip
    for made, read in (("first", "depthwise"), ("units", "last")):
        r1 = np.abs(weights[made]).reshape(len(weights[made]), -1).max(axis=1)
        axis = (0,) if read == "last" else (1, 2, 3)
        np.testing.assert_allclose(r1, np.abs(weights[read]).max(axis=axis), rtol=1e-2)


def test_a_relu6_is_not_equivariant_so_its_pair_stays() -> None:
    module = prepared(convolutions(1, act="clip")[0])
    assert set(equalizing(module)) == {"padded", "act3"}


def test_values_that_something_else_reads_are_not_equalized() -> None:
    b = FunctionBuilder()
    w = b.const(uneven(np.random.default_rng(0), 4, 4))
    y = b.call("nn.dense", b.param("x", (2, 4)), w, name="y")
    z = b.call("nn.dense", y, w, name="z")
    mod = IRModule({"main": b.finish(z, y)})
    assert equalizing(prepared(mod)) == {}


@pytest.mark.thorough
def test_equalization_brings_back_the_accuracy_that_uneven_channels_take() -> None:
    rng = np.random.default_rng(3)
    b = FunctionBuilder()
    y = b.param("x", (50, 16))
    for k, shape in enumerate(((24, 16), (32, 24), (8, 32))):
        y = b.call(
            "nn.dense", y, b.const(rng.normal(0, 0.3, shape).astype(np.float32)), name=f"d{k}"
        )
        y = b.call("nn.relu", y, name=f"r{k}")
    even = prepared(IRModule({"main": b.finish(y)}))
    spread = {
        f"r{k}": Factors((f"d{k + 1}",), tuple(10.0 ** rng.uniform(-1, 1, n)))
        for k, n in enumerate((24, 32))
    }
    uneven = rescaled(even, spread)
    x = rng.normal(size=(50, 16)).astype(np.float32)
    reference = compiler.build(even)(x)

    def decibels(mod: IRModule, equalize: bool) -> float:
        config = QConfig(weight_granularity="tensor", equalize=equalize)
        return metrics.sqnr_db(compiler.build(quantize.quantize(mod, x, config))(x), reference)

    assert decibels(uneven, True) > decibels(even, False) - 1
    assert decibels(uneven, True) > decibels(uneven, False) + 10


# ---- smoothing -----------------------------------------------------------------------------------
def normalized(gain: Array, scale: Array) -> IRModule:
    """Layer norm with a gain, and a dense layer whose inputs' weights have scales."""
    b = FunctionBuilder()
    w = np.random.default_rng(1).normal(0, 0.3, (16, len(gain))) * scale
    y = b.call("nn.layer_norm", b.param("x", (8, len(gain))), b.const(gain), name="norm")
    y = b.call("nn.dense", y, b.const(w.astype(np.float32)), name="read")
    return IRModule({"main": b.finish(y)})


@pytest.mark.thorough
def test_only_the_layer_norms_that_gain_by_it_are_smoothed_by_default() -> None:
    even, uneven = np.ones(32, np.float32), np.ones(32, np.float32)
    uneven[[3, 17]] = 60
    data = [np.random.default_rng(k).normal(size=(8, 32)).astype(np.float32) for k in range(8)]
    for gain, scale, wanted in ((even, even, set()), (uneven, even, {"norm"})):
        plan = quantize.calibrate(normalized(gain, scale), data)
        assert set(plan.factors) == wanted
    (factors,) = plan.factors.values()
    assert min(factors.divisors[3], factors.divisors[17]) > 3 * np.median(factors.divisors)
    assert not quantize.calibrate(net("resnet8"), images()[0][:8]).factors


def test_gains_that_amplify_nothing_are_not_looked_at() -> None:
    """So that calibration of networks without outliers runs them once."""
    uneven, even = np.linspace(1, 2, 32, dtype=np.float32), np.ones(32, np.float32)
    annotation = annotate(normalized(uneven, even), QConfig())
    assert not depends_on_data(annotation, QConfig())
    uneven[5] = 4
    assert depends_on_data(annotate(normalized(uneven, even), QConfig()), QConfig())


def test_smoothing_by_default_is_for_integers_and_can_be_turned_off() -> None:
    uneven = np.ones(32, np.float32)
    uneven[[3, 17]] = 60
    mod = normalized(uneven, np.ones(32, np.float32))
    data = [np.random.default_rng(k).normal(size=(8, 32)).astype(np.float32) for k in range(8)]
    for config in (
        QConfig(skip=("read",)),
        QConfig(smoothing=0.0),
        QConfig(activation_dtype="float32", weight_bits=4),
        QConfig(weight_dtype="float8_e4m3fn", activation_dtype="float8_e4m3fn"),
    ):
        assert not quantize.calibrate(mod, data, config).factors
    with pytest.raises(ConfigError, match="smoothing must be 'auto' or a number from 0 to 1"):
        QConfig(smoothing="most")
    assert QConfig.from_dict(QConfig(smoothing="auto").to_dict()) == QConfig()


def transformer(seed: int) -> tuple[IRModule, list[Array]]:
    """Layer norm with a few very large gains, dense, a function, dense; a residual reads one of
    the layer norms too."""
    rng = np.random.default_rng(seed)
    b = FunctionBuilder()

    def weights(*shape: int) -> Any:
        return b.const(rng.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(np.float32))

    gain = np.ones(32, np.float32)
    gain[[3, 17]] = 60
    x = b.param("x", (4, 6, 32))
    n = b.call("nn.layer_norm", x, b.const(gain), weights(32), name="n1")
    up = b.call("nn.dense", n, weights(48, 32), weights(48), name="up")
    t = b.call("tanh", up, name="t")
    y = b.call("add", b.call("nn.dense", t, weights(32, 48), name="down"), x, name="sum")
    m = b.call("nn.layer_norm", y, b.const(gain), weights(32), name="n2")
    z = b.call("add", b.call("nn.dense", m, weights(32, 32), name="mix"), m, name="out")
    return IRModule({"main": b.finish(z, up)}), [
        rng.normal(size=(4, 6, 32)).astype(np.float32) for _ in range(6)
    ]


def test_smoothing_divides_in_the_layer_norm_or_before_the_readers() -> None:
    mod, batches = transformer(0)
    plan = quantize.calibrate(mod, batches, QConfig(smoothing=0.5))
    assert {k: f.readers for k, f in plan.factors.items()} == {
        "n1": ("up",), "t": ("down",), "n2": ("mix",),
    }  # fmt: skip
    module = prepared(mod)
    other = rescaled(module, plan.factors)
    names = [b.var.name for b in other.main.bindings]
    assert "n1_rescaled" not in names
    assert "n2_rescaled" in names
    for ours, theirs in zip(
        compiler.evaluate(other, batches[0]), compiler.evaluate(module, batches[0]), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def test_smoothing_factors_are_those_of_the_paper() -> None:
    mod, batches = transformer(0)
    plan = quantize.calibrate(mod, batches, QConfig(smoothing=0.75))
    module = prepared(mod)
    norm = module.main.bindings[0].var
    seen = module.with_function("main", module.main.with_body(module.main.bindings, [norm]))
    x = np.max([np.abs(compiler.evaluate(seen, a)).max(axis=(0, 1)) for a in batches], axis=0)
    (dense,) = (b.value for b in module.main.bindings if b.var.name == "up")
    assert isinstance(dense, Call)
    w = np.abs(constant(dense.args[1])).max(axis=0)
    np.testing.assert_allclose(plan.factors["n1"].divisors, x**0.75 / w**0.25, rtol=1e-4)


@pytest.mark.thorough
def test_smoothing_gains_decibels_where_activations_have_outliers() -> None:
    mod, batches = transformer(2)
    reference = compiler.build(mod)(batches[0])[0]
    found = []
    for alpha in (0.0, 0.5):
        qmod = quantize.quantize(mod, batches, QConfig(smoothing=alpha))
        found.append(metrics.sqnr_db(compiler.build(qmod)(batches[0])[0], reference))
    assert found[1] > found[0] + 3, found


# ---- plans ---------------------------------------------------------------------------------------
@pytest.mark.thorough
def test_a_plan_carries_the_factors_so_that_the_original_model_is_all_it_needs() -> None:
    mod, batches = transformer(1)
    config = QConfig(
        smoothing=0.5, equalize=True, weight_bits=4, weight_calibrate="mse", weight_rounding="gptq"
    )
    plan = quantize.calibrate(mod, batches, config)
    assert plan == quantize.calibrate(mod, batches, config)
    read = Plan.from_json(plan.to_json())
    assert read == plan
    qmod = quantize.realize(mod, read)
    ours = compiler.evaluate(qmod, batches[0])[0]
    np.testing.assert_array_equal(compiler.build(qmod)(batches[0])[0], ours)
    simulated = compiler.evaluate(quantize.simulate(mod, read), batches[0])[0]
    np.testing.assert_allclose(simulated, ours, atol=0.02 * np.abs(ours).max())
    traced = quantize.trace_plan(mod, plan, batches[0])
    assert "n2_rescaled" in traced


def test_networks_that_ship_keep_their_answers_with_everything_on() -> None:
    mod, x = net("mlp"), images()[1][:200]
    batches = [images()[0][i : i + 50] for i in (0, 50)]
    config = QConfig(equalize=True, smoothing=0.5)
    reference = compiler.build(mod)(x)
    result = compiler.build(quantize.quantize(mod, batches, config))(x)
    assert metrics.sqnr_db(result, reference) > 30
    assert quantize.calibrate(mod, batches, config).factors


def test_factors_that_do_not_fit_are_refused() -> None:
    mod, batches = transformer(1)
    plan = quantize.calibrate(mod, batches, QConfig(smoothing=0.5))
    good = plan.factors["n1"]
    for factors, message in (
        ({"n3": good}, "value 'n3'"),
        ({"n1": replace(good, readers=("mix",))}, "for 'mix', which does not fit"),
        ({"n1": Factors(("up",), good.divisors[:5])}, "has 32 channels, not 5"),
    ):
        with pytest.raises(ConfigError, match=message):
            quantize.realize(mod, replace(plan, factors=factors))
    data = plan.to_dict()
    data["factors"]["n1"]["divisors"][0] = -1.0
    with pytest.raises(ConfigError, match="positive"):
        Plan.from_dict(data)
