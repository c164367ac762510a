"""The training step: compiled as interpreted, bit for bit; optimizers against numpy and torch."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import CLASSES, tiny_examples, tiny_network

import compiler
from compiler.ir.expr import Call
from experiments.training.batch_norm import by_batch
from experiments.training.formats import FORWARD, PARTS, Computed, Formats
from experiments.training.initial import draw, initial, order
from experiments.training.loss_scale import LossScale
from experiments.training.network import Network
from experiments.training.optimizers import Optimizer
from experiments.training.programs import one_hot
from experiments.training.spec import load_training
from experiments.training.step import (
    DRAW,
    RATE,
    SCALE,
    TARGETS,
    UNSCALE,
    Rules,
    Step,
    training_step,
)

BATCH = 4
TABLES = ("training.toml", "training_cnn.toml", "training_vit.toml")
PARTED = 16
"""Tests that share the formats of the tables."""
SGD = Rules()
MIXED = Formats(
    Computed("float8_e4m3fn", "float32"), Computed("float8_e5m2", "float32"), Computed("float32")
)


def states(
    network: Network, step: Step, rules: Rules, run: Any, steps: int, scale: float = 1.0
) -> Any:
    """Weights, states and losses of steps that `run` computes."""
    x, y = tiny_examples(BATCH * steps)
    targets = one_hot(y, CLASSES)
    weights = initial(network, 0)
    shapes = {p.name: p.type.static_shape for p in step.module.main.params}
    kept = {n: weights.get(n, np.zeros(shapes[n], np.float32)) for n in step.kept}
    losses = []
    for k in range(steps):
        part = slice(k * BATCH, k * BATCH + BATCH)
        scalars = {RATE: 0.05, SCALE: scale, UNSCALE: 1 / scale, **rules.optimizer.scalars_at(k)}
        numbers = {n: np.array(scalars[n], np.float32) for n in step.numbers}
        if step.random:
            numbers[DRAW] = np.array(draw(0, k), np.int64)
        out = run(**{step.inputs[0]: x[part], TARGETS: targets[part], **numbers, **kept})
        found = dict(zip((*step.results, *step.kept), out, strict=True))
        losses.append(float(found["loss"]))
        kept = {n: found[n] for n in step.kept}
    return kept, losses


def both(rules: Rules, formats: Formats, steps: int, scale: float = 1.0) -> Any:
    network = tiny_network(BATCH)
    step = training_step(network, rules, formats)
    exe = compiler.build(step.module)

    def interpreted(**given: Any) -> Any:
        return compiler.evaluate(step.module, **given)

    return (
        states(network, step, rules, exe, steps, scale),
        states(network, step, rules, interpreted, steps, scale),
    )


FORMATS = {
    "bfloat16": Formats.all("bfloat16"),
    "float16": Formats.all("float16"),
    "posit16_es1": Formats.all("posit16_es1"),
    "posit8_es1": Formats.all("posit8_es1"),
    "fixed16_8": Formats.all("fixed16_8"),
    "takum8": Formats(Computed("takum8"), Computed("takum8")),
    "fp8": MIXED,
    "master": Formats(Computed("bfloat16"), Computed("bfloat16")),
    "exact": Formats(Computed("posit16_es1", "exact"), Computed("posit16_es1", "exact")),
    "random": Formats.all("posit8_es1_stochastic", "float32"),
    "random sums": Formats.all("float8_e4m3fn_stochastic"),
    "random update": replace(MIXED, update=Computed("bfloat16_stochastic")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [
    pytest.param(n, marks=() if n in ("fp8", "random update") else pytest.mark.thorough)
    for n in FORMATS
])  # fmt: skip
def test_twenty_compiled_steps_are_those_interpreted(name: str) -> None:
    (compiled, losses), (interpreted, expected) = both(SGD, FORMATS[name], 20)
    np.testing.assert_array_equal(losses, expected)
    for key, array in interpreted.items():
        assert compiled[key].tobytes() == array.tobytes(), key
    assert len({*losses}) > 1


@cache
def recorded() -> list[Formats]:
    """What the shipped tables of trainings compute in, but float32 itself."""
    folder = Path(__file__).parents[2] / "results"
    found = [run.formats for n in TABLES for run in load_training(folder / n).runs]
    return [f for f in dict.fromkeys(found) if f != Formats()]


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTED))
def test_steps_in_every_format_of_the_tables_are_those_interpreted(part: int) -> None:
    for formats in recorded()[part::PARTED]:
        (compiled, losses), (interpreted, expected) = both(SGD, formats, 20)
        np.testing.assert_array_equal(losses, expected, err_msg=str(formats))
        for key, array in interpreted.items():
            assert compiled[key].tobytes() == array.tobytes(), (str(formats), key)


@pytest.mark.thorough
def test_float32_steps_agree_within_rounding() -> None:
    (compiled, losses), (interpreted, expected) = both(SGD, Formats(), 20)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert losses[-1] < losses[0] / 2
    for key, array in interpreted.items():
        np.testing.assert_allclose(compiled[key], array, atol=1e-4)


@pytest.mark.parametrize("formats", [Formats.all("bfloat16"), MIXED], ids=["all", "mixed"])
def test_every_part_is_in_its_format(formats: Formats) -> None:
    module = training_step(tiny_network(BATCH), SGD, formats).module
    seen = set()
    for b in module.main.bindings:
        t = b.var.type
        if isinstance(b.value, Call) and b.value.op.name != "cast" and t.dtype.kind != "bool":
            part = b.origins[0].partition(":")[0]
            part = "backward" if part == FORWARD and b.origins[0].endswith("/gradient") else part
            wanted = getattr(formats, part).format
            seen.add(part)
            assert str(t.dtype) in (wanted, f"custom[{wanted}]{t.dtype.bits}"), (part, b)
    assert seen == {*PARTS}


def reference_sgd(o: Optimizer, w: Any, g: Any, rate: float, k: int, state: list[Any]) -> Any:
    g = g + o.weight_decay * w
    if o.momentum:
        state[0] = o.momentum * state[0] + g
        g = g + o.momentum * state[0] if o.nesterov else state[0]
    return w - rate * g


def reference_adam(o: Optimizer, w: Any, g: Any, rate: float, k: int, state: list[Any]) -> Any:
    if o.name == "adamw":
        w = w - rate * o.weight_decay * w
    else:
        g = g + o.weight_decay * w
    state[0] = o.beta1 * state[0] + (1 - o.beta1) * g
    state[1] = o.beta2 * state[1] + (1 - o.beta2) * g * g
    unbiased = state[0] / (1 - o.beta1 ** (k + 1)), state[1] / (1 - o.beta2 ** (k + 1))
    return w - rate * unbiased[0] / (np.sqrt(unbiased[1]) + o.epsilon)


OPTIMIZERS = (
    Optimizer(momentum=0.0),
    Optimizer(weight_decay=0.1),
    Optimizer(nesterov=True),
    Optimizer("adam", weight_decay=0.1),
    Optimizer("adamw", weight_decay=0.1),
)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name}{o.nesterov:d}")
def test_optimizers_are_their_formulas(optimizer: Optimizer) -> None:
    """Gradients are those of plain descent; what is done with them is numpy's."""
    network, rules = tiny_network(BATCH, batch_norm=False), Rules(optimizer)
    plain = Rules(Optimizer(momentum=0.0))
    descent = training_step(network, plain, Formats())
    step = training_step(network, rules, Formats())
    x, y = tiny_examples(BATCH)
    given = {step.inputs[0]: x, TARGETS: one_hot(y, CLASSES)}
    names = [p.name for p in network.trained]
    weights = initial(network, 0)
    kept = {n: weights.get(n) for n in step.kept}
    shapes = {p.name: p.type.static_shape for p in step.module.main.params}
    kept = {n: np.zeros(shapes[n], np.float32) if a is None else a for n, a in kept.items()}
    states_of = {n: [np.zeros(shapes[n]) for _ in optimizer.states] for n in names}
    wanted = {n: weights[n].astype(np.float64) for n in names}
    for k in range(2):
        numbers = {RATE: 0.1, **optimizer.scalars_at(k)}
        scalars = {n: np.array(v, np.float32) for n, v in numbers.items()}
        now = {n: kept[n] for n in descent.kept}
        moved = compiler.evaluate(descent.module, **given, **now, rate=np.array(1, np.float32))
        after = dict(zip((*descent.results, *descent.kept), moved, strict=True))
        out = compiler.evaluate(step.module, **given, **kept, **scalars)
        for n in names:
            g = (now[n] - after[n]).astype(np.float64)
            rule = reference_sgd if optimizer.name == "sgd" else reference_adam
            wanted[n] = rule(optimizer, wanted[n], g, 0.1, k, states_of[n])
        kept = dict(zip((*step.results, *step.kept), out, strict=True))
        kept.pop("loss")
        for n in names:
            np.testing.assert_allclose(kept[n], wanted[n], atol=2e-3, rtol=1e-3)


def test_gradients_that_are_not_finite_change_nothing() -> None:
    rules = Rules(loss_scale=LossScale(2.0**40, dynamic=True))
    network = tiny_network(BATCH)
    step = training_step(network, rules, Formats.all("float16"))
    (kept, _) = states(network, step, rules, compiler.build(step.module), 1, 2.0**40)
    start = initial(network, 0)
    for p in network.trained:
        np.testing.assert_array_equal(kept[p.name], start[p.name].astype(np.float16))


def test_a_power_of_two_changes_no_bit_of_float32() -> None:
    network = tiny_network(BATCH)
    found = []
    for scale in (1.0, 1024.0):
        rules = Rules(loss_scale=LossScale(scale))
        step = training_step(network, rules, Formats())
        found.append(states(network, step, rules, compiler.build(step.module), 3, scale)[0])
    for name, array in found[0].items():
        np.testing.assert_array_equal(found[1][name], array)


def test_clipping_keeps_the_norm() -> None:
    network = tiny_network(BATCH)
    plain = Optimizer(momentum=0.0)
    moves = []
    for clip in (0.0, 0.01):
        rules = Rules(plain, clip_norm=clip)
        step = training_step(network, rules, Formats())
        kept, _ = states(network, step, rules, compiler.build(step.module), 1)
        start = initial(network, 0)
        flat = [(start[p.name] - kept[p.name]).ravel() / 0.05 for p in network.trained]
        moves.append(np.concatenate(flat).astype(np.float64))
    norm = np.linalg.norm(moves[0])
    assert norm > 0.1
    np.testing.assert_allclose(np.linalg.norm(moves[1]), 0.01, rtol=1e-3)
    np.testing.assert_allclose(moves[1] / 0.01, moves[0] / norm, atol=1e-3)


def test_batch_normalization_is_torchs_formula() -> None:
    network = tiny_network(BATCH)
    x, _ = tiny_examples(BATCH)
    weights = {p.name: p.value for p in network.parameters}
    f = by_batch(network.function)
    scores, mean, variance = compiler.evaluate(
        compiler.IRModule({"main": f.function}), x, **weights
    )
    conv = next(b for b in network.function.bindings if b.var.name == "conv")
    inner = replace(network.function, results=(conv.var,))
    values = compiler.evaluate(compiler.IRModule({"main": inner}), x, **weights)
    flat = values.transpose(1, 0, 2, 3).reshape(4, -1).astype(np.float64)
    np.testing.assert_allclose(mean, 0.1 * flat.mean(1), atol=1e-6)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * flat.var(1, ddof=1), rtol=1e-5)
    assert scores.shape == (BATCH, CLASSES)


def test_orders_are_permutations_that_seeds_and_epochs_decide() -> None:
    found = [order(s, e, 100) for s in (0, 1) for e in (0, 1)]
    assert all(sorted(o) == list(range(100)) for o in found)
    assert len({o.tobytes() for o in found}) == 4
    assert order(0, 0, 100).tobytes() == found[0].tobytes()


def test_initial_weights_are_uniform_within_torchs_bounds() -> None:
    network = tiny_network()
    drawn, others = initial(network, 0), initial(network, 1)
    weight = drawn["scores.weight"]
    assert np.abs(weight).max() <= 1 / 8
    assert np.abs(weight).max() > 0.9 / 8
    assert not np.array_equal(weight, others["scores.weight"])
    assert {p.kind for p in network.statistics} == {"mean", "variance"}
    (variance,) = [p for p in network.parameters if p.kind == "variance"]
    np.testing.assert_array_equal(drawn[variance.name], 1)


def test_the_loss_at_a_temperature_is_the_cross_entropy_of_cooler_scores() -> None:
    heat = 3.0
    network = tiny_network(BATCH, batch_norm=False)
    x, y = tiny_examples(BATCH)
    given = {p.name: p.value for p in network.parameters}
    scores = compiler.build(network.module)(x, **given).astype(np.float64) / heat
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    targets = one_hot(y, CLASSES)
    want = -(heat**2) * (targets * logs).sum(axis=1).mean()
    step = training_step(network, Rules(Optimizer(momentum=0.0), temperature=heat), Formats())
    numbers = {n: np.zeros((), np.float32) for n in step.numbers}
    loss = compiler.build(step.module)(**{step.inputs[0]: x, TARGETS: targets}, **numbers, **given)
    assert step.kept == tuple(given)
    assert float(loss[0]) == pytest.approx(want, rel=1e-5)
