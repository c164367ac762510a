"""Differences between cells that saw the same sequences."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.layers.sequences import SequencesFile, sequence_lines, sequences_path
from experiments.measure.statistics import ratio_of_sums, student95
from experiments.measure.tokens import TokenSums
from experiments.results.schema import COLUMNS, SCHEMA_VERSION
from experiments.results.store import ResultsFile

#: Two-sided 95 % points of Student's t, from tables (Abramowitz and Stegun, table 26.10).
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize(("degrees", "want"), STUDENT.items())
def test_quantiles_are_those_of_the_tables(degrees: int, want: float) -> None:
    assert student95(degrees) == pytest.approx(want, abs=5.1e-4)
    assert student95(1001) == pytest.approx(student95(1000), abs=3e-6)


@pytest.mark.parametrize("n", [3, 20])
def test_intervals_hold_what_is_true_in_95_of_100_cases(n: int) -> None:
    """Of sequences whose tokens depend on each other, of unequal lengths."""
    random, inside = np.random.default_rng(0), 0
    for _ in range(1000):
        counts = random.integers(20, 30, n).astype(float)
        values = counts * random.normal(0.3, 0.1, n) + random.normal(0, 1, n)
        _, low, high = ratio_of_sums(values, counts)
        inside += low <= 0.3 <= high
    assert 930 <= inside <= 970


def test_what_has_no_interval() -> None:
    assert all(map(math.isnan, ratio_of_sums(np.zeros(2), np.zeros(2))))
    found = ratio_of_sums(np.array([3.0]), np.array([2.0]))
    assert found[0] == 1.5
    assert math.isnan(found[1])


def _recorded(folder: Path, losses: dict[str, Any], kls: dict[str, Any]) -> Path:
    """A results file with its sequences, of two tokens each."""
    path = folder / "r.csv"
    results, file = ResultsFile(path), SequencesFile(sequences_path(path))
    for scheme, loss in losses.items():
        n = len(loss)
        two, kl = np.full(n, 2.0), np.asarray(kls[scheme], float)
        sums = TokenSums(two, np.asarray(loss, float), np.ones(n), kl, two, kl)
        row = {**dict.fromkeys(COLUMNS), "schema_version": SCHEMA_VERSION, "status": "ok"}
        row |= {"config_hash": scheme, "model": "m", "model_sha256": "a", "scheme": scheme}
        row |= {"dtype": scheme, "metric_name": "perplexity", "tokens": 2 * n, "metric": 1.0}
        row |= {"kl_float32_p99": 0.0, "top_token_agreement": 1.0, "n_eval": n}
        file.put(scheme, [{"run_id": "r", **line} for line in sequence_lines(row, sums)])
        results.append(row)
    return path


LOSSES = {"float32": [1, 1, 1, 1], "int8": [1.1, 1.2, 1.1, 1.2], "int4": [2, 9, 1, 4]}
KLS = {"float32": [0] * 4, "int8": [0.1, 0.1, 0.2, 0.2], "int4": [1, 2, 1, 2]}


def test_differences_are_taken_sequence_by_sequence(tmp_path: Path) -> None:
    found = experiments.paired_differences(_recorded(tmp_path, LOSSES, KLS), "int8")
    assert found["system"].tolist() == ["float32", "int4"]
    assert found["against"].tolist() == ["int8", "int8"]
    assert found["tokens"].tolist() == [8, 8]
    # Of four differences 0.1, 0.2, 0.1, 0.2 of two tokens each: mean 0.075 a token.
    line = found.iloc[0]
    half = student95(3) * np.std([0.1, 0.2, 0.1, 0.2], ddof=1) / math.sqrt(4) / 2
    assert line["loss_difference"] == pytest.approx(-0.075)
    assert line["loss_low"] == pytest.approx(-0.075 - half)
    assert line["loss_high"] == pytest.approx(-0.075 + half)
    assert line["perplexity_ratio"] == pytest.approx(math.exp(-0.075))
    assert found["kl_difference"].tolist() == pytest.approx([-0.6 / 8, 5.4 / 8])


def test_float32_is_known_of_every_row(tmp_path: Path) -> None:
    losses = {k: v for k, v in LOSSES.items() if k != "float32"}
    found = experiments.paired_differences(_recorded(tmp_path, losses, KLS))
    assert found["against"].tolist() == ["float32"] * 2
    assert found["loss_difference"].tolist() == pytest.approx([0.6 / 8, 12 / 8])
    assert found["kl_difference"].tolist() == pytest.approx([0.6 / 8, 6 / 8])


def test_fewer_sequences_are_compared_with_those_that_both_saw(tmp_path: Path) -> None:
    path = _recorded(tmp_path, LOSSES | {"int4": [2, 9]}, KLS | {"int4": [1, 2]})
    found = experiments.paired_differences(path, "int4")
    assert found["sequences"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--paired", "int9"], "unknown system 'int9'; did you mean 'int8'"),
        (["--paired", "int8", "--pivot", "model,scheme,metric"], "give one of"),
    ],
)
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    path = _recorded(tmp_path, LOSSES, KLS)
    assert run_command(["table", str(path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_files_of_sequences_that_are_missing_or_short(tmp_path: Path) -> None:
    path = _recorded(tmp_path, LOSSES, KLS)
    lines = pd.read_csv(sequences_path(path))
    lines[lines["config_hash"] != "int4"].to_csv(sequences_path(path), index=False)
    with pytest.raises(ConfigError, match="has no sequences of m in int4"):
        experiments.paired_differences(path)
    for broken in (lines.iloc[1:], lines.iloc[:-1], pd.concat([lines, lines.iloc[:1]])):
        broken.to_csv(sequences_path(path), index=False)
        with pytest.raises(ConfigError, match="has not each of the 4 sequences of m in"):
            experiments.paired_differences(path)
    sequences_path(path).unlink()
    with pytest.raises(ConfigError, match="there is no file of sequences"):
        experiments.paired_differences(path)
    rows = experiments.read_results(path)
    with pytest.raises(ConfigError, match="name it"):
        experiments.paired_differences(rows)


def test_results_of_other_metrics_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    quickstart = Path(__file__).parents[2] / "results" / "quickstart.csv"
    assert run_command(["table", str(quickstart), "--paired", "float32"]) == 2
    assert "no row was judged by tokens" in capsys.readouterr().err


def test_tables_and_pages_show_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = _recorded(tmp_path, LOSSES, KLS)
    assert run_command(["table", str(path), "--paired", "float32", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["rows"]
    assert run_command(["table", str(sequences_path(path)), "--where", "sequence=3", "--json"]) == 0
    third = json.loads(capsys.readouterr().out)["rows"]
    assert [line["loss"] for line in third] == [1, 1.2, 4]
    console = Console(width=100, record=True)
    console.print(experiments.results_table(experiments.read_results(path)))
    told = console.export_text()
    assert "token by token" in told
    assert "100.00%" in told
    assert [line["system"] for line in lines] == ["int8", "int4"]
    assert run_command(["report", str(path), "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "Token by token" in page
    table = page[page.index('id="tokens"') :]
    table = table[: table.index("</table>")]
    # In the order of KL: each beside the one above.
    assert table.index("float32") < table.index("int8") < table.index("int4")
    assert "0.675" in table
    assert "7.389" in table  # exp(16 / 8), the perplexity of int4
