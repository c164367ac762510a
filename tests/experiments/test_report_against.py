"""Two runs side by side on one page."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from recorded_like import recorded_like

import experiments
from experiments.cli.main import run_command
from experiments.page import writing
from experiments.results.comparison import compare
from experiments.results.store import COLUMNS, ResultsFile


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of networks are other tests' concern, and take seconds."""
    monkeypatch.setattr(writing, "ranges_at_hand", lambda *_: "not here")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An earlier run, and one with a cell worse, one twice as fast, one missing."""
    folder = tmp_path_factory.mktemp("runs")
    old, new = folder / "old <b>.csv", folder / "new.csv"
    recorded_like(old, models=1)
    file = ResultsFile(new)
    for k, row in enumerate(experiments.read_results(old).to_dict("records")):
        if k == 3:
            continue
        if k == 8:
            row["metric"] -= 0.2
        if k == 9:
            row |= {name: row[name] / 2 for name in COLUMNS if name.startswith("latency_ms")}
        file.append(row)
    return old, new


def lines(page: Path) -> list[list[str]]:
    found = re.search(r'<table id="compared">.*?<tbody>(.*?)</tbody>', page.read_text(), re.S)
    assert found is not None
    text = re.sub(r"<svg.*?</svg>", "", found[1])
    return [
        [html.unescape(re.sub("<.*?>", "", c)) for c in re.findall(r"<td.*?>(.*?)</td>", line)]
        for line in text.split("<tr>")[1:]
    ]


@pytest.mark.thorough
def test_the_page_says_what_the_comparison_says(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    old, new = pair
    page = tmp_path / "page.html"
    assert run_command(["report", str(new), "--against", str(old), "-o", str(page)]) == 0
    found = lines(page)
    wanted = compare(experiments.read_results(old), experiments.read_results(new))
    assert [line[0] for line in found] == wanted["model"].tolist()
    assert [line[1] for line in found] == wanted["scheme"].tolist()
    assert [line[6] for line in found] == wanted["accuracy"].tolist()
    assert [line[9] for line in found] == wanted["slower_or_faster"].tolist()
    worse, faster, gone = (
        next(line for line in found if word in line)
        for word in ("worse", "faster", "only in the first")
    )
    assert worse[4] == "-20.00 %"
    assert faster[8] == "2"
    assert gone[3] == ""
    text = page.read_text()
    assert "new.csv compared with old &lt;b&gt;.csv, 26 cells" in text
    assert "1 faster" in text
    assert 'id="compared"' not in experiments.report(new, page).read_text()


def test_runs_without_a_cell_in_common_are_refused(
    tmp_path: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, new = pair
    other = ResultsFile(tmp_path / "other.csv")
    row = dict.fromkeys(COLUMNS) | {"config_hash": "0" * 40, "model": "m", "scheme": "float32"}
    other.append(row | {"status": "ok", "dtype": "float32"})
    ResultsFile(tmp_path / "empty.csv")
    for name, message in (("other", "no cell in common"), ("empty", "no rows"), ("x", "cannot")):
        against = tmp_path / f"{name}.csv"
        argv = ["report", str(new), "--against", str(against), "-o", str(tmp_path / "p.html")]
        assert run_command(argv) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
    assert not (tmp_path / "p.html").exists()
