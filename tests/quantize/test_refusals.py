"""What calibration and plans make of bad input: errors that name the place, or right results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from quantize_nets import ZOO, images, mixed_net, net, noise, plan_of

import compiler
import quantize
from compiler.errors import ConfigError, InputError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from quantize import Plan, QConfig
from quantize.plan.fingerprint import fingerprint_of

OBSERVERS = ("minmax", "moving_average", "percentile", "sigma", "kl", "mse", "power_of_two")


# ---- values that are not finite ------------------------------------------------------------------
def test_the_first_node_whose_values_are_not_finite_is_named_with_its_onnx_node() -> None:
    """exp overflows in the first branch, relu and add pass it on to what is observed."""
    b = FunctionBuilder()
    x = b.param("x", (Var("n"), 4))
    quiet = b.call("exp", b.call("nn.relu", x, name="other"), name="quiet", origins=["quiet_1"])
    loud = b.call("exp", b.call("multiply", x, b.const(np.float32(50.0))), name="loud",
                  origins=["/block/Exp"])  # fmt: skip
    y = b.call("add", loud, quiet, name="sum", origins=["add_1"])
    y = b.call("nn.dense", y, b.const(np.eye(4, dtype=np.float32)), name="y")
    mod = IRModule({"main": b.finish(y, quiet)})
    good = np.ones((2, 4), np.float32)
    message = r"calibration batch 2: the value %loud \(ONNX node '/block/Exp'\) is the first"
    with pytest.raises(InputError, match=message):
        quantize.calibrate(mod, [good, 3 * good, good])
    with pytest.raises(InputError, match=r"batch 1: the value %quiet \(ONNX node 'quiet_1'"):
        quantize.calibrate(mod, np.full((1, 4), 3e38, np.float32))


def test_infinities_that_no_integer_reads_are_left_alone() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 4))
    y = b.call("nn.dense", x, b.const(np.eye(4, dtype=np.float32)), name="y")
    z = b.call("log", b.call("nn.relu", x, name="positive"), name="z")
    plan = quantize.calibrate(IRModule({"main": b.finish(y, z)}), [-np.ones((2, 4), np.float32)])
    assert plan.nodes["y"].decision == "integer"


# ---- zeros ---------------------------------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.parametrize("kind", OBSERVERS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_calibration_on_zeros_gives_right_results(kind: str, symmetric: bool) -> None:
    """All values are 0 or a bias; results on those data are exact within a unit."""
    mod = mixed_net()
    config = QConfig(calibrate=kind, activation_symmetric=symmetric, bias_correction="none")
    x = np.zeros((2, 3, 9, 8), np.float32)
    plan = quantize.calibrate(mod, [x], config)
    for got, want in zip(
        compiler.build(quantize.realize(mod, plan))(x), compiler.evaluate(mod, x), strict=True
    ):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, atol=0.15)


def convolution(weight: Array, bias: Array | None, zeros: Array) -> IRModule:
    """A convolution of channels of which some are 0 in weights, some in data; then another."""
    b = FunctionBuilder()
    x = b.param("x", (Var("n"), weight.shape[1], 4, 4))
    kept = b.call("multiply", x, b.const(zeros.reshape(-1, 1, 1)), name="kept")
    args = [b.const(weight)] + ([] if bias is None else [b.const(bias)])
    c = b.call("nn.relu", b.call("nn.conv2d", kept, *args, name="c"), name="r")
    w = np.linspace(-1, 1, 2 * len(weight), dtype=np.float32).reshape(2, len(weight), 1, 1)
    return IRModule({"main": b.finish(b.call("nn.conv2d", c, b.const(w), name="d"))})


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    dead=st.lists(st.booleans(), min_size=3, max_size=3),
    dark=st.lists(st.booleans(), min_size=2, max_size=2),
    bias=st.sampled_from([None, 0.0, 1e-30, 0.5]),
    granularity=st.sampled_from(["channel", "tensor"]),
    correction=st.sampled_from(["none", "analytic", "empirical"]),
    kind=st.sampled_from(OBSERVERS),
)
def test_channels_of_zeros_give_right_results(
    dead: list[bool], dark: list[bool], bias: float | None, granularity: str,
    correction: str, kind: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(3, 2, 3, 3)).astype(np.float32)
    weight[dead] = 0
    biases = None if bias is None else np.full(3, bias, np.float32)
    mod = convolution(weight, biases, np.where(dark, 0, 1).astype(np.float32))
    x = rng.uniform(-1, 1, (8, 2, 4, 4)).astype(np.float32)
    config = QConfig(weight_granularity=granularity, bias_correction=correction, calibrate=kind)
    plan = quantize.calibrate(mod, [x], config)
    q = quantize.realize(mod, plan)
    got, want = compiler.build(q)(x), compiler.evaluate(mod, x)
    np.testing.assert_array_equal(got, compiler.evaluate(q, x))
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= 0.2 * np.abs(want).max() + 1e-6


# ---- plans of other models -----------------------------------------------------------------------
def changed_mlp(**attributes: Any) -> bytes:
    """The MLP with one weight changed, or attributes of its nodes set."""
    model = onnx.load(ZOO / "mnist_mlp.onnx")
    if not attributes:
        tensor = next(t for t in model.graph.initializer if len(t.dims) == 2)
        values = numpy_helper.to_array(tensor).copy()
        values[-1, -1] += 2.0**-10
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    gemm = next(n for n in model.graph.node if n.op_type == "Gemm")
    for name, value in attributes.items():
        kept = [a for a in gemm.attribute if a.name != name]
        del gemm.attribute[:]
        gemm.attribute.extend([*kept, helper.make_attribute(name, value)])
    return bytes(model.SerializeToString())


def test_a_plan_of_another_model_is_refused_though_all_names_fit() -> None:
    plan = plan_of("mlp")
    other = compiler.from_onnx(changed_mlp())
    for use in (quantize.realize, quantize.simulate):
        with pytest.raises(ConfigError, match="another model with the same nodes"):
            use(other, plan)
    with pytest.raises(ConfigError, match="another model"):
        quantize.realize(net("resnet8"), plan)
    with pytest.raises(ConfigError, match="another model"):
        quantize.realize(compiler.from_onnx(changed_mlp(alpha=0.5)), plan)


@pytest.mark.thorough
def test_a_plan_holds_for_every_batch_size_of_its_model() -> None:
    x = images()[1][:3]
    wanted = compiler.build(quantize.realize(net("resnet8"), plan_of("resnet8")))(x)
    for shape in ((3, 1, 28, 28), ("n", 1, 28, 28)):
        mod = compiler.from_onnx(ZOO / "mnist_resnet8.onnx", shapes={"input": shape})
        q = quantize.realize(mod, plan_of("resnet8"))
        np.testing.assert_array_equal(compiler.build(q)(x), wanted)


def test_the_fingerprint_of_a_prepared_module_is_its_own() -> None:
    once = quantize.annotate(mixed_net()).module
    assert fingerprint_of(once) == fingerprint_of(quantize.annotate(once).module)
    assert fingerprint_of(once) != fingerprint_of(quantize.annotate(mixed_net(1)).module)


def test_a_plan_may_be_edited_and_realized_again() -> None:
    plan = quantize.calibrate(mixed_net(), [noise(4)], QConfig(bias_correction="none"))
    data = json.loads(plan.to_json())
    data["nodes"]["c1"].update(decision="float", reason="I say so")
    data["nodes"]["r1"].update(decision="float", reason="its producer is")
    data["values"]["c3"]["scale"] *= 2
    q = quantize.realize(mixed_net(), Plan.from_json(json.dumps(data)))
    assert any(str(b.value.op) == "nn.relu" for b in q.main.bindings if hasattr(b.value, "op"))
    with pytest.raises(ConfigError, match="another model"):
        quantize.realize(mixed_net(), replace(plan, model="0" * 64))


# ---- requests of one bit -------------------------------------------------------------------------
@pytest.mark.parametrize("field", ["weight_bits", "activation_bits"])
@pytest.mark.parametrize("bits", [1, 0, -3, 2.0, None])
def test_requests_of_one_bit_are_refused(field: str, bits: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be an integer from 2 to"):
        QConfig(**{field: bits})
    with pytest.raises(ConfigError, match=f"{field} must be "):
        QConfig(overrides={"a": {field: bits}})


# ---- layers without weights ----------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(4, 0), (0, 4)])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"activation_dtype": "float32"},
        {"weight_dtype": "int4", "activation_granularity": "token"},
        {"weight_dtype": "mxfp4_e2m1", "activation_dtype": "mxfp4_e2m1"},
        {"weight_dtype": "nvfp4", "activation_dtype": "float32"},
    ],
)
def test_a_layer_without_weights_stays_float_and_says_so(
    shape: tuple[int, int], fields: dict[str, Any]
) -> None:
    b = FunctionBuilder()
    x = b.param("x", (3, shape[1]))
    weight = b.const(np.zeros(shape, np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", x, weight, name="y"))})
    data = np.zeros((3, shape[1]), np.float32)
    plan = quantize.calibrate(mod, [data], QConfig(**fields))
    assert plan.nodes["y"].reason == "its weights are empty"
    found = compiler.build(quantize.realize(mod, plan))(data)
    np.testing.assert_array_equal(found, np.zeros((3, shape[0])))
