"""results/hardware.csv: gates of circuits, and what results/README.md says that they show."""

from __future__ import annotations

import re
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
    assert (macs >= 2).sum() >= 12
    assert set(table["tool"]) == {"Yosys 0.70"}
    assert (table[table["module"] == "mac"][["gates", "nand2", "depth"]] > 0).all().all()
    assert not table.duplicated(["format", "module", "accumulate"]).any()


@pytest.mark.thorough
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
    shipped = circuits.table()
    assert shipped.mac("mxfp4_e2m1", "float32") == float(row["nand2"]) / 32
    assert shipped.mac("int8", "exact") == 1372.5
    for name in MULTIPLIERS:
        assert shipped.mac(name, "sequential") > 0


@pytest.fixture(scope="module")
def told() -> str:
    """What results/README.md says of the table, as one line."""
    text = FILE.with_name("README.md").read_text()
    return " ".join(text[text.index("- `hardware.csv`") : text.index("- `requantize.csv`")].split())


def test_tables_without_terms_have_one_product_a_circuit(
    table: pd.DataFrame, tmp_path: Path
) -> None:
    old = table[table["format"] == "int8"].drop(columns="terms")
    old.to_csv(tmp_path / "old.csv", index=False)
    assert circuits.table(tmp_path / "old.csv").mac("int8", "exact") == 1372.5


def test_the_table_that_is_shown_is_the_recorded_one(table: pd.DataFrame, told: str) -> None:
    shown = re.findall(r"\| (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([^|]+) \| (\d+) ", told)
    assert len(shown) == 10
    for name, decode, add, mul, depth, exact, single in shown:
        found = [gates(table, name, module) for module in ("decode", "add", "mul")]
        assert found == [int(decode), int(add), int(mul)]
        (row,) = table[(table["format"] == name) & (table["module"] == "mul")].to_dict("records")
        assert row["depth"] == int(depth)
        assert gates(table, name, "mac", "float32") == int(single)
        if not exact.startswith("not synthesized"):
            assert gates(table, name, "mac", "exact") == int(exact)
    macs = table[table["module"] == "mac"].groupby("format")["accumulate"].nunique()
    assert f"({len(macs)} formats, {(macs > 1).sum()} of them with two accumulators)" in told


def test_shares_of_blocks_are_those_of_the_table(table: pd.DataFrame, told: str) -> None:
    rows = table[(table["module"] == "mac") & (table["terms"] != "1")].to_dict("records")
    blocks = [row for row in rows if row["accumulate"] == "float32"]
    assert len(blocks) == 8
    for row in blocks:
        assert f"{row['format']} {int(row['gates']) / int(row['terms']):.0f}" in told
    groups = [row for row in rows if row["accumulate"] != "float32"]
    assert len(groups) == 7
    for row in groups:
        if row["format"] != "float8_e5m2":
            assert f"{row['accumulate']} {int(row['gates']) / int(row['terms']):.0f}" in told


def test_a_group_has_the_gates_of_its_parts(table: pd.DataFrame) -> None:
    for name, mode in (("float8_e4m3fn", "h100_fp8"), ("float16", "a100_fp16")):
        rows = table[(table["format"] == name) & (table["accumulate"] == mode)]
        row = {row["module"]: row for row in rows.to_dict("records")}
        terms = int(row["mac"]["terms"])
        many = terms * (row["product"]["gates"] + row["align"]["gates"])
        once = [row[what]["gates"] for what in ("held", "largest", "align_held", "total")]
        assert row["mac"]["gates"] == many + sum(once)


def test_exact_sums_of_sixteen_bits_are_as_stated(table: pd.DataFrame, told: str) -> None:
    both = [
        {mode: gates(table, name, "mac", mode) for mode in ("exact", "float32")}
        for name in ("float16", "posit16_es1", "posit16_es2", "takum8")
    ]
    less, same, more, most = (found["exact"] / found["float32"] for found in both)
    assert less < 1
    assert same < 1
    assert more > 1
    assert f"take {most:.1f} times as much" in told


def test_what_sums_cost_is_in_the_table(table: pd.DataFrame, told: str) -> None:
    (listed,) = re.findall(r"float8_e4m3fn, gates: ([^.]+)\.", told)
    shown = dict(item.split() for item in listed.split(", "))
    assert len(shown) == 7
    for accumulate, number in shown.items():
        assert gates(table, "float8_e4m3fn", "mac", accumulate) == int(number)
    (other,) = re.findall(r"\(float8_e5m2: ([^)]+)\)", told)
    for accumulate, number in (item.split() for item in other.split(", ")):
        assert gates(table, "float8_e5m2", "mac", accumulate) == int(number)


def test_the_relations_that_are_stated_hold(table: pd.DataFrame, told: str) -> None:
    def ratio(
        one: str, other: str, module: str, accumulate: str = "", column: str = "gates"
    ) -> float:
        rows = table[(table["module"] == module) & (table["accumulate"] == accumulate)]
        of = {row["format"]: float(row[column]) for row in rows.to_dict("records")}
        return of[one] / of[other]

    def fewer(one: str, other: str, module: str, column: str = "gates") -> str:
        return f"{100 * (1 - ratio(one, other, module, column=column)):.0f}"

    # Posits and floats.
    wide, short = ("float16", "posit16_es1"), ("float8_e5m2", "posit8_es2")
    assert f"{fewer(*wide, 'add')} % (add) and {fewer(*wide, 'mul')} % (mul) fewer gates" in told
    assert f"against posit8_es2 {fewer(*short, 'add')} and {fewer(*short, 'mul')} %" in told
    depths = [[fewer(*pair, what, "depth") for pair in (short, wide)] for what in ("add", "mul")]
    (a, b), (c, d) = (sorted(pair) for pair in depths)
    assert f"{a} to {b} % in adders, {c} to {d} % in multipliers" in told
    # Integers and floats.
    assert f"mxint8 takes {ratio('mxint8', 'mxfp8_e4m3', 'mac', 'float32'):.2f} of mxfp8" in told
    int8 = [ratio("int8", "float8_e4m3fn", "mac", mode) for mode in ("exact", "float32")]
    assert f"int8 {int8[0]:.2f} of float8_e4m3fn" in told
    assert f"int8 takes {int8[1]:.2f} of it" in told
    for name, said in (("nvint4", "nvint4 takes"), ("nvfp4", "and nvfp4")):
        share = 2 * ratio(name, "mxfp8_e4m3", "mac", "float32")  # blocks of 16 and 32
        assert f"{said} {share:.2f}" in told
        product = gates(table, name, "product", "float32")
        assert str(product) in told
    # Takums and posits.
    for posit in ("posit16_es1", "posit16_es2"):
        decode, encode = (
            100 * ratio("takum16", posit, what) - 100 for what in ("decode", "encode")
        )
        assert f"decoder has {decode:.0f} % more gates" in told
        assert f"is {fewer('takum16', posit, 'decode', 'depth')} % shallower" in told
        deeper = 100 * ratio("takum16", posit, "encode", column="depth") - 100
        assert f"encoder {encode:.0f} % more and {deeper:.0f} % deeper" in told
    larger = 100 * ratio("takum8", "posit8_es2", "decode") - 100
    assert f"takum's decoder is {larger:.0f} % larger" in told


@pytest.mark.skipif(bool(tools.missing()), reason=tools.missing())
@pytest.mark.thorough
def test_gates_are_counted_again_as_recorded(table: pd.DataFrame) -> None:
    if tools.yosys_version() not in set(table["tool"]):
        pytest.skip(f"recorded by {table['tool'][0]}")
    for name in ("int4", "float4_e2m1fn"):
        again = pd.DataFrame(netlists.rows(name, ["exact"]))
        for row in again.to_dict("records"):
            assert gates(table, name, row["module"], row["accumulate"]) == row["gates"]
