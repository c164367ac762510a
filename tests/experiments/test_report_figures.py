"""Figures of the report: few digits, units that fit, and lossless enough to compare."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.page.figures import digits, shown, unit_of
from experiments.results.row_names import Merit

SHARE = Merit("top-1", higher_is_better=True, share=True)
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNITS |= {f"{p}{u}": 1000**k for u in ("Op", "MAC") for k, p in enumerate(("", *"kMGTP"))}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("column", ["size_bytes", "traffic_bytes", "macs", "bit_operations"])
@given(value=st.integers(0, 2**49))
def test_large_numbers_have_units_and_keep_their_size(column: str, value: int) -> None:
    number, unit = shown(value, column).split(" ")
    assert unit.endswith("B" if column.endswith("bytes") else "MAC" if column == "macs" else "Op")
    assert float(number.replace(",", "")) * UNITS[unit] == pytest.approx(value, rel=6e-4)
    assert len(number.replace(",", "").replace(".", "")) <= 4


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e14, max_value=1e14))
def test_four_digits_are_right(value: float) -> None:
    text = digits(value)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.06 if "e" in text else 6e-4)
    assert not re.search(r"\.\d*0$", text) or "e" in text


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (1024**2, "size_bytes", "1 MiB"),
        (1023.99 * 1024, "size_bytes", "1 MiB"),
        (101_632, "macs", "101.6 kMAC"),
        (4.1e9, "macs", "4.1 GMAC"),
        (0.978, "metric", "97.80 %"),
        (-1e-9, "metric_drop", "0.00 %"),
        (0.999, "top1_agreement", "99.90 %"),
        (math.inf, "sqnr_db", "∞"),
        (-math.inf, "sqnr_db", "−∞"),
        (math.nan, "sqnr_db", ""),
        (None, "metric", ""),
        (2.1e-14, "p_value", "2.1e-14"),
        (0.014782, "latency_ms_median", "0.01478"),
        (1000, "n_eval", "1,000"),
        ("yes", "portable_bits", "yes"),
    ],
)
def test_figures_read_as(value: object, column: str, text: str) -> None:
    assert shown(value, column, SHARE) == text


def test_an_axis_has_one_unit() -> None:
    assert unit_of("size_bytes", 5e6) == (2**20, "MiB")
    assert unit_of("bit_operations", 3e9) == (1e9, "GOp")
    assert unit_of("latency_ms_median", 3e9) == (1, "ms")
    assert unit_of("metric", 1) == (1, "")
