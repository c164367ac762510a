"""What a search says of test data: the columns of a sweep, with the ends of intervals, and whether
a bound holds of these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
import experiments
import quantize
from compiler.errors import ConfigError
from experiments.cheapest import held_out
from experiments.cheapest.bound import parse
from experiments.cheapest.candidate import BASE
from experiments.cheapest.judging import Judge
from experiments.data import datasets
from experiments.measure import metrics, scoring
from experiments.zoo import model_files

CONFIG = quantize.QConfig(
    **BASE,
    weight_dtype="int4",
    activation_dtype="int8",
    overrides={"logits": {"weight_dtype": "int8"}},
)


def _judge(model: str, data: str, metric: str, inputs: int, output: str = "") -> Judge:
    path = model_files.model_file(model)
    fed = datasets.load(data).for_model(path)
    calibration = fed.calibration_sample(8, 0)
    found = scoring.find(metric, fed.classes)
    return Judge(path, fed, inputs, calibration, found, output, 1)


def _of_a_sweep(model: str, data: str, metric: str, inputs: int, folder: Path) -> pd.Series:
    specification = {
        "models": [model], "dataset": data, "schemes": [held_out.scheme(CONFIG)], "n_calib": 8,
        "n_eval": inputs, "metric": metric, "latency": {"runs": 0},
    }  # fmt: skip
    return experiments.sweep(specification, folder / "s.csv", progress=False).iloc[0]


def _agree(row: Mapping[str, object], sweep: pd.Series) -> None:
    assert sweep["status"] == "ok", sweep["error"]
    shared = [name for name in held_out.COLUMNS if name in sweep]
    assert len(shared) > 8
    for name in shared:
        own, other = row[name], sweep[name]
        if isinstance(own, str):
            assert own == other
        elif pd.notna(other):  # a sweep has divergences of tokens alone
            assert own == pytest.approx(other, rel=1e-9), name


def test_test_data_are_judged_as_in_a_sweep_and_with_intervals(tmp_path: Path) -> None:
    judge = _judge("mnist_mlp", "mnist1k", "top1", 300)
    row = held_out.on_test_data(CONFIG, judge)
    _agree(row, _of_a_sweep("mnist_mlp", "mnist1k", "top1", 300, tmp_path))
    x, calibration = judge.data.x[:300], judge.calibration
    exact = compiler.from_onnx(judge.path)
    own = compiler.build(quantize.quantize(exact, [calibration], CONFIG))(x).astype(np.float64)
    wanted = compiler.build(exact)(x).astype(np.float64)
    p, q = (a - np.log(np.exp(a).sum(axis=1, keepdims=True)) for a in (wanted, own))
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    assert row["kl_float32"] == pytest.approx(kl.mean(), rel=1e-3)
    error = kl.std(ddof=1) / math.sqrt(len(kl))
    assert row["kl_float32_high"] == pytest.approx(kl.mean() + 1.968 * error, rel=1e-2)
    assert row["sqnr_db"] - 1 < row["sqnr_db_low"] < row["sqnr_db"]
    assert 0.9 < row["top1_agreement_low"] < row["top1_agreement"]


def test_what_is_found_is_judged_as_its_configuration_is_in_a_sweep(tmp_path: Path) -> None:
    found = experiments.search(
        "mnist_mlp", bound="sqnr>=5", formats=["int8", "int3"], n_calib=8, n_eval=100, threads=1
    )
    assert {*found.layers["format"]} == {"int8", "int3"}
    specification = {
        "models": ["mnist_mlp"], "schemes": [held_out.scheme(found.config)], "n_calib": 8,
        "n_eval": 100, "latency": {"runs": 0},
    }  # fmt: skip
    sweep = experiments.sweep(specification, tmp_path / "s.csv", progress=False).iloc[0]
    _agree(found.test, sweep)
    assert found.surely_holds == (found.test["sqnr_db_low"] >= 5)


@pytest.mark.thorough
def test_results_of_tokens_are_judged_batch_by_batch(tmp_path: Path) -> None:
    judge = _judge("stdlib_lm", "stdlib_text", "perplexity", 20, "logits")
    row = held_out.on_test_data(CONFIG, judge)
    _agree(row, _of_a_sweep("stdlib_lm", "stdlib_text", "perplexity", 20, tmp_path))


def test_bounds_hold_or_hold_surely() -> None:
    test = {
        "metric_name": "top1", "metric": 0.97, "metric_se": 0.005, "metric_drop": 0.004,
        "metric_drop_high": 0.011, "sqnr_db": 21.0, "sqnr_db_low": 19.5, "kl_float32": 0.01,
        "kl_float32_high": 0.02, "top1_agreement": 0.98, "top1_agreement_low": 0.96,
    }  # fmt: skip
    for text, held, surely in (
        ("drop<=2", True, True),
        ("drop<=0.5", True, False),
        ("drop<=0.3", False, False),
        ("sqnr>=19", True, True),
        ("sqnr>=20", True, False),
        ("kl<=0.015", True, False),
        ("agreement>=0.97", True, False),
        ("top1>=0.965", True, False),
        ("top1>=0.96", True, True),
        ("sqnr>=19,kl<=0.015", True, False),
    ):
        bounds = parse(text)
        found = held_out.holds(bounds, test), held_out.surely_holds(bounds, test)
        assert found == (held, surely), text


def _perceptron(folder: Path, batch: int | str, softmax: bool = False) -> tuple[Path, Path]:
    """Two dense layers for so many inputs, and data of 12."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name)
        for name, size in (("w", (6, 8)), ("v", (8, 4)))
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, size])
        for name, size in (("x", 6), ("y", 4))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["z" if softmax else "y"]),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["z"], ["y"], axis=1))
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    model, data = folder / "m.onnx", folder / "d.npz"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), model)
    x = rng.normal(size=(12, 6)).astype(np.float32)
    np.savez(data, x=x, x_calib=x)
    return model, data


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [1, 4])
def test_networks_for_one_size_of_the_batch_are_searched(tmp_path: Path, batch: int) -> None:
    model, data = _perceptron(tmp_path, batch)
    found = experiments.search(
        model, data, "sqnr>=15", formats=["int8", "int4"], n_calib=12, n_eval=11, threads=1
    )
    assert found.test["n_eval"] == 11
    assert found.test["sqnr_db_low"] < found.test["sqnr_db"]
    exact, x = compiler.from_onnx(model), np.load(data)["x"]
    parts = [x[k : k + batch] for k in range(0, 12, batch)]
    own, wanted = (
        np.concatenate([run(part) for part in parts])[:11]
        for run in map(compiler.build, (quantize.quantize(exact, parts, found.config), exact))
    )
    assert metrics.sqnr_db(own, wanted) == pytest.approx(found.test["sqnr_db"], abs=0.01)


def test_a_divergence_is_of_scores_and_not_of_shares(tmp_path: Path) -> None:
    model, data = _perceptron(tmp_path, "n", softmax=True)
    with pytest.raises(ConfigError, match=r"\[12, 4\], are shares, which a softmax gave: bound"):
        experiments.search(model, data, "kl<=0.1", n_calib=12)
