"""Filtering, pivoting, comparing and exporting results."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.results import export
from experiments.results.comparison import compare
from experiments.results.store import COLUMNS, ResultsFile, read_rows


def results(path: Path, shift: float = 0.0, slow: float = 1.0) -> pd.DataFrame:
    file = ResultsFile(path)
    for m, model in enumerate(("a_net", "b_net")):
        for k, scheme in enumerate(("float32", "int8", "posit8_es0")):
            file.append(
                dict.fromkeys(COLUMNS)
                | {"config_hash": f"{m}{k}", "model": model, "scheme": scheme, "status": "ok"}
                | {"metric": round(0.95 - 0.02 * k + shift, 4), "n_eval": 1000, "threads": 1}
                | {"sqnr_db": math.inf if k == 0 else 30.0 - k, "size_bytes": 1000 * (m + 1)}
                | {
                    f"latency_ms_{e}": slow * v
                    for e, v in (("min", 1.0), ("median", 1.1), ("p90", 1.2))
                }
            )
    return read_rows(path)


def test_conditions(tmp_path: Path) -> None:
    rows = results(tmp_path / "r.csv")
    assert len(export.where(rows, ["model=a_*"])) == 3
    assert export.where(rows, ["model=b_net", "scheme!=*32"])["scheme"].tolist() == [
        "int8",
        "posit8_es0",
    ]
    assert len(export.where(rows, ["metric >= 0.93"])) == 4
    assert len(export.where(rows, ["size_bytes=2000", "metric<0.93"])) == 1
    assert len(export.where(rows, [])) == 6


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("metrics=1", "unknown column 'metrics'; did you mean 'metric'"),
        ("metric=much", "metric is a number, 'much' is none"),
        ("model<b", "model is text"),
        ("nonsense", "is not COLUMN=VALUE"),
    ],
)
def test_wrong_conditions(tmp_path: Path, condition: str, message: str) -> None:
    rows = results(tmp_path / "r.csv")
    with pytest.raises(ConfigError, match=message):
        export.where(rows, [condition])
    assert run_command(["table", str(tmp_path / "r.csv"), "--where", condition]) == 2


def test_pivot_keeps_the_order_of_the_rows(tmp_path: Path) -> None:
    rows = results(tmp_path / "r.csv")
    wide = export.pivot(rows, "scheme", "model", "metric")
    assert list(wide) == ["scheme", "a_net", "b_net"]
    assert wide["scheme"].tolist() == ["float32", "int8", "posit8_es0"]
    assert wide["b_net"].tolist() == pytest.approx([0.95, 0.93, 0.91])
    with pytest.raises(ConfigError, match="several rows have threads=1 and scheme=float32"):
        export.pivot(rows, "threads", "scheme", "metric")


def test_rows_of_one_scheme_are_told_apart_by_system(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[2] / "results"
    file = str(folder / "requantize.csv")

    def table(*options: str, of: str = file) -> str:
        run_command(["table", of, *options])
        done = capsys.readouterr()
        return done.out or done.err

    calibrators = table("--pivot", "scheme,model,metric", of=str(folder / "recorded.csv"))
    assert "take system for scheme" in calibrators
    # How sums are formed is in the name of a scheme where it differs.
    by_scheme = json.loads(table("--pivot", "scheme,model,metric", "--json"))["rows"]
    named = {row["scheme"] for row in by_scheme}
    assert {"int8_channel sequential", "int8_channel int20_wrap"} <= named
    rows = json.loads(table("--pivot", "system,model,metric", "--json"))["rows"]
    recorded = pd.read_csv(file)
    assert len(rows) == len(recorded) / recorded["model"].nunique()
    assert all(len(row) == 4 and None not in row.values() for row in rows)
    options = ("--where", "system=*int20_wrap", "--columns", "system", "--json")
    only = json.loads(table(*options))["rows"]
    assert only
    assert all(row["system"].endswith("int20_wrap") for row in only)
    assert "system" not in json.loads(table("--columns", "all", "--json"))["rows"][0]


@pytest.mark.thorough
def test_comparison_tells_noise_from_change(tmp_path: Path) -> None:
    before = results(tmp_path / "a.csv")
    same = compare(before, results(tmp_path / "b.csv", slow=1.1))
    assert len(same) == 6
    assert set(same["slower_or_faster"]) == {"noise"}
    assert set(same["change"]) == {0.0}
    assert set(same["p_value"]) == {1.0}
    assert set(same["sqnr_change_db"]) == {0.0}
    changed = compare(before, results(tmp_path / "c.csv", shift=-0.05, slow=0.5))
    assert set(changed["slower_or_faster"]) == {"faster"}
    for said, verdict in (("none", "faster"), ("imprecise", "faster"), ("loaded", "noise")):
        busy = results(tmp_path / f"{said}.csv", slow=0.5).assign(latency_noise=said)
        assert set(compare(before, busy)["slower_or_faster"]) == {verdict}
    assert changed["speed"].tolist() == pytest.approx([2.0] * 6)


def test_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "r.csv")
    results(tmp_path / "r.csv")
    assert run_command(["table", path, "--pivot", "scheme,model,metric"]) == 0
    assert capsys.readouterr().out == (
        "scheme      a_net  b_net\n"
        "float32      0.95   0.95\n"
        "int8         0.93   0.93\n"
        "posit8_es0   0.91   0.91\n"
    )
    arguments = ["table", path, "--columns", "scheme,sqnr_db,cosine", "--where", "model=a_net"]
    assert run_command([*arguments, "--format", "markdown"]) == 0
    assert capsys.readouterr().out == (
        "| scheme     | sqnr_db | cosine |\n"
        "| ---------- | ------: | -----: |\n"
        "| float32    |     inf |        |\n"
        "| int8       |      29 |        |\n"
        "| posit8_es0 |      28 |        |\n"
    )
    assert run_command([*arguments, "--format", "latex"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\\begin{tabular}{lrr}\n\\toprule\nscheme & sqnr\\_db & cosine \\\\\n")
    assert "posit8\\_es0 & 28 &  \\\\\n\\bottomrule\n" in out
    assert run_command([*arguments, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "float32,inf,"
    assert run_command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][1]["sqnr_db"] == 29.0
    assert run_command(["table", path, "--compare", path]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-2:] == ["noise", "same"]


def test_what_other_languages_read_into_names_is_escaped() -> None:
    table = pd.DataFrame({"metric_name": ["top1~float32"], "scheme": [r"a^{2}|b\c"]})
    assert r"top1\textasciitilde{}float32 & a\textasciicircum{}\{2\}|b\textbackslash{}c \\" in (
        export.export(table, "latex")
    )
    assert export.export(table, "markdown").splitlines()[2].count(" | ") == 1
    assert r"\|b" in export.export(table, "markdown")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--format", "word"],
        ["--columns", "nothing"],
        ["--pivot", "model,scheme"],
        ["--pivot", "model,scheme,nothing"],
        ["--columns", "model", "--pivot", "a,b,c"],
        ["--compare", "missing.csv"],
    ],
)
def test_wrong_usage(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    results(tmp_path / "r.csv")
    assert run_command(["table", str(tmp_path / "r.csv"), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
