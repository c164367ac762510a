"""Results and layers as Parquet: written by `dtypelab table`, read wherever results are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.layers.table import layers_path, read_layers
from experiments.results import export
from experiments.results.store import COLUMNS, read_rows

QUICKSTART = Path(__file__).parents[2] / "results" / "quickstart.csv"


def exported(source: Path, target: Path, *options: str) -> Path:
    assert run_command(["table", str(source), *options, "--export", str(target)]) == 0
    return target


@pytest.fixture
def study(tmp_path: Path, fake: None) -> Path:
    """A small sweep with layers, on numpy stand-ins."""
    spec = {
        "models": ["mnist_mlp"],
        "schemes": ["float32", "int8_channel", "posit8_es0"],
        "n_eval": 20,
        "layers": {"images": 2},
    }
    experiments.sweep(spec, out=tmp_path / "study.csv")
    return tmp_path / "study.csv"


def test_a_parquet_copy_reads_as_the_csv_does_bit_for_bit(tmp_path: Path) -> None:
    copy = exported(QUICKSTART, tmp_path / "copy.parquet")
    pd.testing.assert_frame_equal(read_rows(copy), read_rows(QUICKSTART), check_exact=True)
    back = exported(copy, tmp_path / "back.csv")
    pd.testing.assert_frame_equal(read_rows(back), read_rows(QUICKSTART), check_exact=True)


@pytest.mark.thorough
def test_tables_pages_and_comparisons_take_parquet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = exported(QUICKSTART, tmp_path / "copy.parquet")
    shown = {}
    for source in (copy, QUICKSTART):
        capsys.readouterr()
        assert run_command(["table", str(source), "--pivot", "model,scheme,metric"]) == 0
        shown[source] = capsys.readouterr().out
    assert shown[copy] == shown[QUICKSTART]
    assert run_command(["table", str(copy), "--compare", str(QUICKSTART)]) == 0
    assert run_command(["report", str(copy), "-o", str(tmp_path / "copy.html")]) == 0
    assert "posit16_es1" in (tmp_path / "copy.html").read_text()


@pytest.mark.thorough
def test_layers_too(study: Path) -> None:
    layers = layers_path(study)
    copy = exported(layers, layers.with_suffix(".parquet"))
    pd.testing.assert_frame_equal(read_layers(copy), read_layers(layers), check_exact=True)
    rows = exported(study, study.with_suffix(".parquet"))
    assert layers_path(rows) == copy
    copy.unlink()
    assert layers_path(rows) == layers
    assert run_command(["table", str(layers), "--compare", str(layers)]) == 2
    assert run_command(["table", str(layers), "--where", "sqnr_db<200"]) == 0


def test_a_copy_of_an_earlier_schema_version_is_read(tmp_path: Path) -> None:
    rows = read_rows(QUICKSTART)
    first = COLUMNS.index("metric_drop_low")
    rows[list(COLUMNS[:first])].to_parquet(tmp_path / "old.parquet")
    old = read_rows(tmp_path / "old.parquet")
    assert tuple(old) == COLUMNS
    assert old["p_value"].isna().all()
    assert set(old["metric_name"]) == {""}
    assert old["metric"].equals(rows["metric"])


def test_chosen_columns_and_rows_only(tmp_path: Path) -> None:
    options = ("--columns", "model,scheme,metric", "--where", "model=mnist_mlp")
    chosen = pd.read_parquet(exported(QUICKSTART, tmp_path / "some.parquet", *options))
    assert list(chosen) == ["model", "scheme", "metric"]
    assert set(chosen["model"]) == {"mnist_mlp"}
    with pytest.raises(ConfigError, match="is not a dtypelab results file"):
        read_rows(tmp_path / "some.parquet")


@pytest.mark.parametrize("suffix", export.SUFFIXES)
def test_texts_are_exported_by_suffix(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pivot = ("--pivot", "scheme,model,metric")
    file = exported(QUICKSTART, tmp_path / f"table{suffix}", *pivot)
    assert capsys.readouterr().out == f"{file}: 6 rows, 4 columns\n"
    assert run_command(["table", str(QUICKSTART), *pivot, "--format", export.SUFFIXES[suffix]]) == 0
    assert file.read_text() == capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [("table.docx", "unknown suffix '.docx'"), ("nowhere/t.parquet", "there is no folder")],
)
def test_what_cannot_be_exported(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["table", str(QUICKSTART), "--export", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_parquet_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("model,metric\n")
    with pytest.raises(ConfigError, match=r"cannot read .*x\.parquet as Parquet"):
        read_rows(tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"cannot read .*none\.parquet"):
        read_rows(tmp_path / "none.parquet")


def test_a_sweep_does_not_append_to_parquet(tmp_path: Path, fake: None) -> None:
    spec = {"models": ["mnist_mlp"], "schemes": ["float32"], "n_eval": 20}
    with pytest.raises(ConfigError, match=r"write study\.csv, then dtypelab table study\.csv"):
        experiments.sweep(spec, out=tmp_path / "study.parquet")
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    copy = tmp_path / "copy.parquet"
    with pd.option_context("mode.string_storage", "python"):  # else pandas, loaded before, uses it
        assert run_command(["table", str(QUICKSTART), "--export", str(copy)]) == 2
    assert not copy.exists()
    copy.touch()
    assert run_command(["report", str(copy), "-o", str(tmp_path / "r.html")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    for line in errors:
        assert "install dtypelab with its extra `parquet`" in line
