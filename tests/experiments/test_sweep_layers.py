"""Layers and their events in sweeps: a second table beside the results."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import compiler
import datatypes
import experiments
from compiler.errors import ConfigError
from compiler.transform.preparation import prepare
from experiments import zoo
from experiments.data import datasets
from experiments.layers.table import EVENTS, LAYER_COLUMNS, LayersFile, layers_path, read_layers
from experiments.measure.layer_errors import layer_errors
from experiments.spec.specification import load_spec

SPEC: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "schemes": ["float32", "int8_channel", "posit8_es0", "float8_e4m3fn"],
    "n_eval": 20,
    "n_calib": 20,
    "latency": {"warmup": 0, "runs": 0},
    "layers": {"images": 2, "events": True},
}


def stable(table: pd.DataFrame) -> pd.DataFrame:
    ordered = table.sort_values(["config_hash", "place"]).reset_index(drop=True)
    return ordered.drop(columns=["run_id"])


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame, pd.DataFrame]:
    out = tmp_path_factory.mktemp("sweep") / "study.csv"
    rows = experiments.sweep(SPEC, out)
    return out, rows, read_layers(layers_path(out))


Swept = tuple[Path, pd.DataFrame, pd.DataFrame]


@pytest.mark.thorough
def test_every_value_of_every_configuration_has_a_line(swept: Swept) -> None:
    out, rows, layers = swept
    assert layers_path(out).name == "study.layers.csv"
    assert rows["status"].tolist() == ["ok"] * 4, rows["error"].tolist()
    assert list(layers.columns) == list(LAYER_COLUMNS)
    assert set(layers["scheme"]) == {"int8_channel", "posit8_es0", "float8_e4m3fn"}
    assert set(layers["config_hash"]) == set(rows["config_hash"][1:])
    assert set(layers["run_id"]) == set(rows["run_id"])
    for _, lines in layers.groupby("config_hash"):
        assert lines["place"].tolist() == list(range(len(lines)))
        assert "nn.dense" in lines["operator"].tolist()


@pytest.mark.thorough
def test_events_are_those_that_compare_counts(swept: Swept) -> None:
    net = prepare(compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx"))
    digits = datasets.load("mnist1k").x[:2]
    changed = datatypes.change_dtype(net, "float32", "float8_e4m3fn")
    want = layer_errors(net, changed, [digits], events=True)
    lines = swept[2][swept[2]["scheme"] == "float8_e4m3fn"]
    assert lines["value"].tolist() == [e.value for e in want]
    assert lines["sqnr_db"].tolist() == [e.sqnr_db for e in want]
    for name in EVENTS:
        assert lines[name].tolist() == [getattr(e.events, name) for e in want]
    assert lines["absorbed"].sum() > 0
    integers = swept[2][swept[2]["scheme"] == "int8_channel"]
    assert integers[list(EVENTS)].isna().all(axis=None)
    assert (integers["sqnr_db"] > 10).all()


def test_a_resumed_sweep_replaces_the_lines_of_what_it_runs_again(swept: Swept) -> None:
    out, rows, layers = swept
    text = out.read_text().splitlines(keepends=True)
    out.write_text("".join(text[:-1]))  # as if killed between the layers and the row
    again = experiments.sweep(SPEC, out, resume=True)
    assert again["sqnr_db"].tolist() == rows["sqnr_db"].tolist()
    pd.testing.assert_frame_equal(stable(read_layers(layers_path(out))), stable(layers))


def test_layers_are_part_of_a_configuration_only_where_they_are_asked_for() -> None:
    def hashes(**layers: Any) -> list[str]:
        return [cell.config_hash for cell in load_spec({**SPEC, "layers": layers}).cells]

    plain = [cell.config_hash for cell in load_spec({**SPEC, "layers": {}}).cells]
    assert hashes(images=0, events=True) == plain
    variants = [plain, hashes(images=1), hashes(images=2), hashes(images=1, events=True)]
    assert len({h for found in variants for h in found}) == 4 * len(plain)
    (cell, *_) = load_spec({**SPEC, "layers": {"images": 3, "events": True}}).cells
    assert load_spec(cell.specification()).cells[0].config_hash == cell.config_hash


def test_files_that_are_there_or_are_no_layers(tmp_path: Path) -> None:
    path = tmp_path / "a.layers.csv"
    LayersFile(path)
    with pytest.raises(ConfigError, match="exists already; continue it with --resume"):
        LayersFile(path)
    path.write_text("something,else\n1,2\n")
    with pytest.raises(ConfigError, match="not a layers file"):
        LayersFile(path, resume=True)
    with pytest.raises(ConfigError, match=r"no layers file .*; a sweep with \[layers\] writes one"):
        read_layers(tmp_path / "none.csv")
