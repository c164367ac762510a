"""Tables of training runs by `dtypelab table`."""

from pathlib import Path

import pytest

from experiments.cli.main import run_command
from experiments.layers.trainings import RUN_COLUMNS, SHOWN_COLUMNS, read_runs

RUNS = Path(__file__).parents[2] / "results" / "training_vit.csv"


def test_usual_columns_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["table", str(RUNS), "--where", "seed=1"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [*SHOWN_COLUMNS]
    assert len(lines) == 9


def test_seeds_stand_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command(["table", str(RUNS), "--pivot", "system,seed,metric", "--format", "csv"]) == 0
    )
    assert capsys.readouterr().out.splitlines()[1] == "float32,0.931,0.91,0.92"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_is_exported_is_a_file_of_runs_again(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    out = tmp_path / f"some{suffix}"
    assert run_command(["table", str(RUNS), "--where", "seed=1", "--export", str(out)]) == 0
    assert tuple(read_runs(out).columns) == RUN_COLUMNS
    assert run_command(["table", str(out)]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--columns", "seed,metrc"], "did you mean 'metric'"),
        (["--compare", str(RUNS)], "compares results of sweeps"),
        (["--paired", "float32"], "compares results"),
        (["--pivot", "system,rate,metric"], "several rows have system=float32 and rate=0.006"),
    ],
)
def test_what_is_not_there_is_said(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["table", str(RUNS), *options]) == 2
    assert said in capsys.readouterr().err
