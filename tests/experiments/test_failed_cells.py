"""Cells that fail: what a sweep's last line and exit code say, and where tables show the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import experiments
from experiments.cli.main import run_command
from experiments.results import export

Capture = pytest.CaptureFixture[str]

#: Of the stand-in, the depthwise network is not supported, and posit8_es0 breaks.
SPECS = {
    "none": ('["mnist_mlp"]', '["float32", "bfloat16"]', 0),
    "some": ('["mnist_mlp"]', '["float32", "posit8_es0"]', 1),
    "all": ('["mnist_dwsep"]', '["float32", "bfloat16", "posit8_es0"]', 3),
}


def swept(case: str, folder: Path) -> tuple[int, int, int, list[str]]:
    """The exit code, how many cells there are, how many fail, and the command line."""
    models, schemes, failed = SPECS[case]
    spec, out = folder / "s.toml", folder / "r.csv"
    spec.write_text(f"models = {models}\nschemes = {schemes}\nn_eval = 4\n[latency]\nruns = 0\n")
    line = ["sweep", str(spec), "-o", str(out)]
    return run_command(line), schemes.count('"') // 2, failed, line


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("case", SPECS)
def test_a_sweep_says_how_many_cells_failed_and_exits_1_where_all_did(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    code, cells, failed, line = swept(case, tmp_path)
    captured = capsys.readouterr()
    last = captured.out.splitlines()[-1]
    assert code == (1 if failed == cells else 0)
    assert last.startswith(f"{cells} rows in ")
    count = f"all {failed}" if failed == cells else f"{failed} of {cells}"
    assert (f"{count} cells failed" in last) == bool(failed)
    assert captured.err.count("\n") == bool(failed)
    assert (f"{count} cells failed" in captured.err) == bool(failed)
    # A sweep that only finds its rows again says the same.
    assert run_command([*line, "--resume", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["failed"] == failed


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("case", SPECS)
def test_tables_show_status_and_error_where_a_row_failed(
    case: str, tmp_path: Path, capsys: Capture
) -> None:
    _, _, failed, _ = swept(case, tmp_path)
    capsys.readouterr()
    results = str(tmp_path / "r.csv")
    assert run_command(["table", results]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    head, *lines = shown.out.splitlines()
    assert ("status" in head and "error" in head) == bool(failed)
    reasons = ("operator Frobnicate is not supported", "ZeroDivisionError: division by zero")
    assert sum(any(r in line for r in reasons) for line in lines) == failed
    # Where the reason is not shown, a note says that there is one.
    for option in (["--pivot", "model,scheme,metric"], ["--columns", "model,metric"]):
        assert run_command(["table", results, *option]) == 0
        assert ("rows failed" in capsys.readouterr().err) == bool(failed)
    assert run_command(["table", results, "--columns", "model,status,error"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("fake")
def test_rows_that_failed_say_how_sums_were_to_be_formed(tmp_path: Path) -> None:
    schemes = [{"scheme": "posit8_es0", "accumulate": mode} for mode in ("fma", "exact")]
    spec = {"models": ["mnist_mlp"], "schemes": schemes, "n_eval": 4, "latency": {"runs": 0}}
    rows = experiments.sweep(spec, tmp_path / "r.csv", progress=False)
    assert [*rows["status"]] == ["error", "error"]
    assert [*rows["accumulate"]] == ["fma", "exact"]


@pytest.mark.usefixtures("fake")
def test_long_errors_are_shortened_for_people_only(tmp_path: Path, capsys: Capture) -> None:
    swept("all", tmp_path)
    rows = experiments.read_results(tmp_path / "r.csv")
    long = rows.assign(error="why " * 100)
    short = export.shortened(long)
    assert (short["error"].str.len() == export.ERROR_LENGTH).all()
    assert short["error"].str.endswith("...").all()
    assert export.shortened(rows)["error"].equals(rows["error"])
    capsys.readouterr()
    assert run_command(["table", str(tmp_path / "r.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["error"] == rows["error"][0]


@pytest.mark.usefixtures("fake")
def test_notes_stand_below_the_table(tmp_path: Path, capsys: Capture) -> None:
    swept("none", tmp_path)
    rows = experiments.read_results(tmp_path / "r.csv")
    from experiments.cli.common import show
    from experiments.results.terminal import results_table

    capsys.readouterr()
    show(results_table(rows.assign(notes="the metric is NaN: of a reason")))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "mnist_mlp float32, mnist_mlp bfloat16: the metric is NaN: of a reason"
