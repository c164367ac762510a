"""Plans become integer graphs: structure, bits, accuracy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from quantize_nets import NETS, ZOO, images, mixed_net, net, noise, plan_of

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule, Var, operands, tensor_type
from compiler.ir.verifier import verify
from compiler.op.qnn.requantize import ROUNDINGS
from compiler.transform.preparation import prepare
from compiler.types.dtypes import Array
from quantize import QConfig


def float_values(mod: IRModule) -> list[str]:
    """Names of the float values between the quantized inputs and the dequantized results."""
    f = mod.main
    inner = [b for b in f.bindings if b.var not in f.results]
    return [b.var.name for b in inner if tensor_type(b.var).dtype.is_float]


def op_names(mod: IRModule) -> list[str]:
    return [getattr(getattr(b.value, "op", None), "name", "") for b in mod.main.bindings]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETS)
def test_no_float_value_inside_the_integer_graph(name: str) -> None:
    q = quantize.realize(net(name), plan_of(name))
    verify(q)
    assert float_values(q) == []
    ops = op_names(q)
    assert ops.count("qnn.quantize") == 1
    assert ops.count("qnn.dequantize") == 1
    assert ops[0] == "qnn.quantize"
    assert ops[-1] == "qnn.dequantize"
    assert [(p.name, p.type) for p in q.main.params] == [
        (p.name, p.type) for p in net(name).main.params
    ]
    assert q.main.type.result == net(name).main.type.result


@pytest.mark.parametrize("name", NETS)
def test_every_origin_is_kept(name: str) -> None:
    kept = {o for b in quantize.realize(net(name), plan_of(name)).main.bindings for o in b.origins}
    planned = {o for n in plan_of(name).nodes.values() for o in n.origins}
    assert planned <= kept


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETS)
def test_compiled_equals_interpreted_bit_for_bit_on_200_images(name: str) -> None:
    q = quantize.realize(net(name), plan_of(name))
    x = images()[1][:200]
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


@pytest.mark.thorough
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_scheme_is_compiled_to_the_same_bits(rounding: str, dtype: str) -> None:
    config = QConfig(requantize=rounding, activation_dtype=dtype, weight_granularity="tensor")
    q = quantize.realize(net("dwsep"), plan_of("dwsep", config))
    x = images()[1][:20]
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "config", [QConfig(), QConfig(calibrate="kl"), QConfig(calibrate="minmax")]
)
@pytest.mark.parametrize("name", NETS)
def test_accuracy_on_1000_images(name: str, config: QConfig) -> None:
    _, x, labels = images()
    real = compiler.build(net(name))(x)
    ints = compiler.build(quantize.realize(net(name), plan_of(name, config)))(x)
    exact, quantized = (float(100 * (y.argmax(1) == labels).mean()) for y in (real, ints))
    assert quantized >= exact - 0.3
    sqnr = 10 * np.log10((real.astype(float) ** 2).sum() / ((real.astype(float) - ints) ** 2).sum())
    assert sqnr > 28


def test_mixed_graph() -> None:
    mod = mixed_net()
    plan = quantize.calibrate(mod, [noise(8, s) for s in range(4)])
    q = quantize.realize(mod, plan)
    verify(q)
    assert plan.skipped.keys() == {"soft", "out"}
    assert {k: n.decision for k, n in plan.nodes.items() if n.decision == "folded"} == {
        "r1": "folded",
        "r2": "folded",
    }
    x = noise(5, 9)
    want, got = compiler.evaluate(mod, x), compiler.evaluate(q, x)
    for w, g, c in zip(want, got, compiler.build(q)(x), strict=True):
        assert np.abs(w - g).max() < 0.05 * np.abs(w).max()
        if g is got[1]:
            np.testing.assert_allclose(g, c, atol=1e-6)  # softmax is a float operator


def test_a_value_is_quantized_once() -> None:
    mod = mixed_net()
    q = quantize.quantize(mod, [noise(8)])
    read = [b.value for b in q.main.bindings if op_names(q)]
    quantized = [operands(v)[0] for v in read if str(getattr(v, "op", "")) == "qnn.quantize"]
    assert len(quantized) == len({a.name for a in quantized if isinstance(a, Var)}) == 2


@pytest.mark.thorough
def test_without_boundary_the_interface_is_integers() -> None:
    mod, plan = net("resnet8"), plan_of("resnet8")
    q = quantize.realize(mod, plan, boundary=False)
    verify(q)
    assert {str(tensor_type(b.var).dtype) for b in q.main.bindings} <= {"int32", "uint8"}
    (p,) = q.main.params
    assert str(tensor_type(p).dtype) == "uint8"
    facts = q.attrs["quantized"]
    scale, zero = facts["input"]
    x = images()[1][:8]
    stored = np.clip(np.rint(x / np.float32(scale)) + zero, 0, 255).astype(np.uint8)
    y = compiler.evaluate(q, stored).astype(np.float32) * facts["logits"][0]
    np.testing.assert_array_equal(y, compiler.evaluate(quantize.realize(mod, plan), x))


def test_skipped_nodes_stay_float_and_the_rest_does_not() -> None:
    config = QConfig(skip=("conv_2", "d?"))
    plan = quantize.calibrate(mixed_net(), [noise(8)], config)
    assert plan.skipped["c2"] == "excluded by skip='conv_2'"
    assert plan.skipped["d1"] == plan.skipped["d3"] == "excluded by skip='d?'"
    assert plan.skipped.keys() == {"c2", "soft", "d1", "d2", "d3", "out"}
    q = quantize.realize(mixed_net(), plan)
    verify(q)
    floats = [b for b in q.main.bindings if b.var.name in ("c2", "d1")]
    assert all(str(tensor_type(b.var).dtype) == "float32" for b in floats)
    want = compiler.evaluate(mixed_net(), noise(3))
    for w, g in zip(want, compiler.evaluate(q, noise(3)), strict=True):
        assert np.abs(w - g).max() < 0.05 * np.abs(w).max()


@pytest.mark.thorough
# ---- plans that are edited -----------------------------------------------------------------------
def test_a_node_can_be_made_float_in_the_plan() -> None:
    plan = plan_of("resnet8")
    node = replace(plan.nodes["getitem_3"], decision="float", reason="by hand")
    edited = replace(plan, nodes={**plan.nodes, "getitem_3": node})
    q = quantize.realize(net("resnet8"), edited)
    verify(q)
    assert edited.skipped == {"getitem_3": "by hand"}
    assert "getitem_3" in float_values(q)
    assert "relu_1" in float_values(q)  # it was folded into the node
    x = images()[1][:50]
    assert (
        compiler.evaluate(q, x).argmax(1) == compiler.evaluate(net("resnet8"), x).argmax(1)
    ).all()


def test_plans_that_do_not_fit() -> None:
    plan, mod = plan_of("mlp"), net("mlp")
    with pytest.raises(ConfigError, match="made for another model"):
        quantize.realize(net("dwsep"), plan)
    with pytest.raises(ConfigError, match="no parameters for the value 'input'"):
        quantize.realize(mod, replace(plan, values={}))
    with pytest.raises(ConfigError, match="no scales for the weights of the integer node 'linear'"):
        quantize.realize(mod, replace(plan, weights={}))
    short = replace(plan.weights["linear"], scales=(0.5, 0.25))
    with pytest.raises(ConfigError, match="128 output channels"):
        quantize.realize(mod, replace(plan, weights={**plan.weights, "linear": short}))
    folded = replace(plan.nodes["linear"], decision="folded")
    with pytest.raises(ConfigError, match=r"'linear' \(nn.dense\) cannot be folded"):
        quantize.realize(mod, replace(plan, nodes={**plan.nodes, "linear": folded}))
    mixed = quantize.calibrate(mixed_net(), [noise(2)])
    soft = replace(mixed.nodes["soft"], decision="integer")
    with pytest.raises(ConfigError, match="cannot be integer: it has no integer form"):
        quantize.realize(mixed_net(), replace(mixed, nodes={**mixed.nodes, "soft": soft}))
    with pytest.raises(ConfigError, match="version 99"):
        quantize.realize(mod, replace(plan, prepare_version=99))


def test_context_does_not_change_the_names() -> None:
    with compiler.PassContext(opt_level=0):
        q = quantize.realize(net("resnet8"), plan_of("resnet8"))
    assert float_values(q) == []


# ---- simulation ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mlp", "dwsep"])
def test_simulation_is_exact_where_float32_sums_are(name: str) -> None:
    """With powers of two as scales, every product and sum is a float32 number."""

    def power(scale: float) -> float:
        return float(2.0 ** np.ceil(np.log2(scale)))

    plan = plan_of(name)
    plan = replace(
        plan,
        values={k: replace(v, scale=power(v.scale)) for k, v in plan.values.items()},
        weights={
            k: replace(w, scales=tuple(power(s) for s in w.scales)) for k, w in plan.weights.items()
        },
    )
    x = images()[1][:40]
    simulated, realized = quantize.simulate(net(name), plan), quantize.realize(net(name), plan)
    verify(simulated)
    np.testing.assert_array_equal(compiler.evaluate(simulated, x), compiler.evaluate(realized, x))


def test_simulation_of_every_form() -> None:
    mod = mixed_net()
    plan = quantize.calibrate(mod, [noise(8)])
    simulated = quantize.simulate(mod, plan)
    verify(simulated)
    pairs = zip(
        compiler.evaluate(simulated, noise(4)),
        compiler.evaluate(quantize.realize(mod, plan), noise(4)),
        strict=True,
    )
    for s, r in pairs:
        assert np.abs(s - r).max() < 0.02 * np.abs(r).max()


# ---- names ---------------------------------------------------------------------------------------
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NETS)
def test_a_plan_fits_the_model_at_any_batch_size_and_prepared(name: str) -> None:
    plan = plan_of(name)
    x = images()[1][:4]
    want = compiler.evaluate(quantize.realize(net(name), plan), x)
    fixed = compiler.from_onnx(ZOO / f"mnist_{name}.onnx", shapes={"input": (4, 1, 28, 28)})
    for mod in (fixed, prepare(net(name))):
        q = quantize.realize(mod, plan)
        verify(q)
        np.testing.assert_array_equal(compiler.evaluate(q, x), want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "config",
    [
        QConfig(activation_symmetric=True),
        QConfig(activation_symmetric=True, activation_dtype="int8", activation_bits=5),
        QConfig(weight_bits=3, activation_dtype="int8"),
    ],
)
def test_narrow_and_symmetric_schemes(config: QConfig) -> None:
    plan = plan_of("mlp", config)
    middle = 128 if config.activation_dtype == "uint8" else 0
    if config.activation_symmetric:
        assert {v.zero_point for v in plan.values.values()} == {middle}
    q = quantize.realize(net("mlp"), plan)
    x = images()[1][:100]
    seen = dict(zip(("input_q", "relu_q"), _values(q, x, "input_q", "relu_q"), strict=True))
    for name, v in (("input_q", plan.values["input"]), ("relu_q", plan.values["relu"])):
        assert v.qmin <= seen[name].min() <= seen[name].max() <= v.qmax
        assert v.qmax - v.qmin == 2**config.activation_bits - 1
    weights = {id(a): a for b in q.main.bindings for a in operands(b.value)}.values()
    stored = [a.data for a in weights if isinstance(a, Constant) and str(a.dtype) == "int8"]
    assert max(int(np.abs(w).max()) for w in stored) == 2 ** (config.weight_bits - 1) - 1
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


def _values(mod: IRModule, x: Array, *names: str) -> list[Array]:
    found = {b.var.name: v for b, v in trace(mod, x)}
    return [found[n] for n in names]


def test_scales_that_32_bits_cannot_hold_are_refused() -> None:
    plan = plan_of("mlp")
    tiny = replace(plan.values["relu"], scale=2.0**-60)
    with pytest.raises(ConfigError, match=r"scale .* of 'relu' is too small"):
        quantize.realize(net("mlp"), replace(plan, values={**plan.values, "relu": tiny}))


def test_calibration_of_a_dead_channel_keeps_its_scale_large_enough() -> None:
    """Data for which the result is nearly constant says nothing about other data."""
    x = images()[0][:1]
    q = quantize.quantize(net("dwsep"), [x * np.float32(1e-6)])
    y = images()[1][:20]
    np.testing.assert_array_equal(compiler.build(q)(y), compiler.evaluate(q, y))


def test_chains_of_activations() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 8))
    rng = np.random.default_rng(0)
    w = b.const(rng.normal(0, 0.5, (8, 8)).astype(np.float32))
    y = b.call("clip", b.call("nn.dense", x, w, name="d1"), a_min=-0.25, a_max=2.0, name="a1")
    y = b.call("clip", y, a_min=-3.0, a_max=1.0, name="a2")
    y = b.call("transpose", b.call("nn.dense", y, w, name="d2"), axes=(1, 0))
    y = b.call("transpose", b.call("nn.relu", y, name="a3"), axes=(1, 0))
    y = b.call("clip", y, a_max=0.5, name="a4")
    mod = IRModule({"main": b.finish(b.call("nn.dense", y, w, name="d3"))})
    data = rng.normal(0, 2, (2, 8)).astype(np.float32)
    plan = quantize.calibrate(mod, data)
    assert [plan.nodes[f"a{k}"].decision for k in (1, 2, 3, 4)] == [
        "folded", "folded", "integer", "integer",
    ]  # fmt: skip
    q = quantize.realize(mod, plan)
    verify(q)
    want = dict(zip(("a2", "a4"), _values(mod, data, "a2", "a4"), strict=True))
    got = dict(zip(("a2", "a4"), _values(q, data, "a2_q", "a4_q"), strict=True))
    for name, params in (("a2", plan.values["a2"]), ("a4", plan.values["d2"])):
        real = (got[name].astype(np.float32) - params.zero_point) * params.scale
        assert np.abs(real - want[name]).max() < 4 * params.scale
        assert real.max() <= {"a2": 1.0, "a4": 0.5}[name] + params.scale / 2
    simulated = quantize.simulate(mod, plan)
    error = compiler.evaluate(simulated, data) - compiler.evaluate(q, data)
    assert np.abs(error).max() < 1e-3


@pytest.mark.thorough
def test_shifts_scale_by_powers_of_two_only() -> None:
    plan = plan_of("resnet8", QConfig(requantize="shift"))
    scales = [v.scale for v in plan.values.values()]
    scales += [s for w in plan.weights.values() for s in w.scales]
    assert {float(np.frexp(s)[0]) for s in scales} == {0.5}
    other = replace(plan_of("resnet8"), config=QConfig(requantize="shift"))
    with pytest.raises(ConfigError, match=r"no powers of two; calibrate with requantize='shift'"):
        quantize.realize(net("resnet8"), other)
