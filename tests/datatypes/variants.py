"""Formats that the catalogue does not list: other rounding rules, and options of the families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from datatypes.formats import Format, add, catalogue, get, minifloat

ROUNDED = (
    *product(("float8_e4m3fn", "fixed8_4"), ("nearest_away", "zero", "up", "down")),
    *(("posit8_es2", "zero"), ("nf4", "up"), ("bfloat16", "zero"), ("bfloat16", "up")),
    *(("posit16_es1", "nearest_away"), ("posit16_es1", "down"), ("takum12", "up")),
    *(("float19_e8m10", "zero"), ("posit20_es2", "up"), ("fixed24_8", "down")),
)


def _variants() -> list[Format]:
    rounded = [
        replace(get(name), name=f"{name}_{rounding}", rounding=rounding)
        for name, rounding in ROUNDED
    ]
    return [
        *rounded,
        minifloat(5, 2, "finite", name="float8_e5m2_finite"),
        minifloat(4, 3, "p3109", bias=8, name="float8_e4m3_p3109"),
        minifloat(4, 3, "fn", subnormals=False, name="float8_e4m3_flushed"),
        minifloat(5, 6, subnormals=False, rounding="zero", name="float12_e5m6_flushed"),
        minifloat(4, 0, "finite", name="float5_e4m0_powers"),
        minifloat(1, 3, "finite", name="float5_e1m3_even"),
        minifloat(5, 10, saturate=True, name="float16_saturating"),
    ]


VARIANTS = {fmt.name: fmt for fmt in _variants()}


@pytest.fixture(autouse=True, scope="module")
def defined_variants() -> Iterator[None]:
    """The variants have names while a module that imports this runs."""
    for fmt in VARIANTS.values():
        add(fmt)
    yield
    for name in VARIANTS:
        del catalogue._known[name]
