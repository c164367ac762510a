"""What changed between two results files: figures, significance, and which cells."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from recorded_like import recorded_like

import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.results.comparison import compare, two_drops, two_shares


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    path = tmp_path_factory.mktemp("recorded") / "big.csv"
    recorded_like(path)
    return experiments.read_results(path)


def of(rows: pd.DataFrame, **wanted: Any) -> pd.Series[bool]:
    found = rows["model"].notna()
    for name, value in wanted.items():
        found &= rows[name] == value
    return found


@pytest.mark.thorough
def test_cells_that_differ_only_in_a_calibrator_are_told_apart(rows: pd.DataFrame) -> None:
    found = compare(rows, rows)
    assert len(found) == len(rows)
    assert not found.duplicated(["model", "scheme"]).any()
    assert set(found["accuracy"]) == {"same", "failed"}
    assert (found["accuracy"] == "failed").sum() == 1


@pytest.mark.thorough
def test_better_and_worse_follow_the_metric(rows: pd.DataFrame) -> None:
    after = rows.copy()
    for model in ("mnist_mlp", "my_reader", "my_regressor"):
        at = of(rows, model=model, scheme="float16")
        # By twenty standard errors, whatever the metric.
        width = (rows["metric_drop_high"] - rows["metric_drop_low"])[at] / 4
        after.loc[at, "metric"] = rows["metric"][at] + 20 * width
    changed = compare(rows, after)
    changed = changed[changed["accuracy"].isin(["better", "worse"])].set_index("model")
    assert changed["accuracy"].to_dict() == {
        "mnist_mlp": "better",
        "my_reader": "worse",
        "my_regressor": "worse",
    }
    back = compare(after, rows)
    assert back["accuracy"].tolist().count("worse") == 1
    assert back["accuracy"].tolist().count("better") == 2


def test_one_of_many_small_p_values_is_chance(rows: pd.DataFrame) -> None:
    at = of(rows, model="mnist_mlp", scheme="float16")
    after = rows.copy()
    after.loc[at, "metric"] = rows["metric"][at] - 0.018
    alone = compare(rows[at], after[at])
    assert alone["p_value"][0] < 0.05
    assert alone["accuracy"].tolist() == ["worse"]
    among = compare(rows, after)
    line = among[(among["model"] == "mnist_mlp") & (among["scheme"] == "float16")]
    assert line["p_value"].tolist() == alone["p_value"].tolist()
    assert line["accuracy"].tolist() == ["noise"]


def test_cells_of_one_file_and_failures_are_lines_too(rows: pd.DataFrame) -> None:
    before = rows[~of(rows, model="my_reader")]
    after = rows[~of(rows, model="mnist_mlp")].copy()
    broken = of(after, model="mnist_dwsep", scheme="float16")
    after.loc[broken, ["status", "metric"]] = ["error", math.nan]
    found = compare(before, after)
    assert len(found) == len(rows)
    counts = found.groupby("model")["accuracy"].value_counts()
    assert counts["mnist_mlp"].to_dict() == {"only in the first": 26}
    assert counts["my_reader"].to_dict() == {"only in the second": 26}
    assert counts["mnist_dwsep"].to_dict() == {"same": 25, "fails now": 1}
    assert compare(after, before)["accuracy"].tolist().count("works now") == 1


def test_rows_of_earlier_versions_are_the_same_cells(rows: pd.DataFrame) -> None:
    assert set(compare(rows.assign(repeat=math.nan), rows)["accuracy"]) == {"same", "failed"}


def test_several_rows_of_a_cell_are_refused(rows: pd.DataFrame) -> None:
    twice = pd.concat([rows, rows.head(1)], ignore_index=True)
    with pytest.raises(ConfigError, match="the second file has several rows of mnist_mlp in float"):
        compare(rows, twice)
    with pytest.raises(ConfigError, match="no cell in common"):
        compare(rows, rows.assign(dataset="another"))
    repeated = pd.concat([rows.head(1), rows.head(1).assign(repeat=1)], ignore_index=True)
    assert compare(repeated, repeated)["scheme"].tolist() == [
        "float32 repeat=0",
        "float32 repeat=1",
    ]


def test_p_values_against_the_normal_distribution() -> None:
    # 950 against 900 of 1000: z = 0.05 / sqrt(2 * 0.925 * 0.075 / 1000) = 4.245.
    assert two_shares(0.95, 0.90, 1000) == pytest.approx(2.18e-5, rel=0.01)
    assert two_shares(1.0, 1.0, 10) == 1.0
    assert math.isnan(two_shares(0.5, math.nan, 10))
    # Standard errors of 3 and 4 make one of 5: a change of 1.959964 * 5 is just significant.
    was, now = (
        {"metric": m, "metric_drop_low": -1.959964 * e, "metric_drop_high": 1.959964 * e}
        for m, e in ((0.0, 3.0), (1.959964 * 5, 4.0))
    )
    assert two_drops(was, now) == pytest.approx(0.05, abs=1e-6)
    assert two_drops(was, was) == 1.0


def test_the_verb_compares_files(
    rows: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_like(tmp_path / "a.csv")
    names = ["table", str(tmp_path / "a.csv"), "--compare", str(tmp_path / "a.csv")]
    assert run_command([*names, "--where", "model=my_reader"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 26
    assert lines[0].split()[-1] == "accuracy"
    assert "int8_channel percentile" in lines[5]
