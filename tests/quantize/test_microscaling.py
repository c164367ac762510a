"""Block formats against numpy written from the texts that define them: OCP Microscaling Formats
1.0, NVIDIA's NVFP4, and microxcaling, Microsoft's emulation, where its rules are others.

Elements are enumerated from their widths alone; no code or package of formats is shared.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from format_emulation import assert_same
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.types.dtypes import Array
from quantize.formats.blocks import block_format
from quantize.formats.operand_format import OperandFormat, rounded_array

E8M0 = 127
"""OCP MX 1.0, 5.4.1: scales are 2^-127 to 2^127."""
#: Name -> exponent bits, fraction bits, the largest number (OCP MX 1.0, tables 1 and 2, 5.3).
ELEMENTS = {
    "mxfp8_e4m3": (4, 3, 448.0),
    "mxfp8_e5m2": (5, 2, 57344.0),
    "mxfp6_e3m2": (3, 2, 28.0),
    "mxfp6_e2m3": (2, 3, 7.5),
    "mxfp4_e2m1": (2, 1, 6.0),
    "nvfp4": (2, 1, 6.0),
}


def element_numbers(exponent: int, fraction: int, most: float) -> Array:
    """Ascending: the positive numbers of a float format, subnormal ones and 0 included."""
    bias = 2 ** (exponent - 1) - 1
    found = {m * 2.0 ** (1 - bias - fraction) for m in range(2**fraction)}
    for e in range(1, 2**exponent):
        found |= {(1 + m / 2**fraction) * 2.0 ** (e - bias) for m in range(2**fraction)}
    return np.array(sorted(v for v in found if v <= most))


def nearest(x: Array, numbers: Array, ties: str = "even") -> Array:
    """Numbers (those at even places have even codes) nearest to `x`; beyond the largest, that."""
    magnitude = np.minimum(np.abs(x), numbers[-1])
    above = np.clip(np.searchsorted(numbers, magnitude), 1, len(numbers) - 1)
    low, high = numbers[above - 1], numbers[above]
    up = magnitude - low > high - magnitude
    tie = magnitude - low == high - magnitude
    up |= tie & ((above % 2 == 0) if ties == "even" else True)
    return np.copysign(np.where(up, high, low), x)


def ocp(block: Array, name: str) -> Array:
    """6.3: X is the largest power of two not above the largest magnitude, over the largest power of
    two of the element type; elements are rounded to nearest even and saturate."""
    largest = float(np.abs(block).max())
    integers = name == "mxint8"  # 5.3.4: two's complement in units of 1/64
    numbers = np.array([1.0]) if integers else element_numbers(*ELEMENTS[name])
    top = math.frexp(numbers[-1])[1] - 1
    exponent = -E8M0 if largest == 0 else math.frexp(largest)[1] - 1 - top
    scale = 2.0 ** min(max(exponent, -E8M0), E8M0)
    v = block.astype(np.float64) / scale
    rounded = np.clip(np.rint(v * 64), -128, 127) / 64 + 0.0 if integers else nearest(v, numbers)
    return (rounded * scale).astype(np.float32)


def microxcaling(block: Array, name: str) -> Array:
    """mx_ops._quantize_mx with round="nearest", its default: halves go away from zero. Its int8 has
    127 numbers on either side of 0."""
    largest = float(np.abs(block).max()) or 2.0**-126
    if name == "mxint8":
        scale = 2.0 ** max(math.floor(math.log2(largest)), -E8M0)
        v = block.astype(np.float64) / scale * 64
        q = np.sign(v) * np.floor(np.abs(v) + 0.5)
        return (np.clip(q, -127, 127) / 64 * scale).astype(np.float32)
    numbers = element_numbers(*ELEMENTS[name])
    top = math.frexp(numbers[-1])[1] - 1
    scale = 2.0 ** max(math.floor(math.log2(largest)) - top, -E8M0)
    found = nearest(block.astype(np.float64) / scale, numbers, "away")
    return (found * scale).astype(np.float32)


def blocks(seed: int, spread: float, size: int) -> Array:
    """A block of normal numbers, some of them on a coarse grid, so that there are halves."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=size) * 2.0 ** rng.normal(0, spread)
    coarse = rng.random(size) < 0.3
    x[coarse] = np.rint(x[coarse] * 4) / 4
    return x.astype(np.float32)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(0, 30), st.sampled_from(list(ELEMENTS)[:-1]))
def test_mx_blocks_are_those_of_the_specification(seed: int, spread: float, name: str) -> None:
    x = blocks(seed, spread, 32)
    got = rounded_array(x[None], OperandFormat(name, axis=1))[0]
    assert_same(got, ocp(x, name))
    other = microxcaling(x, name)
    apart = got != other
    scale = np.abs(x).max()
    assert np.abs(got - other).max(initial=0) <= scale  # by one number, where it is a half
    middle = (got.astype(np.float64) + other) / 2
    np.testing.assert_array_equal(middle[apart], x[apart].astype(np.float64))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0, 30))
def test_mxint8_is_that_of_the_specification_and_goes_to_minus_two(
    seed: int, spread: float
) -> None:
    """5.3.4 leaves it open whether -2 is used: it is; microxcaling does not."""
    x = blocks(seed, spread, 32)
    got = rounded_array(x[None], OperandFormat("mxint8", axis=1))[0]
    assert_same(got, ocp(x, "mxint8"))
    other = microxcaling(x, "mxint8")
    apart = got != other
    step = np.abs(got - other)[apart]
    assert (step <= 2.0 ** (math.frexp(float(np.abs(x).max()))[1] - 1) / 64).all()


def test_where_microxcaling_rounds_otherwise_is_known() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = 4.0, 2.5, 0.25, -1.25
    got = rounded_array(x, OperandFormat("mxfp4_e2m1", axis=1))[0, :4]
    assert got.tolist() == [4.0, 2.0, 0.0, -1.0]  # halves to even
    assert microxcaling(x[0], "mxfp4_e2m1")[:4].tolist() == [4.0, 3.0, 0.5, -1.5]
    x[0, 0] = -1.9999
    assert rounded_array(x[:, :1], OperandFormat("mxint8", axis=1)).tolist() == [[-2.0]]
    assert microxcaling(x[0, :1], "mxint8").tolist() == [-127 / 64]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(0, 6), st.integers(1, 50))
def test_nvfp4_is_that_of_its_definition(seed: int, spread: float, length: int) -> None:
    """Blocks of 16; a scale of the tensor from its largest magnitude, s = amax / (6 * 448); one of
    a block in E4M3, amax / (6 * s) rounded to nearest even, at least the least of E4M3."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(3, length)) * 2.0 ** rng.normal(0, spread, (3, 1))).astype(np.float32)
    unit = np.float32(float(np.abs(x).max()) / (6.0 * 448.0))
    got = rounded_array(x, OperandFormat("nvfp4", (float(unit),), axis=1))
    e4m3, e2m1 = element_numbers(4, 3, 448.0), element_numbers(2, 1, 6.0)
    want = np.empty_like(x)
    for row in range(3):
        for k in range(0, length, 16):
            block = x[row, k : k + 16]
            ratio = np.abs(block).max() / np.float32(6.0 * float(unit))
            scale = nearest(np.maximum(ratio, 2.0**-9), e4m3).astype(np.float32) * unit
            quotient = (block / scale).astype(np.float64)
            want[row, k : k + 16] = nearest(quotient, e2m1).astype(np.float32) * scale
    assert_same(got, want)


@pytest.mark.parametrize("name", [*ELEMENTS, "mxint8"])
def test_blocks_are_as_long_and_as_wide_as_their_definitions_say(name: str) -> None:
    made = block_format(name)
    assert made is not None
    assert made.block == (16 if name == "nvfp4" else 32)
    width = 8 if name == "mxint8" else 1 + sum(ELEMENTS[name][:2])
    assert made.bits == width + 8 / made.block
