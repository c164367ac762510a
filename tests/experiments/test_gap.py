"""Between simulation and bit-exact execution: both ends are what they are called, and what a step
costs is found where it was put."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pandas as pd
import pytest

import compiler
import datatypes
import experiments
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.transform.preparation import prepare
from compiler.types.dtypes import DType
from experiments.cli.main import run_command
from experiments.data import datasets
from experiments.gaps.between import BIAS, NORMS, PRODUCTS, RESULTS, SUMS, between
from experiments.gaps.chain import chains
from experiments.gaps.measuring import LATER
from experiments.measure import metrics
from experiments.systems import pipeline, schemes
from experiments.zoo import model_batches, model_files

EVERYTHING = (PRODUCTS, SUMS, BIAS, NORMS, RESULTS)


def network(model: str, inputs: int) -> tuple[IRModule, Any]:
    """A shipped network, prepared for so many inputs, and these."""
    path = model_files.model_file(model)
    x = np.asarray(datasets.load("mnist1k").for_model(path).x[:inputs])
    return prepare(model_batches.load_for_batch(path, x.shape[1:], inputs)), x


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("fmt", "accumulate"),
    [
        ("posit8_es1", "sequential"),
        ("posit8_es1", "exact"),
        ("float8_e4m3fn_sat", "fma"),
        ("float8_e5m2", "float22_e8m13"),
        ("bfloat16", "float32"),
    ],
)
def test_with_every_ingredient_it_is_the_bit_exact_network(fmt: str, accumulate: str) -> None:
    mod, x = network("mnist_mlp", 5)
    wanted = compiler.build(datatypes.change_dtype(mod, "float32", fmt, accumulate=accumulate))(x)
    scheme = schemes.parse(fmt, {"accumulate": accumulate})
    for states in chains(scheme, None).values():
        np.testing.assert_array_equal(compiler.build(states[-1].make(mod))(x), wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["mnist_resnet8", "mnist_dwsep"])
@pytest.mark.parametrize("fmt", ["posit8_es1", "float8_e4m3fn_sat"])
def test_so_it_is_for_convolutions_and_means(model: str, fmt: str) -> None:
    mod, x = network(model, 3)
    wanted = compiler.build(datatypes.change_dtype(mod, "float32", fmt))(x)
    for states in chains(schemes.parse(fmt), None).values():
        np.testing.assert_array_equal(compiler.build(states[-1].make(mod))(x), wanted)


def dense(rng: np.random.Generator, inputs: int) -> tuple[IRModule, Any, Any, Any]:
    """A dense layer with a bias, its data, weights and bias."""
    x, w, c = (
        rng.normal(0, 1, shape).astype(np.float32) for shape in ((4, inputs), (7, inputs), (7,))
    )
    b = FunctionBuilder()
    v = b.param("x", x.shape)
    y = b.call("nn.dense", v, b.const(w), b.const(c), name="y")
    return IRModule({"main": b.finish(y)}), x, w, c


def test_the_simulation_rounds_factors_and_nothing_else() -> None:
    mod, x, w, c = dense(np.random.default_rng(0), 24)
    dtype = DType.parse("custom[float8_e4m3fn]8")
    got = compiler.build(between(mod, dtype, "sequential", (), "fma"))(x)
    near = [a.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) for a in (x, w)]
    np.testing.assert_allclose(got, near[0] @ near[1].T + c, rtol=1e-5, atol=1e-5)


def test_each_ingredient_of_a_dense_layer_is_what_it_is_called() -> None:
    """Beside an oracle in float64 that rounds with ml_dtypes."""
    mod, x, w, c = dense(np.random.default_rng(1), 24)
    dtype = DType.parse("custom[float8_e5m2]8")

    def near(a: Any) -> Any:
        return np.asarray(a).astype(np.float32).astype(ml_dtypes.float8_e5m2).astype(np.float64)

    def wanted(exact: tuple[str, ...]) -> Any:
        terms = near(x)[:, None] * near(w)[None]
        if PRODUCTS in exact:
            terms = near(terms)
        bias = near(c) if BIAS in exact else c.astype(np.float64)
        if SUMS not in exact:
            sums = terms.sum(-1) + bias
            return near(sums) if RESULTS in exact else sums
        sums = np.zeros(terms.shape[:2])
        for k in range(terms.shape[2]):
            sums = near(sums + terms[..., k])
        if BIAS in exact:
            return near(sums + bias)
        return near(sums + bias) if RESULTS in exact else sums + bias

    for exact in (
        (RESULTS,), (BIAS,), (BIAS, RESULTS), (SUMS,), (SUMS, PRODUCTS), (SUMS, RESULTS),
        (SUMS, BIAS), (SUMS, PRODUCTS, BIAS, RESULTS, NORMS),
    ):  # fmt: skip
        got = compiler.build(between(mod, dtype, "sequential", exact, "fma"))(x)
        np.testing.assert_allclose(got, wanted(exact), rtol=2e-6, atol=2e-6, err_msg=str(exact))


@pytest.mark.thorough
def test_tables_of_formats_add_up_and_end_where_the_format_does() -> None:
    table = experiments.gap("mnist_mlp", "mnist1k", "float8_e4m3fn_sat", n_eval=60)
    assert list(table.columns) == [
        "order", "step", "ingredient", "metric", "delta", "low", "high", "sqnr_db", "kl",
        "sqnr_delta", "sqnr_low", "sqnr_high", "kl_delta", "kl_low", "kl_high",
    ]  # fmt: skip
    (whole,) = table[table["order"] == "whole"].to_dict("records")
    for order in ("forward", "reverse"):
        rows = table[table["order"] == order]
        assert rows["ingredient"].iloc[0] == "simulation"
        assert rows["delta"].iloc[1:].sum() == pytest.approx(whole["delta"])
        assert rows["sqnr_db"].iloc[-1] == whole["sqnr_db"]
        assert rows["kl_delta"].sum() == pytest.approx(whole["kl"])
        gained = whole["sqnr_db"] - rows["sqnr_db"].iloc[0]
        assert rows["sqnr_delta"].iloc[1:].sum() == pytest.approx(gained) == whole["sqnr_delta"]
        assert set(rows["ingredient"]) == {"simulation", *EVERYTHING}
    for name in ("sqnr", "kl"):
        known = table[table[f"{name}_delta"].notna()]
        assert len(known) == len(table) - (2 if name == "sqnr" else 0)  # float32 has no noise
        assert (known[f"{name}_low"] <= known[f"{name}_delta"] + 1e-9).all()
        assert (known[f"{name}_delta"] <= known[f"{name}_high"] + 1e-9).all()
    assert (table["low"] <= table["delta"] + 0.02).all()
    assert (table["delta"] - 0.02 <= table["high"]).all()
    mod, x = network("mnist_mlp", 60)
    exact = compiler.build(datatypes.change_dtype(mod, "float32", "float8_e4m3fn_sat"))(x)
    assert metrics.sqnr_db(exact, compiler.build(mod)(x)) == pytest.approx(whole["sqnr_db"])


@pytest.mark.thorough
def test_scaled_formats_and_integers_have_steps_of_their_own() -> None:
    scaled = {"scheme": "scaled", "weight_dtype": "posit8_es1", "activation_dtype": "posit8_es1"}
    table = experiments.gap(
        "mnist_mlp", scheme={**scaled, "compute": "native"}, n_eval=40, n_calib=10
    )
    assert list(table["ingredient"]) == [
        "simulation", "scales", "accumulator", "rounded products",
        "simulation", "accumulator", "rounded products", "scales", "all of them",
    ]  # fmt: skip
    forward, reverse = (table[table["order"] == order] for order in ("forward", "reverse"))
    assert forward["sqnr_db"].iloc[-1] == reverse["sqnr_db"].iloc[-1]
    exact = experiments.gap(
        "mnist_mlp",
        scheme={**scaled, "compute": "native", "accumulate": "exact"},
        n_eval=40,
        n_calib=10,
    )
    assert list(exact["ingredient"]) == [
        "simulation", "scales", "accumulator", "simulation", "accumulator", "scales", "all of them",
    ]  # fmt: skip
    assert exact["sqnr_db"].iloc[4] == pytest.approx(exact["sqnr_db"].iloc[3], abs=0.01)
    assert exact["sqnr_db"].iloc[-1] > table["sqnr_db"].iloc[-1] + 3
    whole = experiments.gap("mnist_mlp", scheme="int8", n_eval=40, n_calib=10)
    assert list(whole["ingredient"]) == ["simulation", "integers", "all of them"]
    for scheme, said in (
        (scaled, "the network is the simulation"),
        ("float32", "float32 needs no simulation"),
        ('{"*" = "posit8_es1"}', "no one simulation"),
    ):
        with pytest.raises(ConfigError, match=said):
            experiments.gap("mnist_mlp", scheme=scheme, n_eval=4, n_calib=10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("scheme", "last"),
    [
        ({"scheme": "float32", "accumulate": "float16"}, "accumulator"),
        ({"scheme": "lns8_3"}, "accumulator"),
    ],
)
def test_sums_of_float32_and_formats_without_exact_products_have_no_rounded_ones(
    scheme: dict[str, str], last: str
) -> None:
    mod, x = network("mnist_mlp", 5)
    how = schemes.parse(scheme.pop("scheme"), scheme)
    wanted = compiler.build(pipeline.retype(mod, how))(x)
    for states in chains(how, None).values():
        assert PRODUCTS not in {s.ingredient for s in states}
        np.testing.assert_array_equal(compiler.build(states[-1].make(mod))(x), wanted)
    (*_, end) = chains(how, None)["forward"]
    assert end.ingredient == last


@pytest.mark.thorough
def test_the_command_appends_tables_and_leaves_other_files_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv, other, latin = (tmp_path / name for name in ("g.csv", "other.csv", "latin.csv"))
    given = ["gap", "mnist_mlp", "--n-eval", "10"]
    assert run_command([*given, "--scheme", "bfloat16", "--csv", str(csv)]) == 0
    shown = capsys.readouterr().out
    assert "accumulator" in shown
    assert "whole" in shown
    more = ["--scheme", "bfloat16", "--scheme", "float16", "--accumulate", "exact", "--json"]
    assert run_command([*given, *more, "--csv", str(csv)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {r["scheme"] for r in rows} == {"bfloat16 exact", "float16 exact"}
    text = csv.read_text()
    assert text.count("\n") == 1 + 13 + len(rows)
    other.write_text("a,b\n1,2\n")
    latin.write_bytes(b"\xe9")
    for bad, said in (
        (["--csv", str(other)], "is no table of gaps"),
        (["--csv", str(latin)], "cannot be read as a table"),
        (["--csv", "/dev/stdout"], "it must be a file, to be appended to"),
        (["--scheme", "bfloat17"], "did you mean 'bfloat16'"),
        (["--n-eval", "100000"], "100000 are wanted"),
        (["--scheme", "{scheme = "], "--scheme {scheme = "),
    ):
        assert run_command([*given, *bad]) == 2, bad
        assert said in capsys.readouterr().err
    assert other.read_text() == "a,b\n1,2\n"
    assert csv.read_text() == text


def test_tables_from_before_there_were_all_columns_go_on(tmp_path: Path) -> None:
    csv = tmp_path / "g.csv"
    given = ["gap", "mnist_mlp", "--n-eval", "3", "--n-calib", "4", "--csv", str(csv)]
    assert run_command([*given, "--scheme", "int8"]) == 0
    first = pd.read_csv(csv)
    first.drop(columns=list(LATER)).to_csv(csv, index=False)
    assert run_command([*given, "--scheme", "int8"]) == 0
    both = pd.read_csv(csv)
    assert list(both.columns) == list(first.columns)
    assert both[list(LATER)].isna().all(axis=1).tolist() == [True] * 3 + [False] * 3
    pd.testing.assert_frame_equal(both[3:].reset_index(drop=True), first)
