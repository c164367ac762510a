"""`config_hash` covers every field of a format, wherever a cell names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_hashes import BASE, SCALED, hash_in

import datatypes
import experiments
from datatypes.formats import catalogue
from datatypes.formats.hashing import digest
from quantize.formats import blocks

pytestmark = pytest.mark.usefixtures("forgotten")

FLOAT = {"exponent": 4, "mantissa": 3}
MUL = np.arange(1 << 16, dtype=np.uint32).reshape(256, 256) % 256


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "changed",
    [
        *({"exponent": 3, "mantissa": 4}, {"bias": 9}, {"nan": False}, {"subnormals": False}),
        *({"infinities": False}, {"rounding": "zero"}, {"rounding": "stochastic"}),
        *({"overflow": "saturate"}, {"infinity": "saturate"}, {"underflow": "minpos"}),
        *({"tables": {"Mul": MUL}}, {"tables": {"Mul": MUL[::-1]}}, {"tables": {"Add": MUL}}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "use",
    [
        lambda name: name,
        lambda name: {"scheme": {"*": name}},
        lambda name: {**SCALED, "weight_dtype": name, "activation_dtype": "float32"},
        lambda name: {**SCALED, "overrides": {"logits": {"weight_dtype": name}}},
        lambda name: {"scheme": "int8", "weight_dtype": name, "activation_dtype": name},
    ],
    ids=["plain", "mixture", "scaled", "override", "int8"],
)
def test_any_field_of_a_format_counts_wherever_it_is_named(
    changed: dict[str, Any], use: Callable[[str], Any]
) -> None:
    datatypes.define("mine8", **FLOAT)
    plain, other = hash_in(use("mine8")), hash_in("bfloat16")
    del catalogue._known["mine8"]
    datatypes.define("mine8", **(FLOAT | changed))
    assert hash_in(use("mine8")) != plain
    assert hash_in("bfloat16") == other


WIDE = {"exponent": 8, "mantissa": 11, "storage_only": True}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (WIDE, {**WIDE, "subnormals": False}),
        (WIDE, {**WIDE, "bias": 126}),
        (WIDE, {**WIDE, "mantissa": 12, "exponent": 7}),
        (WIDE, {"like": "posit20_es1", "storage_only": True}),
        ({**WIDE, "mantissa": 23}, {**WIDE, "mantissa": 23, "subnormals": False}),
        ({"values": [-1.0, 0.0, 0.5, 1.0]}, {"values": [-1.0, 0.0, 0.25, 1.0]}),
        ({"nbits": 4, "decode": lambda c: c}, {"nbits": 4, "decode": lambda c: c * 2}),
    ],
)
def test_values_of_formats_count_however_they_are_described(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    first = digest(datatypes.define("one", **one))
    assert digest(datatypes.define("same", **one)) == first
    assert digest(datatypes.define("two", **two)) != first


@pytest.mark.parametrize(
    "changed", [{"block": 128}, {"element": "float8_e5m2"}, {"scale": "float8_e4m3fn"}]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda name: name,
        lambda name: {**SCALED, "weight_dtype": name, "activation_dtype": "float32"},
        lambda name: {**SCALED, "overrides": {"logits": {"weight_dtype": name}}},
    ],
)
def test_any_field_of_a_block_format_counts(
    changed: dict[str, Any], use: Callable[[str], Any]
) -> None:
    fields: dict[str, Any] = {"element": "float8_e4m3fn", "block": 8}
    blocks.define_block_format("mine_blocks", **fields)
    plain, other = hash_in(use("mine_blocks")), hash_in("mxfp8_e4m3")
    del blocks._formats["mine_blocks"]
    blocks.define_block_format("mine_blocks", **(fields | changed))
    assert hash_in(use("mine_blocks")) != plain
    assert hash_in("mxfp8_e4m3") == other


def test_resuming_with_another_block_size_computes_another_row(tmp_path: Path) -> None:
    out, rows = tmp_path / "r.csv", {}
    for block in (8, 128):
        blocks._formats.pop("mine_blocks", None)
        blocks.define_block_format("mine_blocks", "float4_e2m1fn", block=block)
        table = experiments.sweep({**BASE, "schemes": ["mine_blocks"]}, out, resume=True)
        rows[block] = table.iloc[0]
    assert rows[8]["granularity"] == "block of 8"
    assert rows[128]["granularity"] == "block of 128"
    assert rows[8]["sqnr_db"] != rows[128]["sqnr_db"]
