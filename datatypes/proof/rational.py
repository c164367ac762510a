"""Arithmetic of a format on `fractions.Fraction`, one result at a time: the judge of the judges.

Special operands follow IEEE 754; what a format has no code for becomes what its rules say.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from datatypes.arithmetic import logarithms
from datatypes.formats import Format, Special, Value
from datatypes.formats.value import ZERO


def apply(fmt: Format, op: str, *codes: int) -> int:
    """Code of Add, Sub, Mul, Div or Fma (a * b + c) on codes of a format of any width."""
    table = fmt.table(op)
    if table is not None:
        return int(table.results(*map(np.array, codes)))
    values = [fmt.decode_exact(code) for code in codes]
    if Special.NAN in values:
        return fmt.nan_code
    negative = [_is_negative(fmt, code, v) for code, v in zip(codes, values, strict=True)]
    if Special.INF in values or Special.NEG_INF in values:
        return fmt.encode_exact(_float(op, [*map(_sized, values, negative)]))
    if fmt.logarithmic:
        return _logarithmic(fmt, op, *codes)
    numbers = [v for v in values if isinstance(v, Fraction)]
    if op == "Sub":
        numbers[1], negative[1] = -numbers[1], not negative[1]
    if op in ("Add", "Sub"):
        return _code(fmt, numbers[0] + numbers[1], negative[0] and negative[1])
    sign = negative[0] != negative[1]
    if op == "Mul":
        return _code(fmt, numbers[0] * numbers[1], sign)
    if op == "Fma":
        return _code(fmt, numbers[0] * numbers[1] + numbers[2], sign and negative[2])
    if numbers[1]:
        return _code(fmt, numbers[0] / numbers[1], sign)
    return fmt.encode_exact(math.nan if not numbers[0] else -math.inf if sign else math.inf)


def _logarithmic(fmt: Format, op: str, *codes: int) -> int:
    """Products and quotients by exact exponents, sums by interval arithmetic."""
    a, b = codes
    x, y = (c & (fmt.sign_bit - 1) for c in codes)
    if op in ("Add", "Sub"):
        return logarithms.sum_of_codes(fmt, a, b ^ (fmt.sign_bit if op == "Sub" and y else 0))
    if op == "Div" and y == 0:
        return fmt.nan_code
    if x == 0 or y == 0:
        return 0
    exponents = Fraction(x - fmt.encode_exact(1)), Fraction(y - fmt.encode_exact(1))
    exact = exponents[0] + exponents[1] if op == "Mul" else exponents[0] - exponents[1]
    magnitude = min(int(exact) + fmt.encode_exact(1), fmt.highest)
    return magnitude | (a ^ b) & fmt.sign_bit if magnitude >= 1 else 0


def _is_negative(fmt: Format, code: int, value: Value) -> bool:
    if isinstance(value, Special):
        return value is Special.NEG_INF
    return value < ZERO or (value == 0 and fmt.signed_zero and bool(code & fmt.sign_bit))


def _code(fmt: Format, value: Fraction, negative_zero: bool) -> int:
    return fmt.encode_exact(value) if value else fmt.zero(negative_zero)


def _sized(value: Value, negative: bool) -> float:
    """A float that stands for a value beside an infinity, where only its sign counts and whether it
    is zero."""
    size = float(value != 0) if isinstance(value, Fraction) else math.inf
    return -size if negative else size


def _float(op: str, values: list[float]) -> float:
    """A result with an infinite operand."""
    a, b, *rest = values
    if op == "Div":
        return a / b if b else math.copysign(math.inf, a) * math.copysign(1.0, b)
    if op in ("Add", "Sub"):
        return a + b if op == "Add" else a - b
    return a * b + rest[0] if rest else a * b
