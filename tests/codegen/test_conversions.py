"""Floats to integers: toward zero, saturating, NaN as zero, in vectors as alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.executable import Executable

LANES = 67  # whole vectors and what is left over
TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
PAIRS = [
    (source, dest)
    for source in ("float32", "float64")
    for dest in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
]
_built: dict[tuple[str, str, str], Executable] = {}


def conversion(source: str, dest: str, target: str) -> Executable:
    """A program of one cast."""
    key = (source, dest, target)
    if key not in _built:
        b = FunctionBuilder()
        y = b.call("cast", b.param("x", (LANES,), source), dtype=dest)
        _built[key] = compiler.build(IRModule({"main": b.finish(y)}), target=target)
    return _built[key]


def one(value: float, dest: str) -> int:
    """The integer that a float becomes."""
    ends = np.iinfo(dest)
    if np.isnan(value):
        return 0
    if np.isinf(value):
        return int(ends.max if value > 0 else ends.min)
    return min(max(int(value), int(ends.min)), int(ends.max))


def check(values: list[float], source: str, dest: str, target: str) -> None:
    with np.errstate(over="ignore"):
        x = np.resize(np.array(values), LANES).astype(source)
    want = [one(float(v), dest) for v in x]
    assert conversion(source, dest, target)(x).tolist() == want


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("source", "dest"), PAIRS)
def test_the_ends_of_a_range_and_what_is_no_number(source: str, dest: str, target: str) -> None:
    ends = np.iinfo(dest)
    near = [float(e) + d for e in (ends.min, 0, ends.max) for d in (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)]
    steps = [np.nextafter(np.dtype(source).type(v), np.inf * s) for v in near for s in (-1, 1)]
    check([*near, *map(float, steps), np.nan, np.inf, -np.inf, -0.0, 1e30], source, dest, target)


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=LANES),
    st.sampled_from(PAIRS),
    st.sampled_from(TARGETS),
)
def test_any_floats(values: list[float], pair: tuple[str, str], target: str) -> None:
    check(values, *pair, target)
