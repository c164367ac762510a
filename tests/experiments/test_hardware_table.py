"""results/hardware.csv: gates of circuits, and what results/README.md says that they show."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from datatypes.hardware import tools
from datatypes.hardware.generate import design
from experiments.costs import circuits, netlists

MULTIPLIERS = ("mitchell0", "mitchell1", "mitchell2")
"""Tables of the example of an approximate multiplier."""
FILE = Path(__file__).parents[2] / "results" / "hardware.csv"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(FILE, keep_default_na=False)


def gates(table: pd.DataFrame, name: str, module: str, accumulate: str = "") -> int:
    found = table[(table["format"] == name) & (table["module"] == module)]
    (row,) = found[found["accumulate"] == accumulate].to_dict("records")
    return int(row["gates"])


def test_twelve_formats_are_there_with_two_accumulators(table: pd.DataFrame) -> None:
    assert tuple(table.columns) == netlists.COLUMNS
    macs = table[table["module"] == "mac"].groupby("format")["accumulate"].nunique()
    assert (macs == 2).sum() >= 12
    assert set(table["tool"]) == {"Yosys 0.70"}
    assert (table[table["module"] == "mac"][["gates", "nand2", "depth"]] > 0).all().all()
    assert not table.duplicated(["format", "module", "accumulate"]).any()


def test_accumulators_are_as_wide_as_designs_say(table: pd.DataFrame) -> None:
    rows = table[table["module"] == "mac"].to_dict("records")
    for row in rows:
        if row["format"] not in MULTIPLIERS:
            made = design(netlists.described_by(row["format"]), row["accumulate"])
            assert int(row["accumulator_bits"]) == made.accumulator_bits
            assert int(row["terms"]) == made.terms


def test_every_candidate_has_a_price(table: pd.DataFrame) -> None:
    """A block's circuit is shared by the products that it adds up."""
    assert FILE.read_text() == circuits.TABLE.read_text()
    product, total, row = table[table["format"] == "mxfp4_e2m1"].to_dict("records")
    assert row["gates"] == 32 * product["gates"] + total["gates"]
    assert circuits.mac_area("mxfp4_e2m1", "float32") == float(row["nand2"]) / 32
    assert circuits.mac_area("int8", "exact") == 1372.5
    for name in MULTIPLIERS:
        assert circuits.mac_area(name, "sequential") > 0


def test_the_relations_that_are_stated_hold(table: pd.DataFrame) -> None:
    # Floats are smaller than posits of their width.
    for module in ("add", "mul", "decode", "encode"):
        for posit in ("posit8_es0", "posit8_es2"):
            for short in ("float8_e4m3fn", "float8_e5m2"):
                assert gates(table, short, module) < gates(table, posit, module)
    # Integers are smaller than floats where sums are exact, larger where sums are floats.
    exact = [gates(table, name, "mac", "exact") for name in ("int8", "float8_e4m3fn")]
    single = [gates(table, name, "mac", "float32") for name in ("int8", "float8_e4m3fn")]
    assert exact[0] < exact[1]
    assert single[0] > single[1]
    # Of 8 bits, takums' codec is larger than posits'.
    assert gates(table, "takum8", "decode") > gates(table, "posit8_es2", "decode")


@pytest.mark.skipif(bool(tools.missing()), reason=tools.missing())
@pytest.mark.thorough
def test_gates_are_counted_again_as_recorded(table: pd.DataFrame) -> None:
    if tools.yosys_version() not in set(table["tool"]):
        pytest.skip(f"recorded by {table['tool'][0]}")
    for name in ("int4", "float4_e2m1fn"):
        again = pd.DataFrame(netlists.rows(name, ["exact"]))
        for row in again.to_dict("records"):
            assert gates(table, name, row["module"], row["accumulate"]) == row["gates"]
