"""Plans become integer graphs: structure, bits, accuracy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from quantize_nets import NETS, images, mixed_net, net, noise, plan_of

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.ir.expr import IRModule, Var, operands, tensor_type
from compiler.ir.verifier import verify
from compiler.op.qnn import ROUNDINGS
from quantize import QConfig


def float_values(mod: IRModule) -> list[str]:
    """Names of the float values between the quantized inputs and the dequantized results."""
    f = mod.main
    inner = [b for b in f.bindings if b.var not in f.results]
    return [b.var.name for b in inner if tensor_type(b.var).dtype.is_float]


def op_names(mod: IRModule) -> list[str]:
    return [getattr(getattr(b.value, "op", None), "name", "") for b in mod.main.bindings]


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


@pytest.mark.parametrize("name", NETS)
def test_compiled_equals_interpreted_bit_for_bit_on_200_images(name: str) -> None:
    q = quantize.realize(net(name), plan_of(name))
    x = images()[1][:200]
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_scheme_is_compiled_to_the_same_bits(rounding: str, dtype: str) -> None:
    config = QConfig(requantize=rounding, activation_dtype=dtype, weight_granularity="tensor")
    q = quantize.realize(net("dwsep"), plan_of("dwsep", config))
    x = images()[1][:20]
    np.testing.assert_array_equal(compiler.build(q)(x), compiler.evaluate(q, x))


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
