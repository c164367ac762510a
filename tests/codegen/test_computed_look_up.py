"""Entries of tables that a formula gives: computed, where a target has no permutation for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_look_up import looked_up_in_bits, run

from compiler.interpret import loop_nests
from compiler.lowering.tables import table
from compiler.target.intrinsics import computed_look_up
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer
from compiler.types.dtypes import Array
from datatypes.formats import get
from datatypes.vector.by_exponent import Binade
from datatypes.vector.deferred import plan

AVX2 = "llvm -mcpu=haswell"
pytestmark = pytest.mark.skipif(
    not Target.anywhere(AVX2).enabled <= Target.parse("llvm").enabled, reason="no AVX2 here"
)


def bent(size: int, slope: int, shift: int, bend: int, turn: int = 0) -> Array:
    """Numbers whose exponents rise by `slope` and a step every 2**shift positions, from a bend on;
    before it, they fall by such steps."""
    j = (np.arange(size) + turn) % size
    exponents = slope * j + np.abs((j >> shift) - bend) + 20
    return np.asarray(exponents.astype(np.uint32) << 23 | 0x400000).view(np.float32)


def numbers_of(positions: Array, place: int, rng: np.random.Generator) -> Array:
    """Numbers with these positions as a field, and any bits around it; 64 of them."""
    bits = rng.integers(0, 2**32, 64).astype(np.uint64)
    field = (1 << int(positions.max()).bit_length()) - 1
    there = np.resize(positions, 64).astype(np.uint64)
    kept = bits & ~np.uint64(field << place)
    return np.asarray(kept | there << np.uint64(place)).astype(np.uint32).view(np.int32)


def equal_the_interpreter(entries: Buffer, place: int, floor: int = 0) -> str:
    """Look every entry up; the LLVM text."""
    assert entries.data is not None
    f, rng = looked_up_in_bits(entries, "int32", place, floor), np.random.default_rng(0)
    text, size = "", 256 if floor else entries.data.size
    for first in range(0, size, 64):
        positions = np.arange(first, min(size, first + 64))
        numbers = numbers_of(np.array([*positions, size - 1]), place, rng)
        want = np.zeros(64, np.float32)
        loop_nests.run(f, [numbers, want])
        got, text = run(f, entries, numbers, AVX2)
        assert got.tobytes() == want.tobytes()
    return text


def both_halves(entries: Array) -> Array:
    half = entries.view(np.uint32) >> 16
    return np.asarray(half << 16 | half).view(np.float32)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("place", [23, 25])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("slope", "shift", "bend"), [(1, 1, 14), (0, 0, 30), (1, 0, 9), (1, 3, 4)])
@pytest.mark.parametrize("turn", [0, 29])
def test_bent_lines_are_computed(
    slope: int, shift: int, bend: int, turn: int, twice: bool, place: int
) -> None:
    entries = bent(64, slope, shift, bend, turn)
    entries[[3, 40, 41]] = np.nan, 1.0, 1.0
    text = equal_the_interpreter(table("e", both_halves(entries) if twice else entries), place)
    assert "gather" not in text
    assert "extractelement" not in text


@pytest.mark.parametrize("floor", [0, 1, 100, 192, 255])
def test_positions_below_a_floor_count_as_it(floor: int) -> None:
    entries = bent(64, 1, 1, 16)
    entries[:6], entries[-1] = entries[6], np.nan
    equal_the_interpreter(table("e", entries), 23, floor)


def test_a_ramp_below_a_level_and_a_rise_above_it() -> None:
    """As products of 8-bit posits are rounded; and the factors that go with it, mostly 1."""
    j = np.arange(32)
    exponents = np.minimum(j + 100, 112 + np.maximum(0, 2 * (j - 20)))
    entries = (exponents.astype(np.uint32) << 23 | 0x400000 | (j < 12)).astype(np.uint32)
    factors = np.exp2(np.maximum(0, 8 - j)).astype(np.float32)
    for values in (entries.view(np.float32), factors):
        assert "gather" not in equal_the_interpreter(table("e", values), 23)


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.data())
def test_any_table(data: st.DataObject) -> None:
    """Whether it has a formula or not."""
    size = data.draw(st.sampled_from([32, 64]))
    shape = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 40), st.integers(0, 63))
    entries = bent(size, *data.draw(shape))
    words = entries.view(np.uint32)
    changes = st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 9), st.integers(0, 5)))
    for first, n, kind in data.draw(changes):
        some = [np.uint32(0xFFC00000), np.uint32(0), words[0], words[-1], words[0] | 1, 2**31 + 5]
        words[first : first + n] = some[kind]
    twice = data.draw(st.booleans())
    equal_the_interpreter(
        table("e", both_halves(entries) if twice else entries), data.draw(st.sampled_from([23, 24]))
    )


def test_tables_without_a_formula_are_gathered() -> None:
    entries = np.random.default_rng(0).random(64).astype(np.float32)
    assert "gather" in equal_the_interpreter(table("e", entries), 23)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "products", "sums"),
    [
        ("posit16_es1", 13, 15),
        ("posit16_es2", 14, 7),
        ("posit12_es1", 19, 17),
        ("posit8_es0", 14, 10),
    ],
)
def test_what_rounds_to_posits_has_a_formula(name: str, products: int, sums: int) -> None:
    """Of so many instructions at most; and machine code finds every entry by it."""
    found = plan(get(name))
    assert found is not None
    for entries, most in ((found.products, products), (found.sums, sums)):
        assert entries.entries.data is not None
        floor = entries.floor if isinstance(entries, Binade) else 0
        formula = computed_look_up._formula(entries.entries.data.tobytes(), floor)
        assert formula is not None
        assert formula.instructions <= most
        place = 23 if isinstance(entries, Binade) else 25
        assert "gather" not in equal_the_interpreter(entries.entries, place, floor)
