"""The table of number formats measures what it says."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.accuracy import formats, methods, tasks
from experiments.accuracy.__main__ import main
from experiments.accuracy.tasks import Task


@pytest.mark.thorough
def test_the_table_has_a_line_for_each_format_with_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("int8", "float8_e4m3fn", "posit8_es2", "mxfp4_e2m1")
    monkeypatch.setattr(formats, "METHODS", {name: formats.METHODS[name] for name in names})
    out = tmp_path / "table.csv"
    args = ["formats", "--quick", "--model", "mnist_dwsep", "--model", "pp_ocrv4_rec"]
    result = CliRunner().invoke(main, [*args, "--csv", str(out)])
    assert result.exit_code == 0, result.output
    assert "pp_ocrv4_rec: not available: give the folder with" in result.output
    table = pd.read_csv(out).set_index("method")
    assert tuple(table.index) == names
    assert (table["change_low"] <= table["change_drop"]).all()
    assert (table["change_drop"] <= table["change_high"]).all()
    assert (table["share"] == 100).all()
    assert table["weight_bits"].tolist() == [8, 8, 8, 4.25]
    db = table["calibration_db"].tolist()
    assert db == sorted(db, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist_resnet8", "mnist_dwsep", "mnist_vit"])
def test_eight_bits_lose_less_than_a_point_in_every_format(name: str) -> None:
    task = tasks.load(name, None, {})
    if isinstance(task, str):
        pytest.skip(task)
    assert isinstance(task, Task)
    for line in methods.measure(task, formats.METHODS):
        if line.weight_bits >= 8:
            assert line.change.drop < 0.01, line
