"""AdaRound and GPTQ solve the least squares problem of a layer, and a plan carries the answer."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
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
from compiler.ir.expr import Binding, IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from experiments.measure import metrics
from quantize import Plan, QConfig
from quantize.calibration.rounding.adaround import adaround
from quantize.calibration.rounding.gptq import gptq, rounded_in_order
from quantize.calibration.rounding.moments import grouped, moments
from quantize.calibration.rounding.network_walk import NetworkWalk
from quantize.calibration.rounding.problem import Problem, problem
from quantize.formats.packing import packed, unpacked
from quantize.plan.scales import largest, least_error

sys.path.insert(0, str(Path(__file__).parent))

from quantize_nets import images, mixed_net, net, noise

FOUR = QConfig(weight_bits=4, weight_calibrate="mse", bias_correction="none")


def layer_problem(seed: int, groups: int, outputs: int, inputs: int, bits: int) -> Problem:
    """A layer with correlated, nonnegative inputs, seen with some noise once quantized."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(groups, outputs, inputs))
    mix = np.eye(inputs) + rng.normal(0, 1 / np.sqrt(inputs), (groups, inputs, inputs))
    x = np.maximum(mix @ rng.normal(size=(groups, inputs, 300)), 0)
    y = x + rng.normal(0, 0.05, x.shape)
    qmax = (1 << (bits - 1)) - 1
    scale = 0.8 * np.abs(weight).max(axis=2, keepdims=True) / qmax
    moment, cross = (a @ y.transpose(0, 2, 1) / 300 for a in (y, x))
    return problem(weight, moment, cross, scale, (-qmax, qmax), 0.01)


problems = st.builds(
    layer_problem, st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.integers(1, 12),
    st.integers(2, 5),
)  # fmt: skip


@settings(max_examples=25)
@given(problems, st.sampled_from(["adaround", "gptq"]))
def test_every_method_lowers_the_error_of_every_output_against_nearest(
    task: Problem, method: str
) -> None:
    q = adaround(task, 300) if method == "adaround" else gptq(task)
    assert (q == np.rint(q)).all()
    assert (np.abs(q) <= task.high).all()
    assert (task.loss(q) <= task.loss(task.nearest())).all()


@pytest.mark.parametrize("method", ["adaround", "gptq"])
def test_wide_layers_lose_less_than_half_of_the_error(method: str) -> None:
    task = layer_problem(5, 1, 24, 96, 3)
    q = adaround(task, 1000) if method == "adaround" else gptq(task)
    assert task.loss(q).sum() < 0.55 * task.loss(task.nearest()).sum()


@settings(max_examples=20)
@given(problems)
def test_gptq_equals_the_textbook_that_solves_least_squares_after_every_input(
    task: Problem,
) -> None:
    fast = rounded_in_order(task.target.copy(), task.moment, task.scale, task.low, task.high)
    for g, o in np.ndindex(*task.target.shape[:2]):
        target, scale, moment = task.target[g, o], task.scale[g, o], task.moment[g]
        row = target.copy()
        for j in range(len(row)):
            low, high = task.low[g, o, j], task.high[g, o, j]
            row[j] = np.clip(np.rint(row[j] / scale[j]), low, high) * scale[j]
            fixed, free = slice(j + 1), slice(j + 1, None)
            # The minimum over the free ones: H_ff (w_f - t_f) = -H_fx (w_x - t_x).
            push = moment[free, fixed] @ (row[fixed] - target[fixed])
            row[free] = target[free] - np.linalg.solve(moment[free, free], push)
        np.testing.assert_allclose(fast[g, o] * scale, row, atol=1e-9)


def test_gptq_in_blocks_equals_gptq_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    task = layer_problem(1, 2, 5, 50, 3)
    monkeypatch.setattr("quantize.calibration.rounding.gptq.BLOCK", 7)
    blocks = gptq(task)
    monkeypatch.setattr("quantize.calibration.rounding.gptq.BLOCK", 50)
    np.testing.assert_array_equal(blocks, gptq(task))


@pytest.mark.thorough
def test_adaround_comes_close_to_the_best_of_all_ways_to_round_up_or_down() -> None:
    found, best, nearest = 0.0, 0.0, 0.0
    for seed in range(12):
        task = layer_problem(seed, 1, 1, 8, 4)
        floor = np.floor(task.target / task.scale)
        every = (floor + np.reshape(up, floor.shape) for up in itertools.product((0, 1), repeat=8))
        best += min(float(task.loss(np.clip(q, task.low, task.high)).sum()) for q in every)
        found += float(task.loss(adaround(task, 1000)).sum())
        nearest += float(task.loss(task.nearest()).sum())
    assert best < found < best + 0.2 * (nearest - best)


def test_the_target_is_the_ridge_regression_of_the_float_results_on_the_quantized_inputs() -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(3, 6)), rng.normal(size=(6, 40))
    y = x + rng.normal(0, 0.2, x.shape)
    task = problem(w[None], (y @ y.T)[None], (x @ y.T)[None], np.ones((1, 1, 1)), (-7, 7), 0.3)
    ridge = 0.3 * np.trace(y @ y.T) / 6
    rows = np.hstack([y, np.sqrt(ridge) * np.eye(6)])
    wanted = np.hstack([w @ x, np.sqrt(ridge) * w])
    solution = np.linalg.lstsq(rows.T, wanted.T, rcond=None)[0].T
    np.testing.assert_allclose(task.target[0], solution, atol=1e-10)


def test_inputs_that_are_always_zero_leave_weights_at_the_nearest_integers() -> None:
    w = np.random.default_rng(2).normal(size=(1, 4, 5))
    nothing = np.zeros((1, 5, 5))
    task = problem(w, nothing, nothing, np.full((1, 1, 1), 0.3), (-7, 7), 0.1)
    for q in (adaround(task, 300), gptq(task)):
        np.testing.assert_array_equal(q, task.nearest())


# ---- data of layers ------------------------------------------------------------------------------
def one_layer(op: str, weight: Array, shape: tuple[int, ...], **attrs: Any) -> tuple[Any, Binding]:
    b = FunctionBuilder()
    b.call(op, b.param("x", shape), b.const(weight.astype(np.float32)), name="y", **attrs)
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    return mod, mod.main.bindings[-1]


@pytest.mark.parametrize(
    ("op", "weight", "shape", "attrs"),
    [
        ("nn.dense", (3, 5), (2, 4, 5), {}),
        ("nn.conv2d", (4, 3, 3, 2), (2, 3, 7, 8), {"padding": (1, 0, 2, 1), "strides": (2, 1)}),
        ("nn.conv2d", (6, 2, 2, 3), (2, 4, 9, 9), {"groups": 2, "dilation": (2, 3)}),
        ("nn.conv2d", (8, 1, 3, 3), (1, 4, 6, 5), {"groups": 4, "padding": (1, 1, 1, 1)}),
    ],
)
def test_moments_are_those_of_the_columns_that_a_layer_multiplies(
    op: str, weight: tuple[int, ...], shape: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=weight)
    mod, layer = one_layer(op, w, shape, **attrs)
    batches = [rng.normal(size=shape).astype(np.float32) for _ in range(2)]
    others = [x + rng.normal(size=shape).astype(np.float32) for x in batches]
    moment, cross, columns = moments(layer, others, batches, 0)
    rows = grouped(layer, w)
    # For all weights, E |W x|^2 and E (W x)(W x') are quadratic forms of the moments.
    ours, theirs = (
        np.concatenate([np.ravel(_channels_first(op, compiler.evaluate(mod, x))) for x in data])
        for data in (batches, others)
    )
    positions = ours.size / len(w)
    assert columns == positions
    assert np.isclose(np.trace(rows @ moment @ rows.transpose(0, 2, 1), axis1=1, axis2=2).sum(),
                      (ours * ours).sum() / positions, rtol=1e-4)  # fmt: skip
    assert np.isclose(np.trace(rows @ cross @ rows.transpose(0, 2, 1), axis1=1, axis2=2).sum(),
                      (theirs * ours).sum() / positions, rtol=1e-4)  # fmt: skip


def _channels_first(op: str, y: Any) -> Array:
    return np.moveaxis(y, -1, 0) if op == "nn.dense" else np.moveaxis(y, 1, 0)


def test_only_some_columns_of_a_large_batch_are_taken_and_the_seed_decides_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, layer = one_layer("nn.dense", np.ones((2, 4)), (500, 4))
    x = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    monkeypatch.setattr("quantize.calibration.rounding.moments.COLUMNS", 100)
    first, again, other = (moments(layer, [x], [x], seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.isclose(np.trace(first[0]), 4, rtol=0.2)


def test_a_walk_gives_the_values_of_the_network_and_forgets_what_is_not_read_again() -> None:
    mod = quantize.annotate(mixed_net()).module
    batches = [{"image": noise(3, 1)}, {"image": noise(3, 2)}]
    walk = NetworkWalk(batches)
    names = ["r1", "padded", "both", "flat", "soft", "out"]
    expected = [{b.var.name: v for b, v in trace(mod, **batch)} for batch in batches]
    for name in names:
        for got, values in zip(walk.value(mod.main, name), expected, strict=True):
            np.testing.assert_allclose(got, values[name], atol=1e-5)
    assert set(walk.values) <= {"image", "soft", "out"}


# ---- plans ---------------------------------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.parametrize("method", ["adaround", "gptq"])
@pytest.mark.parametrize("name", [pytest.param("dwsep", marks=pytest.mark.slow), "mixed"])
def test_networks_with_4_bit_weights_gain_decibels(name: str, method: str) -> None:
    if name == "mixed":
        mod, x, batches = mixed_net(), noise(64, 9), [noise(50, k) for k in range(1, 3)]
    else:
        mod, x = net(name), images()[1][:200]
        batches = [images()[0][i : i + 50] for i in (0, 50)]
    reference = _flat(compiler.build(mod)(x))
    noise_db = []
    for config in (FOUR, replace(FOUR, weight_rounding=method, rounding_steps=500)):
        qmod = quantize.quantize(mod, batches, config)
        noise_db.append(metrics.sqnr_db(_flat(compiler.build(qmod)(x)), reference))
    assert noise_db[1] > noise_db[0] + 2, noise_db


def _flat(results: Any) -> Array:
    return np.ravel(results[0] if isinstance(results, list) else results)


@pytest.mark.thorough
def test_a_plan_with_rounding_is_text_that_realizes_to_the_same_graph_every_time() -> None:
    config = replace(FOUR, weight_rounding="adaround", rounding_steps=100)
    batches = [noise(20, 3)]
    plan = quantize.calibrate(mixed_net(), batches, config)
    assert plan == quantize.calibrate(mixed_net(), batches, config)
    read = Plan.from_json(plan.to_json())
    assert read == plan
    assert "rounded by data" in plan.summary()
    texts = [quantize.realize(mixed_net(), p).astext(show_meta_data=True) for p in (plan, read)]
    assert texts[0] == texts[1]
    nearest = replace(plan, weights={k: replace(w, rounding="") for k, w in plan.weights.items()})
    assert texts[0] != quantize.realize(mixed_net(), nearest).astext(show_meta_data=True)


def test_the_rounding_of_a_weight_takes_a_third_of_a_byte_of_the_plan() -> None:
    b = FunctionBuilder()
    w = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    b.call("nn.dense", b.param("x", (100, 128)), b.const(w))
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    x = np.random.default_rng(1).normal(size=(100, 128)).astype(np.float32)
    plain, rounded = (
        quantize.calibrate(mod, [x], replace(FOUR, weight_rounding=method))
        for method in ("nearest", "gptq")
    )
    assert 0 < len(rounded.to_json()) - len(plain.to_json()) < w.size / 3


def test_simulation_and_realization_use_the_same_chosen_integers() -> None:
    config = replace(FOUR, weight_rounding="gptq")
    plan = quantize.calibrate(mixed_net(), [noise(20, 3)], config)
    x = noise(8, 4)
    real, simulated = (
        compiler.evaluate(f(mixed_net(), plan), x)[0] for f in (quantize.realize, quantize.simulate)
    )
    np.testing.assert_allclose(real, simulated, atol=0.02 * np.abs(real).max())


def test_few_inputs_are_trusted_little() -> None:
    """A layer with more inputs than there are data still gains on data that it has not seen."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    w = rng.normal(size=(16, 200)).astype(np.float32)
    b.call("nn.dense", b.param("x", (Var("n"), 200)), b.const(w))
    mod = IRModule({"main": b.finish(b.bindings[-1].var)})
    mix = rng.normal(size=(200, 200)) * 0.9 ** np.arange(200)
    x = np.maximum(rng.normal(size=(600, 200)) @ mix.T, 0).astype(np.float32)
    reference = compiler.build(mod)(x[20:])
    found = []
    for config in (FOUR, replace(FOUR, weight_rounding="gptq")):
        exe = compiler.build(quantize.quantize(mod, x[:20], config))
        found.append(metrics.sqnr_db(exe(x[20:]), reference))
    assert found[1] > found[0] + 1, found


def test_overrides_choose_the_method_of_a_layer() -> None:
    one = {"c2": {"weight_rounding": "gptq"}}
    plan = quantize.calibrate(mixed_net(), [noise(20, 3)], replace(FOUR, overrides=one))
    assert {k for k, w in plan.weights.items() if w.rounding} == {"c2"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", ["!", "AAAA", packed(np.ones(3))])
def test_damaged_rounding_is_refused(damage: str) -> None:
    plan = quantize.calibrate(mixed_net(), [noise(20, 3)], replace(FOUR, weight_rounding="gptq"))
    data = json.loads(plan.to_json())
    data["weights"]["c1"]["rounding"] = damage
    with pytest.raises(ConfigError, match="rounding of weights"):
        quantize.realize(mixed_net(), Plan.from_dict(data))


@given(st.lists(st.integers(-3, 3), max_size=50))
def test_packing_keeps_every_integer(values: list[int]) -> None:
    a = np.array(values, np.int8)
    np.testing.assert_array_equal(unpacked(packed(a), a.size), a)


# ---- scales --------------------------------------------------------------------------------------
@pytest.mark.thorough
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_the_scale_of_least_error_is_no_worse_than_any_that_was_tried(seed: int, bits: int) -> None:
    rows = np.random.default_rng(seed).standard_t(3, size=(4, 40))
    rows[3] = 0
    qmax = (1 << (bits - 1)) - 1

    def error(scales: Array) -> Array:
        unit = np.where(scales > 0, scales, 1)[:, None]
        clipped = np.clip(np.rint(rows / unit), -qmax, qmax) * unit
        return np.square(clipped - rows).sum(axis=1)

    found, full = (f(rows, bits, "restricted") for f in (least_error, largest))
    assert (found <= full).all()
    assert found[3] == 0
    for ratio in (1.0, 0.9, 0.75, 0.5, 0.3):
        assert (error(found) <= error(full * ratio) + 1e-12).all()
