"""The table of 4-bit weights measures what it says; its figures in full are a slow test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import quantize
from compiler.ir.expr import Atom, Constant
from experiments.accuracy import bits4, methods, tasks
from experiments.accuracy.__main__ import main
from experiments.accuracy.tasks import Task
from quantize.annotation.annotate import is_weighted
from quantize.annotation.graph import Graph
from quantize.search.costs import mean_weight_bits


def digits(name: str) -> Task:
    task = tasks.load(name, None, {})
    assert isinstance(task, Task)
    return task


def _size(weight: Atom) -> int:
    assert isinstance(weight, Constant)
    return weight.data.size


@pytest.mark.thorough
def test_rounding_by_data_beats_nearest_and_the_table_is_saved(tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    args = ["bits4", "--quick", "--model", "mnist_dwsep", "--model", "mnist_vit", "--csv", str(out)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.output
    assert "mnist_vit: not available" in result.output
    table = pd.read_csv(out).set_index("method")
    assert list(table.index) == list(bits4.METHODS)
    mixed = table.index.str.startswith("mixed")
    assert (table.loc[~mixed, "weight_bits"] == 4).all()
    assert table.loc[mixed, "weight_bits"].between(4.1, 5).all()
    assert (table["share"] == 100).all()
    nearest = table.loc["nearest, scales of least error", "calibration_db"]
    assert (table.loc[["GPTQ", "AdaRound"], "calibration_db"] > nearest + 2).all()
    assert (table.loc[mixed, "calibration_db"] > nearest + 1).all()


def test_a_choice_of_method_does_not_see_the_data_set_aside() -> None:
    task = digits("mnist_mlp").shortened(20, 2)
    blind = replace(task, inputs=task.inputs[:1], accepted=task.accepted[:1])
    method = {"nearest": bits4.METHODS["nearest, scales of least error"]}
    (first,), (second,) = (methods.measure(t, method) for t in (task, blind))
    assert first.calibration_db == second.calibration_db
    assert first.db != second.db


def test_bits_of_weights_are_weighed_by_their_number() -> None:
    task = digits("mnist_mlp").shortened(1, 1)
    module = task.module()
    plan = quantize.calibrate(module, task.calibration, quantize.QConfig(weight_bits=4))
    first, *rest = plan.weights
    eight = replace(plan.weights[first], bits=8)
    mixed = replace(plan, weights={**plan.weights, first: eight})
    graph = Graph(quantize.annotate(module).module.main)
    sizes = {b.var.name: _size(call.args[1]) for b, call in graph.calls() if is_weighted(call)}
    expected = (8 * sizes[first] + 4 * sum(sizes[r] for r in rest)) / sum(sizes.values())
    assert mean_weight_bits(module, mixed) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_resnet8", "mnist_dwsep"])
def test_rounding_by_data_gains_four_decibels_on_images_set_aside(name: str) -> None:
    lines = {line.method: line for line in methods.measure(digits(name), bits4.METHODS)}
    best = max(lines["nearest, scales of least error"].db, lines[next(iter(lines))].db)
    for method in ("GPTQ", "AdaRound"):
        assert lines[method].db > best + 3.5
        assert lines[method].change.low < 0.005
