"""The cheapest formats of layers: the integer program is optimal, and what it finds keeps its bound
when it is measured another way."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import compiler
import datatypes
import experiments
import quantize
from compiler.transform.preparation import prepare
from experiments.cheapest import recorded, timing
from experiments.cheapest.candidate import BASE, candidates
from experiments.cheapest.exploring import MOST_MEASURED
from experiments.cheapest.held_out import choices
from experiments.cheapest.network import Network
from experiments.cheapest.searching import Found, Search
from experiments.cli.main import run_command
from experiments.costs import circuits
from experiments.data import datasets
from experiments.measure import metrics
from experiments.measure.latency import LatencyStats
from experiments.zoo import model_batches, model_files
from quantize.config.file import write_toml
from quantize.config.overrides import deciding

FORMATS = ("int8", "int4", "posit8_es1")


# ---- whole searches ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def found() -> Found:
    return experiments.search("mnist_mlp", bound="sqnr>=22", formats=FORMATS, n_calib=16, threads=1)


def _measured(config: quantize.QConfig, model: str, n_calib: int) -> float:
    """SQNR of a configuration on the calibration inputs, by what users call."""
    path = model_files.model_file(model)
    data = datasets.load("mnist1k").for_model(path)
    x = np.asarray(data.calibration_sample(n_calib, 0))
    mod = prepare(model_batches.load_for_batch(path, x.shape[1:], "N"))
    q = quantize.quantize(mod, [x], config)
    return float(metrics.sqnr_db(compiler.build(q)(x), compiler.build(mod)(x)))


def test_what_is_found_keeps_its_bound_and_no_uniform_format_is_cheaper(found: Found) -> None:
    assert found.point.figures["sqnr"] >= 22
    assert abs(_measured(found.config, "mnist_mlp", 16) - found.point.figures["sqnr"]) < 0.05
    assert found.evaluations <= len(found.layers) * len(FORMATS) + MOST_MEASURED
    for name in FORMATS:
        uniform = quantize.QConfig(**BASE, weight_dtype=name, activation_dtype=name)
        got = _measured(uniform, "mnist_mlp", 16)
        cheap = found.front[found.front["sqnr_db"] >= got - 0.05]["cost"].min()
        same = [dict(r) for _, r in found.front.iterrows() if abs(r["sqnr_db"] - got) < 0.05]
        assert np.isfinite(cheap) or same
    assert found.layers["cost"].sum() == found.point.cost
    front = found.front
    assert front["cost"].is_monotonic_increasing
    assert front["sqnr_db"].is_monotonic_increasing
    assert found.test["n_eval"] == 1000
    assert found.test["metric_name"] == "top1"


def test_its_configuration_is_a_file_that_other_verbs_take(
    found: Found, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plan = tmp_path / "x.toml", tmp_path / "p.json"
    file.write_text(write_toml(choices(found.config)))
    given = ["quantize", "mnist_mlp", "--calib", "mnist1k", "--config", str(file)]
    assert run_command([*given, "--plan", str(plan)]) == 0
    formats = quantize.Plan.from_json(plan).formats
    wanted = dict(zip(found.layers["node"], found.layers["format"], strict=True))
    assert {n: {o.format.lstrip("u") for o in f} for n, f in formats.items()} == {
        n: {f} for n, f in wanted.items()
    }
    for text in found.front["config"]:
        file.write_text(text)
        assert run_command([*given, "--plan", str(tmp_path / "other.json")]) == 0
    capsys.readouterr()


def test_its_configuration_is_a_scheme_of_sweeps_whose_rows_are_made_again(
    found: Found, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text(write_toml(choices(found.config)))
    spec, rows = tmp_path / "s.toml", tmp_path / "s.csv"
    head = 'models = ["mnist_mlp"]\nn_calib = 16\nn_eval = 20\n[latency]\nruns = 0\n'
    spec.write_text(f'schemes = [{{ config = "x.toml" }}]\n{head}')
    assert run_command(["sweep", str(spec), "-o", str(rows)]) == 0
    (tmp_path / "x.toml").unlink()  # what it said is in the row
    assert run_command(["reproduce", str(rows), "--row", "1"]) == 0
    assert "matches" in capsys.readouterr().out
    row = experiments.read_results(rows).iloc[0]
    assert json.loads(row["config"])["schemes"][0].items() >= choices(found.config).items()
    for scheme, said in (
        ('{ config = "x.toml" }', "s.toml:1: cannot read the configuration"),
        ('{ scheme = "int8", config = "x.toml" }', "give either a scheme or the file of its"),
        ('{ config = "empty.toml" }', "says nothing"),
        ('{ config = "odd.toml" }', "weight_dtyp"),
        ("{ n_eval = 3 }", "the key 'scheme' is missing"),
    ):
        (tmp_path / "empty.toml").write_text("")
        (tmp_path / "odd.toml").write_text('weight_dtyp = "int4"')
        spec.write_text(f"schemes = [{scheme}]\n{head}")
        assert run_command(["sweep", str(spec), "-o", str(tmp_path / "other.csv")]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.thorough
def test_the_command_prints_saves_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, front, picture = (tmp_path / n for n in ("x.toml", "f.csv", "p.svg"))
    given = ["search", "mnist_mlp", "--formats", "int8,int4", "--n-calib", "8", "--bound"]
    files = ["-o", str(config), "--front", str(front), "--picture", str(picture)]
    assert run_command([*given, "agreement>=1", *files, "--n-eval", "100"]) == 0
    out = capsys.readouterr().out
    assert "evaluations" in out
    assert "on 100 test inputs" in out
    assert "weight_dtype" in config.read_text() or "overrides" in config.read_text()
    assert front.read_text().startswith("cost,metric,sqnr_db,agreement,predicted_db,config")
    assert picture.read_text().count("<g>") == 2
    assert run_command([*given, "sqnr>=10", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["figures"]["sqnr"] >= 10
    for bad, said in (
        (["sqnr>=90"], "nothing keeps sqnr>=90; the nearest"),
        (["kl<=1e-9"], "nothing keeps kl<=1e-09; the nearest"),
        (["sqnr>=1", "--cost", "gold"], "unknown cost 'gold'"),
        (["sqnr>=1", "--cost", "energy", "--energy", "int8"], "is not KEY=PICOJOULES"),
        (
            ["sqnr>=1", "--cost", "gates", "--formats", "int8,posit8_es1 takum16"],
            "no circuit of posit",
        ),
        (["sqnr>=1", "--formats", 'posit8_es1 {format = "float16", chunk = -1}'], "chunk"),
        (["sqnr>=1", "--formats", "posit16_es1 float8_e4m3fn"], "float8_e4m3fn"),
        (["sqnr>=1", "--n-calib", "100000"], "calibration inputs"),
        (["sqnr>=1", "--n-eval", "1001"], "n_eval is 1001, but data set 'mnist1k' has 1000"),
        (["sqnr>=1", "--metric", "top7"], "unknown metric 'top7'"),
    ):
        left = sorted(tmp_path.iterdir())
        assert run_command([*given, *bad]) == 2, bad
        assert said in capsys.readouterr().err
        assert sorted(tmp_path.iterdir()) == left


@pytest.mark.thorough
def test_searches_are_recorded_with_the_front_judged_on_test_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "searches.csv"
    given = ["search", "mnist_mlp", "--formats", "int8,int4", "--n-calib", "8", "--bound"]
    assert run_command([*given, "sqnr>=10,drop<=50", "--record", str(record)]) == 0
    assert "the bound holds there, also at the worse end" in capsys.readouterr().out
    table = pd.read_csv(record, keep_default_na=False)
    assert {*table["bound"]} == {"sqnr>=10,drop<=50"}
    assert {*map(str, table["git_dirty"])} <= {"", "True", "False"}
    assert {*table["test_n_eval"]} == {"", "1000.0"}
    assert (pd.to_numeric(table["metric"]) <= 1).all()
    front, uniform = (table[table["kind"] == kind] for kind in ("front", "uniform"))
    assert [*uniform["format"]] == ["int8", "int4"]
    for text in front["config"]:
        (tmp_path / "x.toml").write_text(text)
        plan = ["--calib", "mnist1k", "--config", str(tmp_path / "x.toml"), "--plan"]
        assert run_command(["quantize", "mnist_mlp", *plan, str(tmp_path / "p.json")]) == 0
    (behind,) = recorded.before(record)
    assert len(behind) == len(table)
    for row in front.to_dict("records"):
        assert float(row["greedy_cost"]) <= row["cost"]
        assert float(row["greedy_sqnr_db"]) <= row["sqnr_db"]
        assert row["test_holds"] == str(float(row["test_sqnr_db"]) >= 10)
        assert abs(float(row["test_sqnr_db"]) - row["sqnr_db"]) < 3
    assert (table["evaluations"] <= 2 * 2 + MOST_MEASURED).all()
    assert recorded.before(tmp_path / "none.csv") == []
    # Tables of before there were some columns, and with others' first names, are read.
    names = dict(recorded.EARLIER)
    first = behind.drop(columns=[*recorded.LATER]).rename(columns=names)
    first.to_csv(tmp_path / "first.csv", index=False)
    (read,) = recorded.before(tmp_path / "first.csv")
    assert [*read.columns] == [*behind.columns]
    assert (read["sqnr_db"] == behind["sqnr_db"]).all()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert run_command([*given, "sqnr>=10", "--record", str(tmp_path / "other.csv")]) == 2
    assert "is no table of searches" in capsys.readouterr().err


def test_what_sqnr_surely_is_is_the_lower_end_of_a_ratios_interval(found: Found) -> None:
    figures = found.point.figures
    assert 22 <= figures["sqnr_sure"] < figures["sqnr"]
    data = datasets.load("mnist1k")
    path = model_files.model_file("mnist_mlp")
    network = Network.load(path, data.for_model(path), "", "top1", ("sqnr",), 16, 0, 1)
    x = network.batches[0]["input"]
    plan = quantize.calibrate(network.module, network.batches, found.config)
    got = compiler.build(quantize.realize(network.module, plan))(x)
    exact = compiler.build(network.module)(x).astype(np.float64)
    noise, signal = ((a**2).sum(axis=1) for a in (got - exact, exact))
    # Linearized: each input's share of the noise, less what it would be at the ratio of the sums.
    ratio = noise.sum() / signal.sum()
    error = np.std(noise - ratio * signal, ddof=1) * np.sqrt(len(x)) / signal.sum()
    least = -10 * np.log10(ratio + 2.13145 * error)  # Student's quantile, 15 degrees of freedom
    assert abs(least - figures["sqnr_sure"]) < 0.05


@pytest.mark.thorough
def test_layers_are_timed_alone_in_what_they_may_be_computed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[list[np.ndarray]] = []

    def in_order(calls: Sequence[Callable[[], object]], warmup: int, runs: int) -> list[object]:
        made.append([np.asarray(call()) for call in calls])
        return [LatencyStats.of([float(1 + k)]) for k in range(len(calls))]

    monkeypatch.setattr(timing, "measure_interleaved", in_order)
    path, data = model_files.model_file("mnist_mlp"), datasets.load("mnist1k")
    network = Network.load(path, data.for_model(path), "", "top1", ("sqnr",), 3, 0, 1)
    wanted = candidates(["float32", "int8", "posit8_es1 fma"], [])
    charge = timing.measured(network, wanted)
    first, last = network.layers
    assert [charge(last, c, ()) for c in wanted] == [1000.0, 2000.0, 3000.0]
    assert len(made) == 2
    x = network.first["input"]
    assert x.shape == (1, 1, 28, 28)
    np.testing.assert_allclose(made[1][0], compiler.evaluate(network.module, x), rtol=1e-4)
    for (exact, integer, posit), least in zip(made, (30, 30), strict=True):
        assert metrics.sqnr_db(integer, exact) > least
        assert 3 < metrics.sqnr_db(posit, exact) < metrics.sqnr_db(integer, exact)
    assert first.macs == 100352


@given(st.lists(st.text("ab*?[]!", min_size=1, max_size=4), min_size=2, max_size=4, unique=True))
@settings(max_examples=50, deadline=None)
def test_overrides_fit_their_nodes_alone(nodes: list[str]) -> None:
    chosen = tuple(int(k > 0) for k in range(len(nodes)))
    of: Any = SimpleNamespace(wanted=candidates(["int8", "int4"], []), nodes=nodes)
    overrides = Search.config(of, chosen).overrides
    for name, k in zip(nodes, chosen, strict=True):
        found = deciding(overrides, "weight_dtype", (name,))
        assert (found is not None) == (k != np.bincount(chosen).argmax())


@pytest.mark.thorough
def test_names_of_nodes_are_no_patterns(tmp_path: Path) -> None:
    """Outputs have any names, and the formats of one are not those of others that it would fit."""
    rng = np.random.default_rng(0)
    sizes, names = (12, 9, 7, 5), ("y[0]", "y*", "y0")
    nodes = [
        helper.make_node("MatMul", [source, f"w{k}"], [name])
        for k, (source, name) in enumerate(zip(("x", *names), names, strict=False))
    ]
    inits = [
        numpy_helper.from_array(rng.normal(size=sizes[k : k + 2]).astype(np.float32), f"w{k}")
        for k in range(3)
    ]
    kind = onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, None) for name in names]
    start = helper.make_tensor_value_info("x", kind, ["n", 12])
    graph = helper.make_graph(nodes, "g", [start], ends, inits)
    imports = [helper.make_opsetid("", 17)]
    path, data = tmp_path / "m.onnx", rng.normal(size=(6, 12)).astype(np.float32)
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    np.savez(tmp_path / "d.npz", x=data, x_calib=data)
    found = experiments.search(
        path, tmp_path / "d.npz", "sqnr>=-90", formats=["int8", "int4"], n_calib=6, output="y0",
        threads=1,
    )  # fmt: skip
    assert len(found.front) > 3
    plain = quantize.QConfig().to_dict()
    for text, wanted in zip(found.front["config"], found.front["sqnr_db"], strict=True):
        config = quantize.QConfig.from_dict({**plain, **tomllib.loads(text)})
        mod = compiler.from_onnx(path)
        got, want = (
            compiler.build(m)(data)[-1] for m in (quantize.quantize(mod, [data], config), mod)
        )
        assert abs(metrics.sqnr_db(got, want) - wanted) < 0.05


@pytest.mark.thorough
def test_integers_formats_with_their_sums_and_a_format_made_now_compete() -> None:
    datatypes.define("searched5", exponent=2, mantissa=2)
    prices = {"int8": 0.2, "searched5": 0.05, "memory": 1.0}
    found = experiments.search(
        "mnist_resnet8",
        bound="sqnr>=20, drop<=10",
        cost="energy",
        formats=["int8", "searched5", "float32"],
        accumulators=["exact", "float32"],
        picojoules={**prices, "float32": 4.0},
        n_calib=10,
        threads=1,
    )
    assert found.point.figures["sqnr"] >= 20
    assert found.unit == "uJ"
    assert set(found.layers["accumulate"]) <= {"", "exact"}
    assert abs(_measured(found.config, "mnist_resnet8", 10) - found.point.figures["sqnr"]) < 0.1


@pytest.mark.thorough
def test_approximate_multipliers_blocks_and_a_format_of_ones_own_compete_by_gates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, table = tmp_path / "formats.py", tmp_path / "c.csv"
    adapter.write_text(
        "import datatypes\nfrom experiments.examples import approximate_multiplier\n"
        'datatypes.define("gated5", exponent=2, mantissa=2)\napproximate_multiplier.define()\n'
    )
    head, tool = circuits.TABLE.read_text().splitlines()[0], circuits.table().tool
    given = ["--adapter", str(adapter), "search", "mnist_mlp", "--cost", "gates", "--bound"]
    given += ["sqnr>=8", "--n-calib", "8", "--threads", "1", "--json"]
    formats = ["--formats", "int8,gated5 exact,mitchell0,mxfp4_e2m1,posit8_es2 exact"]
    assert run_command([*given, *formats]) == 2
    assert "no circuit of gated5 with sums 'exact'" in capsys.readouterr().err
    table.write_text(f"{head}\ngated5,5,exact,30,mac,1,700,650.0,60,{tool}\n")
    assert run_command([*given, *formats, "--circuits", str(table)]) == 0
    facts = json.loads(capsys.readouterr().out)
    costs = {u["format"]: u["cost"] for u in facts["uniforms"]}
    macs = sum(layer["macs"] for layer in facts["layers"])
    assert costs["gated5"] == 650 * macs
    assert costs["mitchell0"] == macs * circuits.table().mac("mitchell0", "sequential")
    assert facts["holds"]
    assert facts["figures"]["sqnr"] >= 8


@pytest.mark.slow
def test_products_of_two_activations_take_part() -> None:
    found = experiments.search(
        "stdlib_lm", "stdlib_text", bound="kl<=0.05", formats=["int8", "int4"], n_calib=4, threads=1
    )
    assert found.point.figures["kl"] <= 0.05
    assert 0 < found.test["kl_float32"] < 0.2
