"""Tables that rows are put behind: what was there stays as it was, to the last digit."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler.errors import ConfigError
from experiments.results.growing import table_before


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.floats(), min_size=1, max_size=5), st.text('a,"\n {', max_size=4))
def test_what_was_written_stays_as_it_is(tmp_path: Path, numbers: list[float], name: str) -> None:
    path = tmp_path / "t.csv"
    rows = pd.DataFrame({"name": f"x{name}", "value": numbers, "none": math.nan})
    rows.to_csv(path, index=False)
    for _ in range(2):
        text = path.read_text()
        before = table_before(path, "values", ["name", "value", "none"])
        pd.concat([*before, rows], ignore_index=True).to_csv(path, index=False)
        assert path.read_text().startswith(text)


def test_what_is_no_such_table_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert table_before(None, "values", ["a"]) == []
    assert table_before(path, "values", ["a"]) == []
    path.write_text("a,b\n1,2\n")
    assert table_before(path, "values", ["a"], ["a", "b"])[0].shape == (1, 2)
    for content, said in (
        (b"a,c\n1,2\n", "is no table of values: give another file"),
        (b"", "cannot be read as a table"),
        (b"\xff\xfe\x00", "cannot be read as a table"),
        (b'a,b\n"1,2\n', "cannot be read as a table"),
        (b"a,b\n1,2\n1,2,3\n", "cannot be read as a table"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            table_before(path, "values", ["a", "b"])
        assert path.read_bytes() == content
    for place in (tmp_path, "/dev/null", tmp_path / "none" / "t.csv"):
        with pytest.raises(ConfigError, match="cannot write"):
            table_before(place, "values", ["a"])
