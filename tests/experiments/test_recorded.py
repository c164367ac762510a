"""The tables in results/: whole, valid, what their specifications say, and reproducible."""

from __future__ import annotations

import json
import random
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import experiments
from experiments import zoo
from experiments.data import datasets
from experiments.results.store import COLUMNS
from experiments.spec.shipped import FOLDER
from experiments.spec.specification import load_spec
from experiments.systems import number_systems

RESULTS = Path(__file__).parents[2] / "results"
RECORDED = RESULTS / "recorded.csv"
HARDWARE = RESULTS / "hardware.csv"  # gates, not rows of a sweep
SEARCH = RESULTS / "search.csv"  # assignments of formats, neither
TRAININGS = (*RESULTS.glob("qat*.csv"), *RESULTS.glob("training*.csv"))  # columns of their own
TUNED = RESULTS.glob("tuned*.csv")  # networks and kernels that were tuned, neither
GPUS = RESULTS / "cuda_kernels.csv"  # what kernels take of chips, neither
OTHER = (HARDWARE, SEARCH, GPUS, *TRAININGS, *TUNED)


def name_of(model: Any) -> str:
    return str(model["model"] if isinstance(model, dict) else model)


def at_hand(model: str) -> bool:
    """Whether the network and its data set are installed."""
    source = zoo.sources()[model]
    generated = zoo.DATASETS.get(source.dataset)
    return source.present() and not (generated and generated.missing)


def specification(name: str) -> dict[str, Any]:
    """A shipped specification, of the networks that are at hand."""
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    content["models"] = [m for m in content["models"] if at_hand(name_of(m))]
    names = list(map(name_of, content["models"]))
    for rule in [*content.get("exclude", []), *content.get("override", [])]:
        patterns = rule.get("model", names)
        patterns = [patterns] if isinstance(patterns, str) else patterns
        rule["model"] = [m for m in names if any(fnmatchcase(m, p) for p in patterns)]
    for entry in content.get("include", []):
        given = entry["model"] if isinstance(entry["model"], list) else [entry["model"]]
        entry["model"] = [m for m in given if at_hand(name_of(m))]
    content["include"] = [entry for entry in content.get("include", []) if entry["model"]]
    for key in ("exclude", "override"):
        content[key] = [rule for rule in content.get(key, []) if rule["model"]]
    return content


@pytest.fixture(scope="module")
def recorded() -> pd.DataFrame:
    if not RECORDED.is_file():
        pytest.skip("there is no results/recorded.csv: dtypelab sweep recorded -o it")
    return experiments.read_results(RECORDED)


@pytest.mark.thorough
def test_the_recorded_specification_is_as_large_as_promised() -> None:
    content = tomllib.loads((FOLDER / "recorded.toml").read_text())
    assert len(content["models"]) >= 6
    assert len(content["schemes"]) >= 12
    cells = load_spec(specification("recorded")).cells
    assert len({c.config_hash for c in cells}) == len(cells)
    # Of networks that are not at hand, at least as many cells as of the light ones.
    missing = len(content["models"]) - len({c.model.name for c in cells})
    assert len(cells) + 20 * missing >= 170
    assert missing or len(cells) >= 200
    assert {"int8", "float32", "format", "scaled"} == {c.scheme.kind for c in cells}


def test_every_recorded_table_is_valid() -> None:
    files = sorted(RESULTS.glob("*.csv"))
    assert RESULTS / "quickstart.csv" in files
    for file in files:
        if file.name.endswith((".layers.csv", ".gaps.csv", ".curves.csv")) or file in OTHER:
            continue
        rows = experiments.read_results(file)
        assert list(rows.columns) == list(COLUMNS)
        assert rows["config_hash"].is_unique
        assert set(rows["status"]) == {"ok"}, rows[rows["status"] != "ok"]["error"].tolist()
        timed = rows[rows["runs"] > 0]
        assert timed["latency_ms_median"].gt(0).all()
        assert rows["metric"].notna().all()
        assert (rows["git_dirty"] == "false").all(), file


def assert_covers(rows: pd.DataFrame, name: str) -> None:
    """Assert that there is a row for every cell of a shipped specification.

    By what was configured: rendered words are those of one version of Pillow.
    """
    found = {json.dumps(json.loads(text), sort_keys=True) for text in rows["config"]}
    for cell in load_spec(specification(name)).cells:
        assert json.dumps(cell.specification(), sort_keys=True) in found, cell.label


@pytest.mark.thorough
def test_the_recorded_sweep_covers_its_specification(recorded: pd.DataFrame) -> None:
    assert len(recorded) >= 200
    assert recorded["model"].nunique() >= 6
    assert recorded["scheme"].nunique() >= 12
    assert_covers(recorded, "recorded")


def test_the_requantize_table_covers_its_specification_and_shows_what_its_readme_says() -> None:
    rows = experiments.read_results(RESULTS / "requantize.csv")
    assert len(rows) == 126
    assert_covers(rows, "requantize")
    right = {
        (row["model"], row["scheme"], row["accumulate"]): round(1000 * row["metric"])
        for row in rows.to_dict("records")
    }
    for (model, scheme, mode), count in right.items():
        exact = right[model, scheme, "sequential"]
        lost, mlp = exact - count, model == "mnist_mlp"
        assert abs(exact - right[model, "int8_channel", "sequential"]) <= 1
        # 20 bits suffice for convolutions; the perceptron's 784 terms are too many for them.
        if mode.startswith("int24") or (mode.startswith("int20") and not mlp):
            assert lost == 0
        elif mode == "int20_saturate":
            assert lost <= 3
        elif mode == "int16_wrap":
            assert lost > 800
        elif mode == "int16_saturate":
            assert count > right[model, scheme, "int16_wrap"]
    assert right["mnist_mlp", "int8_channel", "int20_wrap"] == 594
    assert right["mnist_dwsep", "int8_channel[requantize=shift]", "int16_saturate"] == 983


def test_the_language_table_is_of_its_specification_and_shows_what_its_readme_says() -> None:
    rows = experiments.read_results(RESULTS / "language.csv").set_index("scheme")
    assert len(rows) >= 150
    cells = {json.dumps(c.specification(), sort_keys=True) for c in load_spec("language").cells}
    assert {json.dumps(json.loads(text), sort_keys=True) for text in rows["config"]} <= cells
    assert (rows["tokens"] == 65536).all()
    assert rows["metric"].min() > 13.6
    kl = rows["kl_float32"]
    group = "weight_granularity=group,weight_group_size=32"
    for name in ("int4", "nf4", "float4_e2m1fn"):
        nearest = kl[f"scaled float32 x {name}[{group}]"]
        assert kl[f"scaled float32 x {name}[{group},weight_rounding=gptq]"] < 0.75 * nearest
    for name in ("mxfp4_e2m1", "nvfp4", "nvint4"):
        plain = f"scaled float32 x {name}"
        assert kl[f"{plain}[weight_rounding=gptq]"] < 0.75 * kl[plain]
    assert kl["nvfp4[rotate=True]"] > kl["nvfp4"]
    assert kl["nvint4[rotate=True]"] < kl["nvint4"]
    tokens = "activation_granularity=token"
    both = f"scaled int4[{tokens},%s{group}]"
    assert kl[both % "rotate=True,"] < 0.5 * kl[both % ""]
    assert kl[f"int8[activation_dtype=int8,{tokens}]"] < 0.5 * kl["int8[activation_dtype=int8]"]
    sums = rows.set_index("accumulate", append=True)["kl_float32"]
    for name in ("bfloat16", "float8_e5m2_sat", "posit8_es1"):
        assert sums[name, "exact"] < 0.1 * sums[name, "sequential"]


def test_the_table_of_costs_covers_its_specification_and_shows_what_its_readme_says() -> None:
    rows = experiments.read_results(RESULTS / "costs.csv")
    assert_covers(rows, "costs")
    assert set(rows["cost_source"]) == {"circuits"}
    by = {(r["scheme"], r["accumulate"], r["model"]): r for r in rows.to_dict("records")}

    def of(column: str, scheme: str, mode: str) -> list[float]:
        three = ("mnist_mlp", "mnist_resnet8", "mnist_dwsep")
        return [by[scheme, mode, model][column] for model in three]

    for mode in ("sequential", "certified"):
        assert of("accumulator_bits", "int8_channel", mode) == [24, 23, 22]
    int4 = "int8_channel[weight_bits=4,weight_calibrate=mse]"
    assert of("accumulator_bits", int4, "sequential") == [20, 19, 18]
    integers = rows[rows["accumulator_data_bits"].notna()]
    assert set(integers["accumulator_bits"] - integers["accumulator_data_bits"]) <= {2, 3, 4}
    for column in ("metric", "sqnr_db", "cosine"):
        same = of(column, "int8_channel", "sequential")
        assert of(column, "int8_channel", "certified") == same
    for name, least, most in (
        *(("posit8_es0", 27, 30), ("float8_e4m3fn", 42, 45), ("float8_e5m2", 57, 63)),
        *(("posit8_es2", 73, 78), ("takum8", 501, 508)),
    ):
        widths = of("accumulator_bits", f"scaled {name}", "float32")
        assert (min(widths), max(widths)) == (least, most)
    for name, mode, gates in (
        *(("mxfp4_e2m1", "float32", 430), ("nvfp4", "float32", 641), ("mxint8", "float32", 1291)),
        *(("int8_channel", "sequential", 1373), ("mxfp8_e4m3", "float32", 1629)),
        ("posit8_es1", "exact", 2196),
    ):
        assert of("mac_gates", name, mode) == pytest.approx([gates] * 3, abs=0.6)
        shown = [low > 0 for low in of("metric_drop_low", name, mode)]
        assert any(shown) is (name == "mxfp4_e2m1")


def test_the_recorded_sweep_took_less_than_an_hour(recorded: pd.DataFrame) -> None:
    assert recorded["duration_s"].sum() < 60 * 60


def reproducible(rows: pd.DataFrame) -> list[int]:
    """Numbers of the rows whose network is at hand and whose machine computes as this one does."""
    here = number_systems.isa_of("llvm")
    return [
        number
        for number, row in enumerate(rows.to_dict("records"), start=1)
        if row["isa"] == here and row["model"] in zoo.sources() and at_hand(row["model"])
    ]


@pytest.mark.thorough
def test_cheap_recorded_rows_reproduce() -> None:
    """Formats' arithmetic is pinned: rows of the perceptron come out the same for good."""
    file = RESULTS / "quickstart.csv"
    rows = experiments.read_results(file)
    numbers = reproducible(rows)
    if not numbers:
        pytest.skip("the recorded tables were made with other instructions than this machine's")
    cheap = [
        n
        for n in numbers
        if rows["model"][n - 1] == "mnist_mlp" and rows["calibrator"][n - 1] == ""
    ]
    assert len(cheap) >= 3
    for number in cheap:
        found = experiments.reproduce(file, str(number))
        assert found.matches, found.differences


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_five_rows_drawn_at_random_reproduce(file: Path) -> None:
    if file.name.endswith((".layers.csv", ".gaps.csv", ".curves.csv")):
        pytest.skip("layers, gaps and curves are beside their rows")
    if file in OTHER:
        pytest.skip("gates, assignments, trainings and tuned kernels are no rows of a sweep")
    rows = experiments.read_results(file)
    numbers = reproducible(rows)
    if len(numbers) < 5:
        pytest.skip("fewer than five rows were made with what is at hand on this machine")
    seed = random.randrange(2**32)
    print("seed", seed)
    for number in random.Random(seed).sample(numbers, 5):
        found = experiments.reproduce(file, str(number))
        what = (rows["model"][number - 1], rows["scheme"][number - 1])
        assert found.matches, (seed, number, what, found.differences)
        print(number, *what, found.latency_ratio, found.latency_within_noise)


def test_the_data_sets_of_the_zoo_are_those_of_its_networks() -> None:
    for source in zoo.sources().values():
        assert source.dataset in datasets.names() or source.origin == "registered"
