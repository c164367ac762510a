"""Engines on the command line and as an axis of sweeps, with the one of the examples."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import experiments
from compiler.engines import costs
from compiler.engines.engine import Engine, register_engine, remove_engine
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.spec.specification import load_spec
from experiments.systems.engine_choice import OURS, EngineChoice

EXAMPLE = Path(experiments.__file__).parent / "examples" / "new_engine.py"
ADAPTER = """
import numpy as np

import compiler
from compiler.engines.sequence import Routine, routine_engine
from compiler.pattern import CompositePattern, constant, is_op, wildcard

DENSE = is_op("nn.dense")(wildcard("x"), constant("w"), constant("b")).typed("float32")


def compute(found, f):
    w, b = (found.constant(name).data for name in "wb")
    return lambda x, y: np.add(x @ w.T, b, out=y)


ENGINE = routine_engine("products", [Routine(CompositePattern("dense", DENSE), compute)])
compiler.register_engine(ENGINE, override=True)
"""


@pytest.fixture(autouse=True)
def adapter(tmp_path: Path) -> Iterator[Path]:
    """A file that registers the engine `products`, which is known; and one lacks its library."""
    file = tmp_path / "own_engine.py"
    file.write_text(ADAPTER)
    exec(ADAPTER, {})
    register_engine(Engine("lacking", (), lambda f, name: print, lambda: "pip install lacking"))
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).random((8, 1, 28, 28), np.float32))
    yield file
    remove_engine("products")
    remove_engine("lacking")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run_command([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_run_names_what_engines_compute(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", "mnist_mlp", "--input", str(tmp_path / "x.npz")]
    found = told(capsys, *words, "--engine", "products")
    assert found["engine"] == "products"
    assert [r["region"] for r in found["engine_nodes"]] == ["products_0", "products_1"]
    assert [r["nodes"] for r in found["engine_nodes"]] == [["node_linear"], ["node_linear_1"]]
    assert run_command([*words, "--engine", "products"]) == 0
    assert "@products_1 by products: node_linear_1" in capsys.readouterr().out
    plain = told(capsys, *words)
    assert "engine" not in plain
    logits = [f["outputs"]["logits"] for f in (found, plain)]
    for key in ("min", "max", "mean"):
        assert logits[0][key] == pytest.approx(logits[1][key], rel=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ["run", "mnist_mlp", "--input", "{x}", "--dtype", "bfloat16"],
        ["bench", "mnist_mlp", "--warmup", "0", "--runs", "1", "--dtype", "bfloat16"],
        ["compare", "mnist_mlp", "--input", "{x}", "--images", "1", "--dtype", "bfloat16"],
    ],
)
def test_an_engine_that_computes_nothing_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]
) -> None:
    """The pattern of `products` is of float32."""
    said = "products computes nothing of this program\n"
    words = [w.format(x=tmp_path / "x.npz") for w in words]
    assert run_command([*words, "--engine", "products"]) == 0
    assert said in capsys.readouterr().out
    plain = [w if w != "bfloat16" else "float32" for w in words]
    assert run_command([*plain, "--engine", "products"]) == 0
    assert said not in capsys.readouterr().out


def test_bench_times_both(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "MOST_ROUNDS", 3)
    words = ["bench", "mnist_mlp", "--warmup", "0", "--runs", "2", "--engine", "products"]
    found = told(capsys, *words)
    assert found["engine"] == "products"
    assert found["latency_ms"]["median"] > 0
    assert found["latency_ms_float32"]["median"] > 0
    assert found["speedup_vs_float32"] > 0
    found = told(capsys, *words, "--engine-costs", "measured")
    assert found["engine"] == "products@measured"
    assert all(r["engine_ms"] > 0 and r["ours_ms"] > 0 for r in found["engine_nodes"])


def test_compare_sees_what_leaves_regions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["compare", "mnist_mlp", "--input", str(tmp_path / "x.npz")]
    found = told(capsys, *words, "--engine", "products")
    assert [layer["value"] for layer in found["layers"]] == ["view", "linear", "relu", "logits"]
    assert all(float(layer["sqnr_db"]) > 100 for layer in found["layers"])
    assert found["layers"][0]["sqnr_db"] == "inf"  # a view of the inputs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--input", "mnist1k", "--engine", "product"], "did you mean 'products'?"),
        (["run", "--input", "mnist1k", "--engine", "lacking"], "cannot run here: pip install lac"),
        (["bench", "--engine", "products", "--engine", "products"], "'products' is named twice"),
        (["bench", "--engine-costs", "measured"], "needs an --engine to measure"),
        (["compare", "--input", "mnist1k", "--plan", "p", "--engine", "products"], "either --plan"),
        (["compare", "--input", "mnist1k", "--engine", "products", "--events"], "--events counts"),
    ],
)
def test_bad_engines_are_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *rest = words
    assert run_command([verb, "mnist_mlp", *rest]) == 2
    streams = capsys.readouterr()
    assert said in " ".join(streams.err.split())
    assert not streams.out
    assert "Traceback" not in streams.err


def swept(folder: Path, model: str, adapter: str, engines: list[str]) -> dict[Any, Any]:
    """The rows of a network in float32 and int8, by scheme and engine; measured only in float32."""
    measured = any("@" in e for e in engines)
    rule = '[[exclude]]\nscheme = "int8_channel"\nengine = "*@measured"' if measured else ""
    (folder / "s.toml").write_text(f"""
models = ["{model}"]
dataset = "mnist1k"
schemes = ["float32", "int8_channel"]
engines = {engines}
adapters = ["{adapter}"]
n_eval = 4
n_calib = 16

[latency]
warmup = 0
runs = 1
batch = 1

{rule}
""")
    experiments.sweep(folder / "s.toml", out=folder / "s.csv")
    rows = experiments.read_results(folder / "s.csv")
    assert set(rows["status"]) == {"ok"}, list(rows["error"])
    assert len(set(rows["config_hash"])) == len(rows)
    return {(r.scheme, r.engine): r for r in rows.itertuples()}


@pytest.mark.thorough
def test_the_axis_of_engines(tmp_path: Path, adapter: Path) -> None:
    """An adapter brings the engine, in this process too; rows say what went where."""
    found = swept(tmp_path, "mnist_mlp", adapter.name, ["ours", "products"])
    assert [e for s, e in found if s == "float32"] == ["", "products"]
    assert [e for s, e in found if s == "int8_channel"] == ["", "products"]
    assert found["float32", ""].engine_nodes == ""
    regions = json.loads(found["float32", "products"].engine_nodes)
    assert [r["nodes"] for r in regions] == [["node_linear"], ["node_linear_1"]]
    assert found["int8_channel", "products"].engine_nodes == ""  # integers are not its patterns
    assert found["float32", ""].speedup_vs_fp32 == 1
    assert found["float32", "products"].speedup_vs_fp32 != 1
    assert 100 < found["float32", "products"].sqnr_db < float("inf")


@pytest.mark.thorough
def test_the_engine_of_the_examples(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    try:
        engines = ["ours", "matrices", "matrices@measured"]
        found = swept(tmp_path, "mnist_resnet8", EXAMPLE.name, engines)
        (region,) = json.loads(found["float32", "matrices"].engine_nodes)
        assert len(region["nodes"]) > 20
        (region,) = json.loads(found["float32", "matrices@measured"].engine_nodes)
        assert region["engine_ms"] > region["ours_ms"] > 0
        assert not region["handed"]  # numpy is slower than compiled code, by far
        assert found["float32", "matrices"].speedup_vs_fp32 < 1
        again = experiments.sweep(tmp_path / "s.toml", out=tmp_path / "s.csv", resume=True)
        assert set(again["config_hash"]) == {r.config_hash for r in found.values()}
    finally:
        remove_engine("matrices")


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ('["product"]', "unknown engine 'product'"),
        ('["lacking"]', "pip install lacking"),
        ('["products@guessed"]', "costs are 'measured', not 'guessed'"),
        ('["ours@measured"]', "nothing is measured where there is no engine"),
        ('["ours", ""]', "lists '' twice"),
        ("[]", "engines is empty"),
    ],
)
def test_a_bad_axis_is_one_sentence(engines: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        f'models = ["mnist_mlp"]\ndataset = "mnist1k"\nschemes = ["float32"]\nengines = {engines}'
    )
    with pytest.raises(ConfigError, match=r"s.toml:4") as caught:
        load_spec(tmp_path / "s.toml")
    assert said in str(caught.value)


def test_a_choice_is_its_text() -> None:
    for text in ("products", "products@measured"):
        assert str(EngineChoice.parse(text)) == text
    assert EngineChoice.parse("ours") == EngineChoice.parse("") == OURS
    assert str(OURS) == ""
