"""`dtypelab sweep --dry-run`: the cells and what they will take, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import experiments
from experiments.cli.main import run_command
from experiments.running.estimates import estimates, minutes
from experiments.spec.cells import Cell
from experiments.spec.specification import load_spec

QUICKSTART = Path(__file__).parents[2] / "results" / "quickstart.csv"


def seconds(*settings: str) -> float:
    spec = load_spec("quickstart", settings)
    return sum(e.seconds for e in estimates(spec.cells, spec.workload.data))


def test_a_dry_run_lists_every_cell_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["sweep", "quickstart", "--dry-run", "--set", "threads=[1,2]"]) == 0
    text = capsys.readouterr().out
    assert text.count("posit16_es1") == 3 * 2
    assert text.rstrip().splitlines()[-1].startswith("36 cells of 3 networks, about ")
    assert run_command(["sweep", "quickstart", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["cells"]) == 18
    assert found["seconds"] == pytest.approx(sum(cell["seconds"] for cell in found["cells"]))
    # What it lists is what would run.
    (first,) = load_spec(
        {k: v for k, v in found["cells"][0].items() if k not in ("seconds", "recorded")}
    ).cells
    assert first.config_hash == load_spec("quickstart").cells[0].config_hash
    assert list(tmp_path.iterdir()) == []


def test_recorded_cells_take_what_they_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.csv"
    small = ["--set", 'models=["mnist_mlp"]', "--set", "n_eval=10", "--set", "latency.runs=0"]
    one = ["--set", 'schemes=["float32", "bfloat16"]']
    assert run_command(["sweep", "quickstart", "-o", str(out), *small, *one]) == 0
    capsys.readouterr()
    line = ["sweep", "quickstart", "-o", str(out), "--dry-run", "--json", *small]
    assert run_command(line) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["recorded"] for cell in cells] == [True, False, False, True, False, False]
    assert cells[0]["seconds"] == experiments.read_results(out)["duration_s"][0]


def test_more_work_takes_longer() -> None:
    base = seconds("n_eval=100")
    assert seconds("n_eval=1000") > base
    assert seconds("n_eval=100", "latency.runs=3000") > base
    assert seconds("n_eval=100", "n_calib=2") < base


def test_estimates_are_near_what_was_recorded() -> None:
    """The recorded quickstart, as a whole and of the cells that take long."""
    spec = load_spec("quickstart")
    rows = experiments.read_results(QUICKSTART).set_index("config_hash")["duration_s"]
    found = {e.cell: e.seconds for e in estimates(spec.cells, spec.workload.data)}
    assert 1 / 3 < sum(found.values()) / rows.sum() < 3

    def recorded(cell: Cell) -> float:
        return float(rows[cell.config_hash])

    for cell in (cell for cell in found if recorded(cell) > 2):
        assert 1 / 4 < found[cell] / recorded(cell) < 4, cell.label


def test_the_recorded_sweep_is_large_and_fits_an_hour() -> None:
    """The light and packaged networks are counted where they are at hand."""
    own = '["mnist_mlp", "mnist_resnet8", "mnist_dwsep"]'
    spec = load_spec("recorded", [f"models={own}", "exclude=[]", "override=[]"])
    assert len(spec.cells) >= 3 * 25
    assert sum(e.seconds for e in estimates(spec.cells, spec.workload.data)) < 20 * 60


def test_results_need_a_name_unless_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sweep", "quickstart"]) == 2
    assert "name the results: -o NAME.csv" in capsys.readouterr().err


def test_durations_are_told_in_seconds_and_minutes() -> None:
    assert (minutes(12.4), minutes(600)) == ("12 seconds", "10 minutes")
