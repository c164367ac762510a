"""Gaps in sweeps: a table of steps beside the results, and a section of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import experiments
from compiler.errors import ConfigError
from experiments.cli.main import run_command
from experiments.layers.gaps import GAP_COLUMNS, GapsFile, gaps_path, read_gaps
from experiments.page import ranges
from experiments.page.gap_section import COLUMNS, INGREDIENTS, cells_of, most_costly
from experiments.page.value_pictures import svg
from experiments.results.row_names import system_names
from experiments.spec.specification import load_spec

SCALED = {"scheme": "scaled", "weight_dtype": "bfloat16", "activation_dtype": "bfloat16"}
SPEC: dict[str, Any] = {
    "models": ["mnist_mlp"],
    "schemes": ["float32", "bfloat16", "int8_channel", SCALED],
    "n_eval": 8,
    "n_calib": 10,
    "latency": {"warmup": 0, "runs": 0},
    "gap": {"inputs": 300},
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    out = tmp_path_factory.mktemp("gaps") / "study.csv"
    return out, experiments.sweep(SPEC, out)


Swept = tuple[Path, pd.DataFrame]


@pytest.mark.thorough
def test_every_cell_with_a_simulation_has_the_lines_that_gap_gives(swept: Swept) -> None:
    out, rows = swept
    lines = read_gaps(gaps_path(out))
    assert gaps_path(out).name == "study.gaps.csv"
    assert list(lines.columns) == list(GAP_COLUMNS)
    assert rows["status"].tolist() == ["ok"] * 4, rows["error"].tolist()
    assert set(lines["config_hash"]) == set(rows["config_hash"][1:3])
    assert set(lines["run_id"]) == set(rows["run_id"])
    assert set(lines["inputs"]) == {8}
    assert rows["notes"][3].startswith("no gap: with compute='storage' the network is the sim")
    alone = experiments.gap("mnist_mlp", "mnist1k", "bfloat16", n_eval=8)
    own = lines[lines["scheme"] == "bfloat16"].reset_index(drop=True)
    pd.testing.assert_frame_equal(own[list(alone.columns)], alone, check_dtype=False)
    (whole,) = own[own["order"] == "whole"].to_dict("records")
    assert whole["accumulate"] == "sequential"


def test_a_resumed_sweep_replaces_the_lines_of_what_it_runs_again(swept: Swept) -> None:
    out, _ = swept
    before, text = read_gaps(gaps_path(out)), out.read_text()
    kept = [line for line in text.splitlines(keepends=True) if ",int8_channel," not in line]
    assert len(kept) == 4
    out.write_text("".join(kept))  # as if killed between the lines and the row
    experiments.sweep(SPEC, out, resume=True)
    again = read_gaps(gaps_path(out))
    order = ["config_hash", "order", "step"]
    pd.testing.assert_frame_equal(
        *(t.drop(columns="run_id").sort_values(order, ignore_index=True) for t in (before, again))
    )


def test_gaps_are_part_of_a_configuration_only_where_they_are_asked_for() -> None:
    def hashes(**gap: Any) -> list[str]:
        return [cell.config_hash for cell in load_spec({**SPEC, "gap": gap}).cells]

    plain = {key: value for key, value in SPEC.items() if key != "gap"}
    none = [cell.config_hash for cell in load_spec(plain).cells]
    assert hashes() == hashes(inputs=0) == none
    assert not {*hashes(inputs=8), *hashes(inputs=9)} & set(none)
    (_, cell, *_) = load_spec(SPEC).cells
    assert load_spec(cell.specification()).cells[0].config_hash == cell.config_hash


@pytest.mark.parametrize(
    ("gap", "said"),
    [
        ({"inputs": -1}, "inputs must be at least 0, not -1"),
        ({"inputs": "all"}, "inputs must be an integer, not a string"),
        ({"input": 3}, "did you mean 'inputs'"),
    ],
)
def test_what_a_gap_may_not_say(gap: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_spec({**SPEC, "gap": gap})


def test_files_that_are_there_or_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.gaps.csv"
    GapsFile(path)
    with pytest.raises(ConfigError, match="exists already; continue it with --resume"):
        GapsFile(path)
    path.write_text("something,else\n1,2\n")
    with pytest.raises(ConfigError, match="not a file of gaps"):
        GapsFile(path, resume=True)
    with pytest.raises(ConfigError, match=r"no file of gaps .*; a sweep with \[gap\] writes one"):
        read_gaps(tmp_path / "none.csv")


def test_the_table_verb_shows_gaps(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(gaps_path(swept[0]))
    where = ["--where", "order=whole", "--columns", "scheme,ingredient,delta"]
    assert run_command(["table", path, *where]) == 0
    shown = capsys.readouterr().out
    assert "int8_channel" in shown
    assert "all of them" in shown
    assert "accumulator" not in shown


def test_the_page_shows_ingredients_as_bars_and_as_a_table(
    swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rows = swept
    monkeypatch.setattr(ranges, "ranges_at_hand", lambda *_: "not here")
    page = experiments.report(out, tmp_path / "r.html").read_text()
    section = page[page.index("gaps-title") :]
    section = section[: section.index("</section>")]
    body = re.findall(r"<tr>(.*?)</tr>", section)[1:]
    assert len(body) == 2
    assert all(line.count("<td") == len(COLUMNS) for line in body)
    assert section.count("<figure>") == 1
    cells = cells_of(
        read_gaps(gaps_path(out)),
        dict(zip(rows["config_hash"], system_names(rows), strict=True)),
    )
    (bfloat16,) = (c for c in cells if c.system.startswith("bfloat16"))
    assert bfloat16.outside is False
    assert most_costly(bfloat16, "forward").startswith("accumulator -")
    first, last = (bfloat16.orders["forward"][k]["sqnr_db"] for k in (0, -1))
    assert f"{first:.4g}" in section
    assert f"{last:.4g}" in section
    colour = INGREDIENTS.index("accumulator")
    assert len(re.findall(rf'class="bar c{colour}"><title>(?:forward|reverse): acc', section)) == 2


def test_a_page_without_gaps_has_no_section(swept: Swept, tmp_path: Path) -> None:
    plain = tmp_path / "plain.csv"
    plain.write_text(swept[0].read_text())
    assert "gaps-title" not in experiments.report(plain, tmp_path / "r.html").read_text()
    assert svg(3, 4, "a & b", "").startswith(
        '<svg viewBox="0 0 3 4" role="img" aria-label="a &amp;'
    )
