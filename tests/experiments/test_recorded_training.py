"""results/training*.csv: whole, and what results/README.md says of them."""

import re

import pytest
from recorded_trainings import (
    CONTRASTS,
    RESULTS,
    contrast,
    line,
    losing,
    recorded,
    rows_of,
    section,
)

from experiments.layers.curves import curves_path, read_curves
from experiments.training.spec import load_training

NAMES = ("training", "training_cnn", "training_vit")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """A table that was recorded."""
    found = str(request.param)
    if not (RESULTS / f"{found}.csv").exists():
        pytest.skip(f"{found}.csv is not recorded yet: dtypelab train results/{found}.toml")
    return found


@pytest.mark.sampled(2)
def test_rows_are_those_of_the_specification(name: str) -> None:
    rows = rows_of(name)
    wanted = {run.config_hash for run in load_training(RESULTS / f"{name}.toml").runs}
    assert set(rows["config_hash"]) == wanted
    assert set(rows["status"]) == {"ok"}
    assert set(rows["git_dirty"]) == {"false"}
    assert {len(s.hashes) for s in recorded(name).values()} == {3}


@pytest.mark.sampled(2)
def test_curves_are_whole(name: str) -> None:
    rows, curves = rows_of(name), read_curves(curves_path(RESULTS / f"{name}.csv"))
    assert set(curves["config_hash"]) == set(rows["config_hash"])
    last = curves.groupby("config_hash").last()
    for row in rows.to_dict("records"):
        assert last.loc[row["config_hash"], "step"] == row["steps"]
        assert last.loc[row["config_hash"], "metric"] == pytest.approx(row["metric"])


def test_the_readme_has_every_line(name: str) -> None:
    shown = re.findall(r"^\| (?:float|bfloat|posit|fixed)\S* .*\|$", section(name), re.M)
    systems = [line(s) for s in recorded(name).values()]
    assert [s for s in shown if s.count("|") == 5] == systems


def test_the_readme_has_what_changes_gain(name: str) -> None:
    text = section(name)
    for given in CONTRASTS.get(name, ()):
        assert contrast(name, *given) in text


def test_what_is_said_to_lose_loses(name: str) -> None:
    """Those whose interval excludes 0 are those that the text names."""
    (said,) = re.findall(r"Lose by more than chance:\s+(.*?)\.\s", section(name), re.S)
    assert sorted(re.findall(r"`([^`]+)`", said)) == sorted(losing(name))


@pytest.mark.parametrize("name", CONTRASTS)
def test_changes_are_between_systems_that_are_trained(name: str) -> None:
    """Every contrast is of two systems of the specification, by their labels."""
    runs = load_training(RESULTS / f"{name}.toml").runs
    known = set()
    for run in runs:
        scale = str(run.rules.loss_scale)
        known.add(f"{run.formats}" + (f", loss x {scale}" if scale != "1" else ""))
    named = {system for _, *both in CONTRASTS[name] for system in both}
    assert named <= known, named - known
