"""Bias correction takes the mean error of every layer away."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import ConfigError
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.passes.manager import Pass, PassContext, PassInstrument
from compiler.types.tensor_types import TensorType
from experiments.measure import metrics
from quantize import Plan, QConfig
from quantize.calibration import bias_correction
from quantize.calibration.channel_means import channel_sums, corrected_layers
from quantize.calibration.running import Runner, all_results

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import images, net
from random_nets import images_of, networks


def small(groups: int = 2) -> tuple[IRModule, list[Any]]:
    """Layers with and without biases, grouped and dense, whose coarse weights are wrong on
    average."""
    rng = np.random.default_rng(3)
    b = FunctionBuilder()

    def weights(*shape: int) -> Any:
        return b.const(rng.normal(0.3, 1, shape).astype(np.float32))

    y = b.call("nn.conv2d", b.param("x", (4, 4, 7, 7)), weights(6, 4, 3, 3), weights(6))
    y = b.call("nn.conv2d", b.call("nn.relu", y), weights(8, 6 // groups, 2, 2), groups=groups)
    y = b.call("nn.global_avg_pool2d", b.call("nn.relu", y))
    y = b.call("nn.dense", b.call("reshape", y, newshape=(0, 8)), weights(5, 8))
    batches = [rng.normal(0.5, 1, (4, 4, 7, 7)).astype(np.float32) for _ in range(6)]
    return IRModule({"main": b.finish(y)}), batches


def means(mod: IRModule, batches: list[Any], names: list[str]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches:
        values = {b.var.name: v for b, v in trace(mod, batch)}
        for name in names:
            v = values[f"{name}_real" if f"{name}_real" in values else name]
            axes = (0, 2, 3) if v.ndim == 4 else (0,)
            found[name].append(v.mean(axis=axes, dtype=np.float64))
    return {name: np.mean(parts, axis=0) for name, parts in found.items()}


def test_means_of_every_layer_become_those_of_the_float_network() -> None:
    mod, batches = small()
    config = QConfig(weight_bits=3)
    plan = quantize.calibrate(mod, batches, config)
    module = quantize.annotate(mod, config).module
    layers = list(plan.weights)
    assert len(layers) == 3
    float_means = means(module, batches, layers)
    without = quantize.calibrate(mod, batches, QConfig(weight_bits=3, bias_correction="none"))
    assert without.values == plan.values
    for p, most in ((plan, 0.02), (without, np.inf)):
        ours = means(quantize.simulate(module, p), batches, layers)
        errors = {n: np.abs(ours[n] - float_means[n]).max() for n in layers}
        size = {n: np.abs(float_means[n]).max() for n in layers}
        assert all(errors[n] <= most * size[n] for n in layers), (p.config, errors, size)
        if p is without:
            assert max(errors[n] / size[n] for n in layers) > 0.1


def test_the_analytic_shift_is_the_weights_error_times_the_mean_of_the_inputs() -> None:
    mod, batches = small()
    config = QConfig(weight_bits=3, bias_correction="analytic")
    plan = quantize.calibrate(mod, batches, config)
    module = quantize.annotate(mod, config).module
    values = [{b.var.name: v for b, v in trace(module, x)} for x in batches]
    for b in module.main.bindings:
        params = plan.weights.get(b.var.name)
        if params is None:
            continue
        data, weight = b.value.args[0], b.value.args[1].data
        seen = np.concatenate(
            [x if data.name == "x" else v[data.name] for x, v in zip(batches, values, strict=True)]
        )
        mean = seen.mean(axis=(0, 2, 3) if seen.ndim == 4 else 0, dtype=np.float64)
        scales = np.array(params.scales).reshape(-1, *[1] * (weight.ndim - 1))
        error = params.quantized(weight) * scales - weight
        groups = getattr(b.value.attrs, "groups", 1)
        for k, row in enumerate(error):
            part = len(row) * (k // (len(error) // groups))
            taps = row.reshape(len(row), -1).sum(axis=1)
            expected = -(taps * mean[part : part + len(row)]).sum()
            assert params.shift[k] == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["resnet8", "dwsep"])
def test_networks_gain(name: str) -> None:
    mod = net(name)
    calib, x, _ = images()
    x = x[:100]
    reference = compiler.build(mod)(x)
    sqnr = {}
    for how in ("none", "analytic", "empirical"):
        plan = quantize.calibrate(mod, [calib[:32], calib[32:64]], QConfig(bias_correction=how))
        sqnr[how] = metrics.sqnr_db(compiler.build(quantize.realize(mod, plan))(x), reference)
    assert sqnr["empirical"] > sqnr["none"] + 1.5, sqnr
    assert sqnr["analytic"] > sqnr["none"], sqnr


@pytest.mark.parametrize("how", ["none", "analytic", "empirical"])
def test_the_float_network_is_built_once_and_the_simulated_one_in_parts(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mod, batches = small()
    built: list[IRModule] = []
    build = compiler.build

    def counted(module: IRModule, **options: Any) -> Any:
        built.append(module)
        return build(module, **options)

    monkeypatch.setattr(compiler, "build", counted)
    plan = quantize.calibrate(mod, batches, QConfig(weight_bits=3, bias_correction=how))
    simulated = ["simulated_quantize" in m.astext() for m in built]
    # Each of three layers ends a part, and something follows the last.
    assert simulated == {"none": [False], "analytic": [False, True, True]}.get(
        how, [False, True, True, True]
    )
    assert any(w.shift for w in plan.weights.values()) == (how != "none")


def test_instruments_see_one_pass_of_the_parts_after_the_other() -> None:
    """Parts are built by several threads, but not where somebody watches."""
    inside: list[int] = []
    builders: set[str] = set()

    class Watch(PassInstrument):
        def before(self, mod: IRModule, pass_: Pass) -> None:
            if (thread := threading.current_thread()) is not threading.main_thread():
                builders.add(thread.name)
                assert set(inside) <= {threading.get_ident()}
                inside.append(threading.get_ident())

        def after(self, mod: IRModule, pass_: Pass) -> None:
            if threading.current_thread() is not threading.main_thread():
                inside.pop()

    mod, batches = small()
    plan = quantize.calibrate(mod, batches[:2], QConfig(weight_bits=3))
    with PassContext(instruments=[Watch()]):
        assert quantize.calibrate(mod, batches[:2], QConfig(weight_bits=3)) == plan
    assert len(builders) == 1
    assert not inside


@pytest.mark.thorough
@settings(max_examples=2, deadline=None)
@given(module=networks(), seed=st.integers(0, 99))
def test_parts_and_shared_programs_have_the_bits_of_whole_ones(module: IRModule, seed: int) -> None:
    """Whether a correction helps is judged by networks that run in parts, and shifts come from
    values that are observed beside others."""
    config = QConfig(weight_bits=4, bias_correction="none")
    x = {module.main.params[0].name: images_of(seed)}
    annotation = quantize.annotate(module, config)
    plan = quantize.calibrate(module, [x], config)
    prepared, threads = annotation.module, 2
    layers = corrected_layers(prepared, plan.nodes)
    f = quantize.simulate(prepared, plan).main
    bound = {b.var.name: b.var for b in f.bindings}
    cuts = {bound.get(f"{name}_real", bound.get(name)) for name in layers}
    parts = bias_correction._parts(f, cuts - {None})
    programs = list(bias_correction._built(parts, threads))
    chained = bias_correction._chained(f, parts, programs, x)
    whole = all_results(IRModule({"main": f}), [x], threads)
    assert [a.tobytes() for a in chained] == [a.tobytes() for a in whole]

    wanted = [b.var for b in layers.values()]
    every = [b.var for b in prepared.main.bindings if isinstance(b.var.type, TensorType)]
    beside = dict(
        zip(every, Runner(prepared, every, threads, set(every) - {*wanted})(x), strict=True)
    )
    for v, alone in zip(wanted, Runner(prepared, wanted, threads)(x), strict=True):
        assert beside[v].tobytes() == alone.tobytes()


def test_plans_keep_the_shift() -> None:
    mod, batches = small(groups=1)
    plan = quantize.calibrate(mod, batches)
    assert all(w.shift for w in plan.weights.values())
    again = Plan.from_json(plan.to_json())
    assert again == plan
    x = batches[0]
    assert (
        compiler.evaluate(quantize.realize(mod, again), x).tobytes()
        == compiler.build(quantize.realize(mod, plan))(x).tobytes()
    )
    data = json.loads(plan.to_json())
    first = next(iter(data["weights"]))
    for shift, message in (
        ([1.0], "shifts the biases of 1"),
        ("none", "must be a list of numbers"),
        ([True, 2], "must be a list of numbers"),
    ):
        data["weights"][first]["shift"] = shift
        with pytest.raises(ConfigError, match=message):
            quantize.realize(mod, Plan.from_dict(data))


def test_unknown_ways_are_refused() -> None:
    with pytest.raises(ConfigError, match="bias_correction 'empiric'; did you mean 'empirical'"):
        QConfig(bias_correction="empiric")


@pytest.mark.parametrize("way", ["empirical", "analytic"])
def test_means_beyond_float32_are_no_warnings(way: str) -> None:
    """Sums of float32's largest numbers; and a channel that overflows keeps its bias."""
    b = FunctionBuilder()
    rng = np.random.default_rng(1)
    w = rng.uniform(0.001, 0.01, (4, 2, 3, 3)).astype(np.float32)
    w[1] *= 1000
    y = b.call("nn.conv2d", b.param("x", (2, 2, 6, 6)), b.const(w), b.const(np.ones(4, np.float32)))
    mod = IRModule({"main": b.finish(b.call("nn.relu", y))})
    x = rng.uniform(0.5, 1, (2, 2, 6, 6)).astype(np.float32) * np.float32(3.4e38)
    plan = quantize.calibrate(mod, [x], QConfig(bias_correction=way, weight_bits=4))
    (layer,) = plan.weights.values()
    assert np.isfinite(np.asarray(layer.shift or 0.0)).all()
    sums, count = channel_sums(np.full((1, 3, 5, 5), 3e38, np.float32), 1)
    np.testing.assert_allclose(sums / count, 3e38, rtol=1e-6)
    sums, _ = channel_sums(np.array([[[np.inf, -np.inf]], [[1.0, 2.0]]], np.float32), 1)
    assert np.isnan(sums).all()
