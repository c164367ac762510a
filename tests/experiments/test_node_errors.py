"""The errors of nodes, their picture, and what is different between plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes
import quantize
from compiler.interpret.graph import trace
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.transform.preparation import prepare
from experiments import zoo
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.layers.nodes import BINS, NodeError, _histograms, node_errors
from experiments.measure import metrics
from experiments.measure.layer_errors import layer_errors
from experiments.measure.metrics import farthest
from quantize import Plan, QConfig
from quantize.plan.diff import plan_diff

MLP = zoo.FOLDER / "mnist_mlp.onnx"
Capture = pytest.CaptureFixture[str]


def two_layers() -> tuple[IRModule, np.ndarray]:
    """Two dense layers with a relu between them."""
    rng = np.random.default_rng(2)
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", (9, 12)), b.const(rng.normal(size=(8, 12)).astype("f")))
    y = b.call("nn.relu", y, name="r")
    y = b.call("nn.dense", y, b.const(rng.normal(size=(5, 8)).astype("f")), name="d")
    return IRModule({"main": b.finish(y)}), rng.normal(size=(9, 12)).astype(np.float32)


def by_name(errors: list[NodeError]) -> dict[str, NodeError]:
    return {e.value: e for e in errors}


# ---- figures -------------------------------------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("everywhere", [False, True])
def test_inputs_that_are_not_finite_have_figures_too(
    odd: float, everywhere: bool, tmp_path: Path, capsys: Capture
) -> None:
    mod, x = two_layers()
    plan = quantize.calibrate(mod, x, QConfig(bias_correction="none"))
    x = x.copy()
    x[slice(None) if everywhere else 3] = odd
    module = prepare(mod)
    exact = {v.var.name: value for v, value in trace(module, x)}
    for e in node_errors(module, plan, [x]):
        assert np.isfinite([e.low, e.high]).all()
        assert sum(e.float32) == np.isfinite(exact[e.value]).sum()
    np.savez(tmp_path / "x.npz", input=np.full((2, 1, 28, 28), odd, np.float32))
    np.savez(tmp_path / "c.npz", input=np.ones((2, 1, 28, 28), np.float32))
    words = f"quantize {MLP} --calib {tmp_path}/c.npz -o {tmp_path}/q.onnx --plan {tmp_path}/p.json"
    assert run_command([*words.split(), "--set", "bias_correction=none"]) == 0
    words = f"compare {MLP} --input {tmp_path}/x.npz --plan {tmp_path}/p.json"
    assert run_command([*words.split(), "--picture", f"{tmp_path}/p.svg"]) == 0
    assert capsys.readouterr().err.count("\n") <= 1
    ElementTree.parse(tmp_path / "p.svg")


def test_what_a_node_adds_is_measured_on_its_own_inputs() -> None:
    """The second layer's error so far holds that of the first, what it adds does not."""
    mod, x = two_layers()
    fine = quantize.calibrate(mod, x, QConfig(bias_correction="none", calibrate="minmax"))
    coarse = replace(fine, values={
        **fine.values, "r": replace(fine.values["r"], scale=16 * fine.values["r"].scale)
    })  # fmt: skip
    module = prepare(mod)
    a, b = (by_name(node_errors(module, p, [x])) for p in (fine, coarse))
    assert list(a) == list(b) == ["r", "d"]
    assert b["r"].own_sqnr_db < a["r"].own_sqnr_db - 10
    assert b["d"].sqnr_db < a["d"].sqnr_db - 10
    assert b["d"].own_sqnr_db > a["d"].own_sqnr_db - 6

    ran = {v.var.name: value for v, value in trace(quantize.simulate(module, coarse), x)}
    exact = {v.var.name: value for v, value in trace(module, x)}
    weights = [v.value.args[1].data for v in module.main.bindings if "dense" in str(v.value)]
    alone = ran["r"] @ weights[1].T
    assert b["d"].own_sqnr_db == pytest.approx(metrics.sqnr_db(ran["d"], alone), abs=0.01)
    assert b["d"].sqnr_db == metrics.sqnr_db(ran["d"], exact["d"])
    assert b["d"].own_max_abs_error == pytest.approx(np.abs(ran["d"] - alone).max(), rel=1e-3)
    assert b["r"].own_sqnr_db == pytest.approx(metrics.sqnr_db(ran["r"], exact["r"]), abs=1e-6)


def test_what_lies_beyond_a_range_is_counted() -> None:
    mod, x = two_layers()
    plan = quantize.calibrate(mod, x, QConfig(bias_correction="none", calibrate="minmax"))
    params = plan.values["r"]
    narrow = replace(plan, values={**plan.values, "r": replace(params, scale=params.scale / 2)})
    module = prepare(mod)
    exact = {v.var.name: value for v, value in trace(module, x)}["r"]
    expected = np.mean(exact > (255.5 - params.zero_point) * params.scale / 2)
    errors = by_name(node_errors(module, narrow, [x]))
    assert expected > 0.01
    assert errors["r"].saturated == pytest.approx(expected)
    assert errors["d"].saturated is None
    assert by_name(node_errors(module, plan, [x]))["r"].saturated == 0


def test_histograms_hold_all_values() -> None:
    mod, x = two_layers()
    plan = quantize.calibrate(mod, x)
    for e in node_errors(prepare(mod), plan, [x]):
        assert len(e.float32) == len(e.quantized) == BINS
        assert sum(e.float32) == sum(e.quantized) == np.prod(e.shape)
        assert e.low < e.high


@pytest.mark.thorough
def test_every_node_of_a_network_is_compared() -> None:
    """All that is not folded away; the error alone is seldom above the error so far."""
    mod = compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx", shapes={"input": (3, 1, 28, 28)})
    digits = datasets.load("mnist1k")
    batches = digits.calibration[:9].reshape(3, 3, 1, 28, 28)
    plan = quantize.calibrate(mod, batches, QConfig(bias_correction="none"))
    errors = by_name(node_errors(prepare(mod), plan, [digits.x[:3]]))
    assert set(plan.values) - {"input"} <= set(errors)
    assert all(e.own_sqnr_db >= e.sqnr_db - 1 for e in errors.values())
    assert np.median([e.own_sqnr_db - e.sqnr_db for e in errors.values()]) > 2


# ---- the command line ----------------------------------------------------------------------------
@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    mod = compiler.from_onnx(MLP)
    plan = quantize.calibrate(mod, datasets.load("mnist1k").calibration[:20])
    plan.to_json(tmp_path / "a.json")
    return tmp_path / "a.json"


def test_comparison_as_table_csv_json_and_picture(
    tmp_path: Path, plan_file: Path, capsys: Capture
) -> None:
    command = ["compare", "mnist_mlp", "--input", "mnist1k", "--plan", str(plan_file)]
    files = ["--csv", str(tmp_path / "e.csv"), "--picture", str(tmp_path / "e.svg")]
    assert run_command([*command, *files]) == 0
    assert "own dB" in capsys.readouterr().out
    assert run_command([*command, "--json", "--picture", str(tmp_path / "e.html")]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    rows = pd.read_csv(tmp_path / "e.csv")
    assert rows["own_sqnr_db"].tolist() == pytest.approx([e["own_sqnr_db"] for e in layers])
    picture = ElementTree.parse(tmp_path / "e.svg").getroot()
    texts = ["".join(t.itertext()) for t in picture.iter("{http://www.w3.org/2000/svg}text")]
    for e in layers:
        assert e["value"] in texts
        assert f"{e['sqnr_db']:.1f}" in texts
        assert f"{e['own_sqnr_db']:.1f}" in texts
    page = (tmp_path / "e.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert run_command([*command[:4], "--dtype", "bfloat16", "--picture", "x.svg"]) == 2
    assert "give --plan" in capsys.readouterr().err


def test_plan_edited_by_hand_is_realized_without_calibration(
    plan_file: Path, capsys: Capture
) -> None:
    """And the differences are those that were made."""
    data = json.loads(plan_file.read_text())
    node = next(iter(data["weights"]))
    data["nodes"][node] |= {"decision": "float", "reason": "by hand"}
    value = next(iter(data["values"]))
    data["values"][value]["scale"] *= 2
    edited = plan_file.with_name("b.json")
    edited.write_text(json.dumps(data))
    before, after = Plan.from_json(plan_file), Plan.from_json(edited)
    changes = {(c.section, c.name, c.field): (c.before, c.after) for c in plan_diff(before, after)}
    scale = before.values[value].scale
    assert changes == {
        ("nodes", node, "decision"): ("integer", "float"),
        ("nodes", node, "reason"): ("", "by hand"),
        ("values", value, "scale"): (scale, 2 * scale),
    }
    mod, x = compiler.from_onnx(MLP), datasets.load("mnist1k").x[:4]
    outputs = [compiler.build(quantize.realize(mod, p))(x) for p in (before, after)]
    assert not np.array_equal(*outputs)
    assert metrics.sqnr_db(*outputs) > 15

    assert run_command(["plan", "diff", str(plan_file), str(edited)]) == 0
    out = capsys.readouterr().out
    assert f"nodes {node} decision: integer -> float" in out
    assert "3 differences" in out
    assert run_command(["plan", "diff", str(plan_file), str(plan_file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"changes": []}
    assert run_command(["plan", "show", str(edited)]) == 0
    assert "by hand" in capsys.readouterr().out
    assert run_command(["plan", "show", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err


def test_differences_of_settings_and_of_whole_entries() -> None:
    mod, x = two_layers()
    a, b = (
        quantize.calibrate(mod, x, QConfig(bias_correction="none", skip=skip))
        for skip in ((), ("d",))
    )
    changes = {(c.section, c.name, c.field): c for c in plan_diff(a, b)}
    assert changes["config", "", "skip"].after == ["d"]
    assert changes["weights", "d", ""].after is None
    assert "weights d: {scales: [" in str(changes["weights", "d", ""])
    assert plan_diff(a, a) == ()


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=40),
    st.sampled_from([np.float32, np.float64]),
)
def test_every_number_is_in_a_bin_whatever_the_ends_are(values: list[float], dtype: Any) -> None:
    held = np.asarray(values, dtype)
    _, _, (counts, none) = _histograms(held, held[:0])
    assert counts.sum() == len(values)
    assert not none.any()
    if len(set(values)) > 1:
        assert counts[0]
        assert counts[-1]


def test_bins_are_those_of_numpy() -> None:
    held = np.random.default_rng(0).normal(3, 2, 1000).astype(np.float32)
    low, high, (counts,) = _histograms(held)
    np.testing.assert_array_equal(counts, np.histogram(held, BINS, (low, high))[0])


def test_equal_infinities_do_not_differ() -> None:
    """Masks are made of them."""
    ends = np.array([np.inf, -np.inf, 1.0])
    assert farthest(ends, ends) == 0
    assert farthest(ends, np.array([np.inf, -np.inf, 1.5])) == 0.5
    assert farthest(ends, -ends) == np.inf
    assert farthest(ends[:0], ends[:0]) == 0
    assert farthest(np.float64(2), np.float64(-1)) == 3
    assert np.isnan(farthest(ends, np.array([np.inf, np.nan, 1.0])))


def test_layers_with_masks_of_infinity_have_errors() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 3))
    mask = b.const(np.array([[0, -np.inf, 0]], np.float32))
    scores = b.call("add", x, mask, name="scores")
    mod = prepare(IRModule({"main": b.finish(b.call("nn.softmax", scores, axis=-1, name="y"))}))
    values = np.array([[1, 2, 3], [0.3, 0.1, 0.2]], np.float32)
    errors = layer_errors(mod, datatypes.change_dtype(mod, "float32", "bfloat16"), [values])
    found = {e.value: e.max_abs_error for e in errors}
    assert 0 < found["scores"] < 0.01
    assert 0 < found["y"] < 0.01
