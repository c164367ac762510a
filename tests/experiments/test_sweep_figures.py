"""What rows say of their own figures: bounds without labels, NaNs, bits that hold everywhere."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import compiler
import datatypes
import experiments
from compiler.transform.portability import unportable
from compiler.transform.preparation import prepare
from datatypes.formats import catalogue
from experiments import zoo
from experiments.cli.main import cli
from experiments.data import datasets
from experiments.measure import metrics, statistics
from experiments.measure.statistics import holm, one_sided_loss
from experiments.results.terminal import results_table
from experiments.systems import pipeline, schemes
from experiments.zoo import model_batches

SPEC: dict[str, Any] = {"models": ["mnist_mlp"], "n_eval": 80, "n_calib": 20}
SPEC |= {"latency": {"warmup": 0, "runs": 0}}


@pytest.fixture(autouse=True)
def formats() -> Iterator[None]:
    known = dict(catalogue._known)
    datatypes.define("short8", exponent=2, mantissa=5, overflow="inf")
    yield
    catalogue._known.clear()
    catalogue._known.update(known)


@pytest.fixture
def unlabelled(tmp_path: Path) -> str:
    digits = datasets.load("mnist1k")
    np.savez(tmp_path / "x.npz", x=digits.x[:80], x_calib=digits.calibration[:40])
    return str(tmp_path / "x.npz")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("metric", ["top1", "rmse", "cosine"])
def test_without_labels_nothing_is_gained_and_nothing_tested(
    unlabelled: str, metric: str, tmp_path: Path
) -> None:
    low_bits = {"scheme": "int8_channel", "weight_bits": 2, "bias_correction": "none"}
    spec = {**SPEC, "dataset": unlabelled, "metric": metric}
    rows = experiments.sweep(
        {**spec, "schemes": ["float32", "fixed8_4", low_bits]}, tmp_path / "r.csv"
    )
    assert rows["status"].tolist() == ["ok"] * 3, rows["error"].tolist()
    assert set(rows["metric_name"]) == {f"{metric}~float32"}
    assert rows["p_value"].isna().all()
    assert (rows["metric_drop_low"] >= 0).all()
    assert (rows["metric_drop_low"] <= rows["metric_drop"]).all()
    assert (rows["metric_drop"] <= rows["metric_drop_high"]).all()
    if metric == "top1":
        for row in rows.to_dict("records"):
            lost = round(80 * row["metric_drop"])
            bounds = one_sided_loss(np.arange(80) >= lost)
            assert (row["metric_drop_low"], row["metric_drop_high"]) == (bounds.low, bounds.high)
            assert row["detectable_drop"] == pytest.approx(1 - 0.05 ** (1 / 80))


def test_rows_with_labels_keep_their_test(tmp_path: Path) -> None:
    rows = experiments.sweep({**SPEC, "schemes": ["float32", "fixed8_4"]}, tmp_path / "r.csv")
    assert rows["p_value"].notna().all()
    assert rows["detectable_drop"].tolist() == [6 / 80] * 2


# ---- outputs that are no numbers -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("outputs", "count"),
    [
        (np.zeros((3, 4), np.float32), 0),
        (np.array([[0, np.nan], [np.inf, -np.inf], [1, 2]], np.float32), 2),
        (np.array([[[1.0], [np.nan]], [[2.0], [3.0]]]), 1),
        (np.full((2, 2), 7), 0),
        (np.array(["a", "b"], object), 0),
    ],
)
def test_inputs_whose_outputs_are_not_finite_are_counted(outputs: Any, count: int) -> None:
    assert metrics.not_finite(outputs) == count


def rows_of_page(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert found is not None
    data = json.loads(found[1])
    return [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]


@pytest.mark.thorough
def test_outputs_that_overflow_are_told_everywhere(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    rows = experiments.sweep({**SPEC, "schemes": ["bfloat16", "short8"]}, out)
    assert rows["status"].tolist() == ["ok", "ok"]
    net = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    outputs = compiler.build(datatypes.change_dtype(net, "float32", "short8"))(
        datasets.load("mnist1k").x[:80]
    )
    count = int((~np.isfinite(outputs)).any(axis=1).sum())
    assert count > 0
    assert rows["outputs_not_finite"].tolist() == [0, count]
    said = f"{count} of 80 inputs have a NaN or an infinity in their outputs"
    console = Console(width=200, record=True)
    console.print(results_table(rows))
    assert f"mnist_mlp short8: {said}" in console.export_text()
    assert said in rows._repr_html_()
    shown = CliRunner().invoke(cli, ["table", str(out)])
    assert shown.stderr == (
        "outputs of 1 of the 2 rows hold NaN or infinity: see outputs_not_finite\n"
    )
    page = experiments.report(out, tmp_path / "r.html").read_text()
    assert "1 with NaN or infinity in outputs" in page
    assert rows_of_page(page)[1]["outputs_not_finite"] == count


# ---- bits that hold everywhere -------------------------------------------------------------------
FORMATS: list[Any] = [
    *("float32", "int8_tensor", "int8_channel", "mxfp4_e2m1", "bfloat16"),
    {"scheme": "bfloat16", "accumulate": "float32"},
    {"scheme": "posit16_es1", "accumulate": "exact"},
    {"scheme": "scaled", "weight_dtype": "float8_e4m3fn", "compute": "native", "accumulate": "fma"},
    {"scheme": "int8", "activation_dtype": "float32", "weight_bits": 4},
    {"scheme": "int8_channel", "float_macs": 0.5},
    {"scheme": "int8_channel", "softmax": "integer", "requantize": "shift"},
    {"scheme": "int8_channel", "accumulate": "int20_saturate"},
]
PORTABLE = {1, 2, 4, 5, 6, 7, 10, 11}
NETWORKS = ["mnist_dwsep", "mnist_resnet8", "mnist_mlp"]


def realized(network: str, scheme: Any) -> tuple[schemes.Scheme, Any]:
    options = {"scheme": scheme} if isinstance(scheme, str) else dict(scheme)
    parsed = schemes.parse(options.pop("scheme"), options)
    digits, path = datasets.load("mnist1k"), zoo.FOLDER / f"{network}.onnx"
    shape = digits.x.shape[1:]
    transform, *_ = pipeline._transform(path, parsed, shape, digits.calibration[:20], 1, None)
    return parsed, transform(model_batches.load_for_batch(path, shape, 4))


def assert_same_everywhere(network: str, number: int) -> None:
    scheme, module = realized(network, FORMATS[number])
    assert (number in PORTABLE) == (not unportable(prepare(module)))
    if number not in PORTABLE:
        return
    x = datasets.load("mnist1k").x[:4]
    outputs = [
        pipeline.build(module, scheme, target)(x)
        for target in ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")
    ]
    for other in outputs[1:]:
        np.testing.assert_array_equal(outputs[0], other)


X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="compares instruction sets of x86")


@pytest.mark.sampled(4)
@X86
@pytest.mark.parametrize("number", [0, 1, 4, 8, 9])
def test_portable_rows_are_those_with_the_same_bits(number: int) -> None:
    assert_same_everywhere("mnist_mlp", number)


@X86
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(FORMATS)))
@pytest.mark.parametrize("network", NETWORKS)
def test_portable_rows_of_every_network_have_the_same_bits(network: str, number: int) -> None:
    assert_same_everywhere(network, number)


def test_rows_say_whether_their_bits_are_portable(tmp_path: Path) -> None:
    chosen = ["float32", "int8_channel", {"scheme": "int8", "activation_dtype": "float32"}]
    rows = experiments.sweep({**SPEC, "schemes": chosen}, tmp_path / "r.csv")
    assert rows["portable_bits"].tolist() == ["no", "yes", "no"]


# ---- several tests at once -----------------------------------------------------------------------
@pytest.mark.thorough
def test_p_values_of_a_table_are_corrected_on_request(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    rows = experiments.sweep(
        {**SPEC, "schemes": ["float32", "fixed8_4", "posit8_es0", "fixed16_8"]}, out
    )
    own = rows["p_value"].tolist()
    adjusted = statistics.adjusted(rows)
    assert math.isnan(adjusted[0])  # float32 beside itself is no test
    assert adjusted[1:] == holm(own[1:])
    assert "3 of them" in statistics.warning(rows)
    assert statistics.warning(rows[:2]) == ""
    run = CliRunner()
    plain = run.invoke(cli, ["table", str(out), "--columns", "scheme,p_value"])
    assert "not corrected for there being 3 of them" in plain.stderr
    assert "corrected" not in plain.stdout
    both = run.invoke(cli, ["table", str(out), "--columns", "scheme,p_value,p_holm"])
    assert (both.exit_code, both.stderr) == (0, "")
    assert len(both.stdout.splitlines()) == 5
    some = run.invoke(cli, ["table", str(out), "--where", "p_holm<0.05", "--columns", "scheme"])
    assert len(some.stdout.splitlines()) == 1 + sum(p < 0.05 for p in adjusted)
    page = experiments.report(out, tmp_path / "r.html").read_text()
    assert "not corrected for there being 3 of them" in page
    assert [row["p_holm"] for row in rows_of_page(page)][1:] == pytest.approx(adjusted[1:])
