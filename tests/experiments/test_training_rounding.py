"""Stochastic rounding in training: by part, another draw in every step, the same under a seed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_training import CLASSES, tiny_examples, tiny_files, tiny_network

import compiler
import datatypes
from experiments.training.formats import Computed, Formats
from experiments.training.initial import draw, initial
from experiments.training.optimizers import Optimizer
from experiments.training.programs import judging, one_hot
from experiments.training.spec import load_training
from experiments.training.step import DRAW, RATE, TARGETS, Rules, training_step

BATCH = 4


def formats_of(tmp_path: Path, given: Any) -> Formats:
    return load_training(tiny_files(tmp_path) | {"formats": [given]}).runs[0].formats


def test_roundings_are_named_by_part(tmp_path: Path) -> None:
    plain = formats_of(tmp_path, {"format": "posit8_es1"})
    every = formats_of(tmp_path, {"format": "posit8_es1", "rounding": "stochastic"})
    assert every == Formats.all("posit8_es1_stochastic")
    assert every == formats_of(tmp_path, "posit8_es1_stochastic")
    update = formats_of(tmp_path, {"format": "posit8_es1", "rounding": {"update": "stochastic"}})
    assert update == replace(plain, update=Computed("posit8_es1_stochastic"))
    assert "update posit8_es1_stochastic" in str(update)
    masters = {"forward": "bfloat16", "accumulate": "float32", "rounding": "stochastic"}
    assert str(formats_of(tmp_path, masters)) == "bfloat16_stochastic float32 mixed"
    back = {"format": "bfloat16_stochastic_seed2", "rounding": {"forward": "nearest"}}
    assert formats_of(tmp_path, back).forward == Computed("bfloat16")


def test_nearest_is_what_is_meant_where_nothing_is_said(tmp_path: Path) -> None:
    said = {"format": "posit8_es1", "rounding": "nearest"}
    specs = [tiny_files(tmp_path) | {"formats": [f]} for f in ("posit8_es1", said)]
    one, other = (load_training(s).runs[0].config_hash for s in specs)
    assert one == other


def updates(fmt: str, draws: int) -> tuple[Any, Any]:
    """Weights after one step in float32, and after it with weights in a format, by draw."""
    network, rules = tiny_network(BATCH, batch_norm=False), Rules(Optimizer(momentum=0.0))
    x, y = tiny_examples(BATCH)
    start = initial(network, 0)
    held = {n: datatypes.decode("bfloat16", datatypes.encode("bfloat16", w)).astype(np.float32)
            for n, w in start.items()}  # fmt: skip
    given = {"x": x, TARGETS: one_hot(y, CLASSES), RATE: np.array(2.0**-9, np.float32), **held}
    name = "scores.weight"
    found = []
    for f in (Formats(), replace(Formats(), update=Computed(fmt))):
        step = training_step(network, rules, f)
        run, place = compiler.build(step.module), 1 + step.kept.index(name)
        more = [{DRAW: np.array(k, np.int64)} for k in range(draws)] if step.random else [{}]
        found.append(np.array([run(**given, **m)[place] for m in more]))
    return found[0][0], found[1]


@pytest.mark.thorough
def test_weights_move_by_chance_as_far_as_by_rounding_never() -> None:
    """Steps that are too small for bfloat16 are taken by some draws; on average, as in float32."""
    wanted, moved = updates("bfloat16_stochastic", 400)
    assert len({m.tobytes() for m in moved}) == 400
    error = moved.mean(0) - wanted
    assert np.all(np.abs(error) < 6 * moved.std(0) / 20 + 2e-5)
    assert np.abs(error).mean() < np.abs(updates("bfloat16", 1)[1][0] - wanted).mean() / 5


def test_draws_are_of_the_seed_and_the_step() -> None:
    found = {draw(seed, step) for seed in range(20) for step in range(200)}
    assert len(found) == 4000
    assert draw(3, 4) == draw(3, 4)
    assert all(0 <= d < 2**32 for d in found)


def test_the_network_is_judged_rounding_to_nearest() -> None:
    network = tiny_network(BATCH)
    random, nearest = (judging(network, Formats.all(f"bfloat16{e}")) for e in ("_stochastic", ""))
    assert str(random) == str(nearest)


@pytest.mark.thorough
def test_eight_bits_learn_by_chance(tmp_path: Path) -> None:
    """Weights of 8 bits that round to nearest stand still where random ones go on."""
    import experiments

    spec = tiny_files(tmp_path) | {"epochs": 30, "seeds": [0, 1, 2], "schedule": {"rate": 0.005}}
    parts = {"forward": "float32", "update": ["float8_e4m3fn", "float32"]}
    tables = [parts, parts | {"rounding": {"update": "stochastic"}}]
    rows = experiments.train(spec | {"formats": tables}, tmp_path / "x.csv")
    nearest, random = rows.groupby("system", sort=False)["loss"].mean()
    assert random < nearest / 2
