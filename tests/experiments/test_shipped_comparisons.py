"""The shipped specifications that compare ways to four bits, and formats of eight and less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import compiler
import experiments
import quantize
from compiler.ir.expr import Atom, Constant
from experiments import zoo
from experiments.data import datasets
from experiments.spec.specification import load_spec
from quantize.annotation.annotate import is_weighted
from quantize.annotation.graph import Graph
from quantize.search.costs import mean_weight_bits

FEW = ['models=["mnist_dwsep"]', "n_eval=40", "n_calib=60"]
FORMATS = {
    "int8_channel": 8,
    "scaled float8_e4m3fn": 8,
    "scaled posit8_es2": 8,
    "mxfp4_e2m1": 4,
}


def swept(name: str, out: Path, *settings: str) -> pd.DataFrame:
    rows = experiments.sweep(load_spec(name, settings), out / f"{name}.csv")
    assert set(rows["status"]) == {"ok"}, rows["error"].tolist()
    return rows.set_index("scheme")


@pytest.mark.parametrize(("name", "schemes"), [("bits4", 7), ("formats", 14)])
def test_they_cross_the_shipped_networks_with_every_way(name: str, schemes: int) -> None:
    cells = load_spec(name).cells
    assert len(cells) == 3 * schemes
    assert len({c.config_hash for c in cells}) == len(cells)


@pytest.mark.thorough
def test_formats_have_their_bits_and_the_finer_ones_less_noise(tmp_path: Path) -> None:
    found = swept("formats", tmp_path, *FEW).loc[list(FORMATS)]
    assert (found["metric_drop_low"] <= found["metric_drop"]).all()
    assert (found["metric_drop"] <= found["metric_drop_high"]).all()
    db = found["sqnr_db"].tolist()
    assert db == sorted(db, reverse=True)
    assert found["weight_bits"].tolist() == list(FORMATS.values())


@pytest.mark.thorough
def test_rounding_by_data_beats_nearest(tmp_path: Path) -> None:
    found = swept("bits4", tmp_path, *FEW)
    mixed = found.index.str.contains("mean_weight_bits")
    four = found[~mixed & (found.index != "float32")]
    assert (four["weight_bits"] == 4).all()
    sizes = found["size_bytes"]
    assert (sizes[mixed] > sizes[four.index].max()).all()
    assert (sizes[mixed] < sizes[four.index].max() * 5.5 / 4).all()
    nearest = found.loc["int8_channel[weight_bits=4,weight_calibrate=mse]", "sqnr_db"]
    data = four.index.str.contains("gptq|adaround")
    assert (four.loc[data, "sqnr_db"] > nearest + 2).all()
    assert (found.loc[mixed, "sqnr_db"] > nearest + 1).all()


def _size(weight: Atom) -> int:
    assert isinstance(weight, Constant)
    return weight.data.size


def test_bits_of_weights_are_weighed_by_their_number() -> None:
    module = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    calibration = [datasets.load("mnist1k").calibration[:20]]
    plan = quantize.calibrate(module, calibration, quantize.QConfig(weight_bits=4))
    first, *rest = plan.weights
    eight = replace(plan.weights[first], bits=8)
    mixed = replace(plan, weights={**plan.weights, first: eight})
    graph = Graph(quantize.annotate(module).module.main)
    sizes = {b.var.name: _size(call.args[1]) for b, call in graph.calls() if is_weighted(call)}
    expected = (8 * sizes[first] + 4 * sum(sizes[r] for r in rest)) / sum(sizes.values())
    assert mean_weight_bits(module, mixed) == pytest.approx(expected)


@pytest.mark.slow
def test_rounding_by_data_gains_on_images_set_aside_and_eight_bits_lose_little(
    tmp_path: Path,
) -> None:
    larger = 'models=["mnist_resnet8", "mnist_dwsep"]'
    for _, rows in swept("bits4", tmp_path, larger).groupby("model"):
        near = rows[rows.index.str.contains(r"weight_calibrate=(?:max|mse)\]$")]
        near = near[~near.index.str.contains("mean_weight_bits")]
        data = rows[rows.index.str.contains("gptq|adaround") & (rows["weight_bits"] == 4)]
        assert len(near) == len(data) == 2
        assert (data["sqnr_db"] > near["sqnr_db"].max() + 3.5).all()
        assert (data["metric_drop_low"] < 0.005).all()
    rows = swept("formats", tmp_path, larger)
    assert (rows.loc[rows["weight_bits"] >= 8, "metric_drop"] < 0.01).all()
