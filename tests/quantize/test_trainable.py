"""Quantized networks as programs to train: their integers are those of the integer graph, and what
flows back is what the straight-through estimator and learned steps say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from qnn_checks import check
from quantize_nets import images, mixed_net, noise, sized
from random_nets import configs, images_of, networks

import compiler
import quantize
from compiler.errors import UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, IRModule, Var, operands
from compiler.ir.substitution import with_operands
from compiler.op.opdef import OpDef
from compiler.types.dtypes import FLOAT32, Array
from quantize import Plan, QConfig
from quantize.annotation.annotate import prepared
from quantize.reference.integers import quantized
from quantize.trainable.simulation import Trainable, learned_plan, settled, trainable

RANDOM = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)  # fmt: skip
PLAIN = {"smoothing": 0, "weight_range": "restricted", "bias_correction": "none"}


def weights_of(mod: IRModule) -> tuple[dict[int, Var], dict[str, Constant]]:
    """A variable for each constant of a contraction, and for gains and shifts of layer norms."""
    variables, constants = dict[int, Var](), dict[str, Constant]()
    for b in mod.main.bindings:
        v = b.value
        if not isinstance(v, Call) or not isinstance(v.op, OpDef):
            continue
        if v.op.contraction is None and v.op.name != "nn.layer_norm":
            continue
        for k, a in enumerate(v.args):
            if isinstance(a, Constant) and a.dtype == FLOAT32 and id(a) not in variables:
                var = Var(f"{b.var.name}.{k}", a.type)
                variables[id(a)], constants[var.name] = var, a
    return variables, constants


def moved(t: Trainable, constants: dict[str, Constant], seed: int) -> dict[str, Array]:
    """Weights and steps as training might leave them."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, c in constants.items():
        size = float(np.abs(c.data).max(initial=0)) * 0.1
        found[name] = (c.data + rng.normal(0, 1, c.data.shape) * size).astype(np.float32)
    for s in t.steps:
        found[s.var.name] = (s.value * rng.uniform(0.7, 1.4, s.value.shape)).astype(np.float32)
    return found


def after(mod: IRModule, variables: dict[int, Var], values: dict[str, Array]) -> IRModule:
    """The module with the values in place of its constants."""

    def new(a: Any) -> Any:
        var = variables.get(id(a)) if isinstance(a, Constant) else None
        return a if var is None else Constant(values[var.name], FLOAT32)

    bindings = [
        replace(b, value=with_operands(b.value, map(new, operands(b.value))))
        for b in mod.main.bindings
    ]
    return prepared(mod.with_function("main", mod.main.with_body(bindings, mod.main.results)))


def many(x: Any) -> list[Array]:
    return x if isinstance(x, list) else [x]


def check_integers(mod: IRModule, plan: Plan, x: Array, seed: int, compiled: bool = True) -> int:
    """Compare training's integers, after weights and steps have moved, with the integer graph's and
    the reference's; how many values were compared."""
    mod, plan = settled(mod, plan)
    variables, constants = weights_of(mod)
    t = trainable(mod, plan, variables, learned=plan.config.requantize != "shift")
    used = {v.name: constants[v.name] for k, v in variables.items() if k in t.variables}
    values = moved(t, used, seed)
    given = {mod.main.params[0].name: x, **values}
    for name, constant in constants.items():
        values.setdefault(name, np.asarray(constant.data))
    trained = after(mod, variables, values)
    new = learned_plan(plan, trained, t.steps, values)
    codes = quantize.trace_plan(trained, new, x)
    graph = many(compiler.evaluate(quantize.realize(trained, new), x))
    whole = replace(t.function, results=(*t.function.results, *t.codes.values()))
    run: list[Any] = [compiler.evaluate(IRModule({"main": whole}), **given)]
    if compiled:
        run.append(compiler.build(IRModule({"main": whole}))(**given))
    compared = 0
    for got in run:
        for result, want in zip(many(got), graph, strict=False):
            np.testing.assert_array_equal(result, want)
        for name, code in zip(t.codes, many(got)[len(graph) :], strict=True):
            if name in codes and codes[name].kind == "integer":
                np.testing.assert_array_equal(code.astype(np.float64), codes[name].values)
                compared += 1
            elif name in mod.main.params[0].name:
                np.testing.assert_array_equal(code, quantized(x, new.values[name]))
    return compared


@pytest.mark.thorough
@settings(
    max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(networks(), configs(), st.integers(0, 99))
def test_integers_of_random_networks(mod: IRModule, config: QConfig, seed: int) -> None:
    bits = {k: min(getattr(config, k), 8) for k in ("weight_bits", "activation_bits")}
    config = replace(config, **PLAIN, **bits)
    plan = quantize.calibrate(mod, [images_of(seed)], config)
    check_integers(mod, plan, images_of(seed + 1), seed, compiled=False)


@pytest.mark.thorough
@settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(networks(), configs(), st.integers(0, 99))
def test_compiled_integers_of_random_networks(mod: IRModule, config: QConfig, seed: int) -> None:
    bits = {k: min(getattr(config, k), 8) for k in ("weight_bits", "activation_bits")}
    config = replace(config, **PLAIN, **bits)
    plan = quantize.calibrate(mod, [images_of(seed)], config)
    check_integers(mod, plan, images_of(seed + 1), seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bits", [4, 8])
def test_integers_of_branches(bits: int) -> None:
    config = QConfig(weight_bits=bits, activation_bits=bits, **PLAIN)
    mod = mixed_net()
    plan = quantize.calibrate(mod, [noise(8)], config)
    assert check_integers(mod, plan, noise(2, seed=3), 0) > 10


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ["mlp", "resnet8", "dwsep"])
def test_integers_of_shipped_networks(name: str, bits: int) -> None:
    config = QConfig(weight_bits=bits, activation_bits=bits, weight_rounding="gptq", smoothing=0)
    mod = sized(name, 4)
    plan = quantize.calibrate(mod, [images()[0][:4]], config)
    assert check_integers(mod, plan, images()[1][:4], 1) >= 2


def step_gradients(x: Array, scale: Array, dy: Array, low: int, high: int) -> tuple[Array, Array]:
    """Those of x and of the scales (of the first axis), as the paper writes them."""
    v = x.astype(np.float64) / scale.reshape(-1, 1)
    inside = (v >= low) & (v <= high)
    slope = np.where(inside, np.rint(v) - v, np.clip(v, low, high))
    return np.where(inside, dy, 0), (dy * slope).sum(axis=1)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 8), st.integers(1, 4), st.integers(1, 20), st.integers(0, 999))
def test_gradients_of_rounding_to_a_grid(bits: int, rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = -(1 << (bits - 1)) + 1, (1 << (bits - 1)) - 1
    x, dy = rng.normal(0, 1, (2, rows, columns)).astype(np.float32)
    scale = rng.uniform(0.5, 2, rows).astype(np.float32) / high
    b = FunctionBuilder()
    args = b.param("x", x.shape), b.param("scale", scale.shape)
    y = b.call("qnn.simulated_quantize", *args, axis=0, out_dtype="int8", qmin=low, qmax=high)
    both = compiler.gradient(IRModule({"main": b.finish(y)}), ["x", "scale"], cotangent="dy")
    for got in (compiler.evaluate(both, x, scale, dy), compiler.build(both)(x, scale, dy)):
        want = step_gradients(x, scale, dy, low, high)
        np.testing.assert_array_equal(got[1], want[0])
        np.testing.assert_allclose(got[2], want[1], rtol=1e-4, atol=1e-4 * columns * high)


def test_gradients_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, dy = rng.normal(0, 1.5, (2, 50, 7)).astype(np.float32)
    x[np.abs(x / 0.17 - 4.5) > 7.4] *= 2  # torch counts what rounds to the last integer as inside
    b = FunctionBuilder()
    args = b.param("x", x.shape), b.param("scale", ())
    y = b.call("qnn.simulated_quantize", *args, zero_point=3, out_dtype="uint8", qmin=0, qmax=15)
    both = compiler.gradient(IRModule({"main": b.finish(y)}), ["x", "scale"], cotangent="dy")
    scale = np.float32(0.17)
    value, dx, ds = compiler.evaluate(both, x, scale, dy)
    given, step = torch.tensor(x, requires_grad=True), torch.tensor([0.17], requires_grad=True)
    zero = torch.tensor([3.0], requires_grad=True)
    want = torch._fake_quantize_learnable_per_tensor_affine(given, step, zero, 0, 15, 1.0)
    want.backward(torch.tensor(dy))
    np.testing.assert_allclose(value, want.detach().numpy(), rtol=1e-6)
    assert ((x / scale > 12) | (x / scale < -3)).mean() > 0.1
    np.testing.assert_array_equal(dx, given.grad.numpy())
    np.testing.assert_allclose(ds, step.grad.numpy()[0], rtol=1e-3)


def test_a_value_stands_for_another_one() -> None:
    x, other = np.float32([1, 2]), np.float32([5, 7])
    np.testing.assert_array_equal(check("qnn.straight_through", x, other), x)
    b = FunctionBuilder()
    p, q = b.param("p", (2,)), b.param("q", (2,))
    y = b.call("qnn.straight_through", b.call("abs", p), b.call("exp", q))
    mod = IRModule({"main": b.finish(y)})
    both = compiler.gradient(mod, ["p", "q"], cotangent="dy")
    value, dp, dq = compiler.evaluate(both, x, other, np.float32([1, 1]))
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(dp, [0, 0])
    np.testing.assert_allclose(dq, np.exp(other), rtol=1e-6)
    assert "exp" not in prepared(mod).astext()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"activation_bits": 12}, "more than 8 bits"),
        ({"weight_range": "asymmetric", "weight_bits": 4}, "zero points"),
        ({"weight_dtype": "mxfp4_e2m1"}, "numbers of a format"),
        ({"activation_dtype": "float32"}, "integer weights alone"),
    ],
)
def test_what_is_not_trained_says_so(fields: dict[str, Any], why: str) -> None:
    mod = prepared(mixed_net())
    plan = quantize.calibrate(mod, [noise(4)], QConfig(**(PLAIN | fields)))
    with pytest.raises(UnsupportedError, match=why):
        trainable(mod, plan, weights_of(mod)[0])


def test_rescaled_channels_and_learned_shifts_say_so() -> None:
    mod = prepared(sized("mlp", 4))
    for fields, why in (
        ({"equalize": True}, "rescales or rotates"),
        ({"requantize": "shift"}, "powers of two"),
    ):
        plan = quantize.calibrate(mod, [images()[0][:4]], QConfig(**(PLAIN | fields)))
        with pytest.raises(UnsupportedError, match=why):
            trainable(mod, plan, weights_of(mod)[0])
