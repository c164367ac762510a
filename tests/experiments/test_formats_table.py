"""The table of number formats measures what it says."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.accuracy import formats, methods, tasks
from experiments.accuracy.__main__ import main
from experiments.accuracy.tasks import Task


def test_the_table_has_a_line_for_each_format_with_an_interval(tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    args = ["formats", "--quick", "--model", "mnist_dwsep", "--model", "pp_ocrv4_rec"]
    result = CliRunner().invoke(main, [*args, "--csv", str(out)])
    assert result.exit_code == 0, result.output
    assert "pp_ocrv4_rec: not available: give the folder with" in result.output
    table = pd.read_csv(out).set_index("method")
    assert list(table.index) == list(formats.METHODS)
    assert (table["change_low"] <= table["change_drop"]).all()
    assert (table["change_drop"] <= table["change_high"]).all()
    assert (table["share"] == 100).all()
    bits = table["weight_bits"]
    assert (bits["int8"], bits["float8_e4m3fn"], bits["mxfp4_e2m1"], bits["nvfp4"]) == (
        8, 8, 4.25, 4.5,
    )  # fmt: skip
    db = table["calibration_db"]
    assert db["int8"] > db["float8_e4m3fn"] > db["float8_e5m2"] > db["mxfp4_e2m1"]
    assert db["posit8_es0"] > db["posit8_es2"]


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
