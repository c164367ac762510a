"""gemmlowp's and TensorFlow Lite's fixed-point arithmetic, line by line as their C++ has it, on
Python's integers (fixedpoint.h of gemmlowp; common.cc, quantization_util.cc, add.h of TFLite)."""

from __future__ import annotations

import math

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def _divided(a: int, b: int) -> int:
    """C's division: toward zero."""
    return abs(a) // abs(b) * (1 if (a >= 0) == (b >= 0) else -1)


def saturating_rounding_doubling_high_mul(a: int, b: int) -> int:
    """SaturatingRoundingDoublingHighMul of int32."""
    if a == b == INT32_MIN:
        return INT32_MAX
    ab = a * b
    nudge = (1 << 30) if ab >= 0 else 1 - (1 << 30)
    return _divided(ab + nudge, 1 << 31)


def rounding_divide_by_pot(x: int, exponent: int) -> int:
    """RoundingDivideByPOT of int32, exponents of 0 to 31."""
    assert INT32_MIN <= x <= INT32_MAX
    assert 0 <= exponent <= 31
    mask = (1 << exponent) - 1
    remainder = x & mask
    threshold = (mask >> 1) + (1 if x < 0 else 0)
    return (x >> exponent) + (1 if remainder > threshold else 0)


def quantize_multiplier(scale: float) -> tuple[int, int]:
    """QuantizeMultiplier: (quantized_multiplier, shift)."""
    if scale == 0:
        return 0, 0
    q, shift = math.frexp(scale)
    fixed = math.floor(q * 2**31 + 0.5)
    assert fixed <= 1 << 31
    if fixed == 1 << 31:
        fixed //= 2
        shift += 1
    return (0, 0) if shift < -31 else (fixed, shift)


def multiply_by_quantized_multiplier(x: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier; a left shift that overflows, which C++ leaves undefined,
    saturates (as SaturatingRoundingMultiplyByPOT of gemmlowp does)."""
    left, right = max(shift, 0), max(-shift, 0)
    shifted = min(max(x * (1 << left), INT32_MIN), INT32_MAX)
    return rounding_divide_by_pot(saturating_rounding_doubling_high_mul(shifted, multiplier), right)


def scaled(x: int, scale: float) -> int:
    """x * scale."""
    return multiply_by_quantized_multiplier(x, *quantize_multiplier(scale))


def added(a: int, b: int, a_scale: float, b_scale: float, left_shift: int) -> int:
    """The sum of AddElementwise (SUB for a negative scale), scales relative to the output's."""
    twice = 2 * max(abs(a_scale), abs(b_scale))
    terms = [
        scaled(x * (1 << left_shift), abs(s) / twice) * (1 if s > 0 else -1)
        for x, s in ((a, a_scale), (b, b_scale))
    ]
    assert INT32_MIN <= sum(terms) <= INT32_MAX
    return scaled(sum(terms), twice / (1 << left_shift))
