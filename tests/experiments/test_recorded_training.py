"""results/training.csv: whole, and what results/README.md says of it."""

import re
from functools import cache
from pathlib import Path

import pytest

from experiments.layers.curves import curves_path, read_curves
from experiments.layers.training_summary import Summary, summaries
from experiments.layers.trainings import read_runs
from experiments.training.spec import load_training

RESULTS = Path(__file__).parents[2] / "results"
FILE = RESULTS / "training.csv"


@cache
def recorded() -> dict[str, Summary]:
    return {s.system: s for s in summaries(read_runs(FILE))}


def line(s: Summary) -> str:
    """A line of the table in results/README.md."""
    ends = f"[{100 * s.low:z.1f}, {100 * s.high:z.1f}]"
    return f"| {s.system} | {100 * s.mean:z.1f} | {100 * s.lost:z.1f} | {ends} |"


def test_rows_are_those_of_the_specification() -> None:
    rows = read_runs(FILE)
    wanted = {run.config_hash for run in load_training(RESULTS / "training.toml").runs}
    assert set(rows["config_hash"]) == wanted
    assert set(rows["status"]) == {"ok"}
    assert set(rows["git_dirty"]) == {"false"}
    assert {len(s.hashes) for s in recorded().values()} == {3}


def test_curves_are_whole() -> None:
    rows, curves = read_runs(FILE), read_curves(curves_path(FILE))
    assert set(curves["config_hash"]) == set(rows["config_hash"])
    last = curves.groupby("config_hash").last()
    for row in rows.to_dict("records"):
        assert last.loc[row["config_hash"], "step"] == row["steps"]
        assert last.loc[row["config_hash"], "metric"] == pytest.approx(row["metric"])


def test_the_readme_has_every_line() -> None:
    text = (RESULTS / "README.md").read_text()
    shown = re.findall(r"^\| (?:float|bfloat|posit|fixed)\S* .*\|$", text, re.M)
    assert shown == [line(s) for s in recorded().values()]


def test_what_is_said_to_lose_loses() -> None:
    """Those whose interval excludes 0 are those that the text names."""
    text = (RESULTS / "README.md").read_text()
    (said,) = re.findall(r"Lose by more than chance:\s+(.*?)\.\s", text, re.S)
    names = re.findall(r"`([^`]+)`", said)
    assert sorted(names) == sorted(s.system for s in recorded().values() if s.low > 0)
