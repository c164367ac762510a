"""Every column of a results file is explained, in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.cli.main import run_command
from experiments.measure.statistics import HOLM
from experiments.page import tables
from experiments.results.column_meanings import COMPUTED, MEANINGS, SYSTEM, markdown_table, meaning
from experiments.results.store import COLUMNS

ROOT = Path(__file__).parents[2]


def test_every_column_of_results_has_a_meaning_and_nothing_else_has() -> None:
    assert set(MEANINGS) == set(COLUMNS)
    assert set(COMPUTED) == {SYSTEM, HOLM}


@pytest.mark.parametrize("column", [*MEANINGS, *COMPUTED])
def test_a_meaning_is_one_sentence(column: str) -> None:
    m = meaning(column)
    assert m.title
    assert re.fullmatch(r"[A-Z`9~].*\.", m.text), "a sentence"
    assert len(re.findall(r"\.(\s|$)", m.text)) == 1, "and one only"
    assert len(m.text) < 160, "short enough to read while pointing"
    assert m.text.isprintable()
    assert "|" not in m.text
    for end, unit in (("_bytes", "B"), ("_uj", "µJ"), ("_db", "dB"), ("_bits", "bits")):
        assert not column.endswith(end) or m.unit == unit or column == "portable_bits"
    assert ("_ms_" in column) == (m.unit == "ms")


def test_the_readme_the_help_and_the_page_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert markdown_table() in (ROOT / "results" / "README.md").read_text()
    assert run_command(["table", "--help"]) == 0
    help_words = capsys.readouterr().out.split()
    page = re.sub(r"</?code>", "`", tables.legend())
    for name, m in {**MEANINGS, **COMPUTED}.items():
        assert name in help_words
        said = m.text.split()
        assert any(help_words[k : k + len(said)] == said for k in range(len(help_words))), name
        assert f"`{name}`" in page
        assert m.text.replace("'", "&#x27;") in page
