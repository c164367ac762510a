"""Correctly rounded functions against an independent evaluation with 90 digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import InputError, UnsupportedError
from datatypes.arithmetic import mathfun
from datatypes.formats import (
    Format,
    Power,
    decode,
    encode,
    fixed,
    get,
    list_formats,
    minifloat,
    posit,
)

COMPUTING = [name for name in list_formats() if not get(name).storage_only]
EIGHT = [name for name in COMPUTING if get(name).nbits <= 8]
SIXTEEN = [name for name in COMPUTING if get(name).nbits == 16]
DIGITS = 90
BEYOND = Decimal(2) ** 1001


def exp(x: Decimal) -> Decimal:
    """exp by halving the argument below 2**-10 and the Taylor series, then squaring back."""
    if abs(x) > 695:
        return BEYOND if x > 0 else 1 / BEYOND
    halvings = max(0, x.adjusted() * 4 + 14)
    small = x / 2**halvings
    total = term = Decimal(1)
    n = 0
    while abs(term) > Decimal(10) ** -(DIGITS + 40):
        n += 1
        term *= small / n
        total += term
    for _ in range(halvings):
        total *= total
    return total


def log(x: Decimal) -> Decimal:
    """Newton's iteration on `exp`, from the float64 logarithm."""
    top, bottom = x.as_integer_ratio()
    y = Decimal(math.log(top) - math.log(bottom))
    if abs(x - 1) < Decimal("1e-3"):
        y = x - 1
    for _ in range(9):
        y += 2 * (x - exp(y)) / (x + exp(y))
    return y


def erf(x: Decimal) -> Decimal:
    """The alternating Maclaurin series (DLMF 7.6.1), with digits to spare for its cancellation."""
    if abs(x) > 12:
        return (1 - Decimal(10) ** -60).copy_sign(x)
    with localcontext() as context:
        context.prec = DIGITS + 150
        total = term = x
        n = 0
        while abs(term) > Decimal(10) ** -(DIGITS + 60) * min(abs(x), 1):
            n += 1
            term *= -x * x / n
            total += term / (2 * n + 1)
        return 2 * total / pi().sqrt()


def pi() -> Decimal:
    """Gauss-Legendre iteration."""
    a, b, t, p = Decimal(1), 1 / Decimal(2).sqrt(), Decimal(1) / 4, 1
    for _ in range(9):
        a, b, t, p = (a + b) / 2, (a * b).sqrt(), t - p * ((a - b) / 2) ** 2, 2 * p
    return (a + b) ** 2 / (4 * t)


def tanh(x: Decimal) -> Decimal:
    """sinh / cosh; the series of sinh for small arguments, which would cancel."""
    if abs(x) > 300:
        return (1 - Decimal(10) ** -60).copy_sign(x)
    if abs(x) < Decimal("0.1"):
        sinh, term, n = x, x, 1
        while abs(term) > abs(x) * Decimal(10) ** -(DIGITS + 10):
            term *= x * x / ((n + 1) * (n + 2))
            sinh += term
            n += 2
        return sinh / (1 + sinh * sinh).sqrt()
    return (exp(x) - exp(-x)) / (exp(x) + exp(-x))


REFERENCE: dict[str, Callable[[Decimal], Decimal]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "sigmoid": lambda x: 1 / (1 + exp(-x)) if x > -690 else exp(x),
    "erf": erf,
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: 1 / x.sqrt(),
}


FUNCTIONS = list(REFERENCE)


def expected(fmt_name: str, function: str, code: int) -> int:
    """Code of f(x) for a finite nonzero x in the domain, from the reference alone."""
    fmt = get(fmt_name)
    x = fmt.decode_exact(code)
    assert isinstance(x, Fraction | Power)
    with localcontext() as context:
        context.prec = DIGITS + 40
        # 400 digits hold every operand used here exactly.
        with localcontext() as exact:
            exact.prec = 400
            operand = in_decimal(x)
        return fmt.encode_exact(Fraction(REFERENCE[function](operand)))


def in_decimal(x: Fraction | Power) -> Decimal:
    if isinstance(x, Power):
        power = Decimal(2) ** in_decimal(x.exponent)
        return -power if x.negative else power
    return Decimal(x.numerator) / Decimal(x.denominator)


def in_domain(function: str, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    inside = np.isfinite(x) & (x != 0)
    return inside & UNARY[function].inside(x)


def halves(fmt: Format, function: str) -> bool:
    """Whether results are at ties, which digits do not tell (see test_logarithmic)."""
    return fmt.logarithmic and UNARY[function].power is not None


@pytest.mark.sampled(54)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", EIGHT)
def test_eight_bits_exhaustively(name: str, function: str) -> None:
    fmt = get(name)
    table = mathfun.table(fmt, function)
    assert table.dtype == fmt.storage
    assert table.shape == (1 << fmt.nbits,)
    operands = decode(fmt, np.arange(1 << fmt.nbits))
    codes = np.nonzero(in_domain(function, operands) & (operands != 1))[0].tolist()
    assert len(codes) > 2
    if halves(fmt, function):
        pytest.skip("see test_logarithmic")
    wrong = [code for code in codes if table[code] != expected(name, function, code)]
    assert wrong == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", SIXTEEN)
def test_sixteen_bits_sampled(name: str, function: str) -> None:
    fmt = get(name)
    table = mathfun.table(fmt, function)
    operands = decode(fmt, np.arange(1 << fmt.nbits))
    codes = np.nonzero(in_domain(function, operands) & (operands != 1))[0]
    if halves(fmt, function):
        pytest.skip("see test_logarithmic")
    rng = np.random.default_rng(len(name) + len(function))
    chosen = [
        *rng.choice(codes, 60, replace=False).tolist(),
        *codes[:3].tolist(),
        *codes[-3:].tolist(),
    ]
    wrong = [code for code in chosen if table[code] != expected(name, function, code)]
    assert wrong == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*EIGHT, *SIXTEEN])
def test_exact_points(name: str) -> None:
    fmt = get(name)

    def at(function: str, x: float) -> int:
        return int(mathfun.table(fmt, function)[fmt.encode_exact(x)])

    one, zero = fmt.encode_exact(1.0), fmt.encode_exact(0.0)
    assert at("exp", 0.0) == one
    assert at("log", 1.0) == zero
    assert at("tanh", 0.0) == at("erf", 0.0) == at("sqrt", 0.0) == zero
    assert at("sigmoid", 0.0) == fmt.encode_exact(0.5)
    assert at("sqrt", 1.0) == at("rsqrt", 1.0) == one
    assert at("sqrt", 4.0) == fmt.encode_exact(2.0)
    if fmt.signed_zero:
        assert at("tanh", -0.0) == at("erf", -0.0) == at("sqrt", -0.0) == fmt.sign_bit


def value(name: str, function: str, x: float) -> float:
    fmt = get(name)
    return float(decode(fmt, mathfun.table(fmt, function)[fmt.encode_exact(x)]))


def test_posits_saturate() -> None:
    fmt = get("posit16_es1")
    assert value("posit16_es1", "exp", 1000) == fmt.maxpos
    assert value("posit16_es1", "exp", -1000) == fmt.minpos
    assert value("posit16_es1", "sigmoid", -1000) == fmt.minpos
    assert value("takum16", "exp", 2.0**100) == get("takum16").maxpos
    assert value("takum16", "exp", -(2.0**100)) == get("takum16").minpos
    for function, x in (("log", 0), ("log", -1), ("sqrt", -1), ("rsqrt", 0), ("rsqrt", -1)):
        assert math.isnan(value("posit16_es1", function, x))
    for function in FUNCTIONS:
        assert mathfun.table("posit16_es1", function)[0x8000] == 0x8000


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2"])
def test_floats_follow_ieee(name: str) -> None:
    assert value(name, "exp", 1000) == math.inf
    assert value(name, "exp", -1000) == 0
    assert value(name, "exp", -math.inf) == 0
    assert value(name, "sigmoid", -math.inf) == 0
    assert value(name, "tanh", -math.inf) == -1
    assert value(name, "log", 0) == -math.inf
    assert value(name, "log", math.inf) == math.inf
    assert value(name, "sqrt", math.inf) == math.inf
    assert value(name, "rsqrt", math.inf) == 0
    assert value(name, "rsqrt", 0) == math.inf
    assert math.isnan(value(name, "log", -1))
    assert math.isnan(value(name, "sqrt", -math.inf))
    assert all(math.isnan(value(name, function, math.nan)) for function in FUNCTIONS)


def test_fixed_point_saturates() -> None:
    assert value("fixed8_4", "exp", 5) == 7.9375
    assert value("fixed8_4", "exp", -7) == 0
    assert value("fixed8_4", "log", 0) == -8
    # sigmoid(0) = 1/2 lies between the codes 0 and 1 of an integer format: to the even one.
    assert mathfun.table(fixed(8, 0), "sigmoid")[0] == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", ["posit8_es2", "posit16_es1", "bfloat16"])
def test_bounds_agree_with_the_tables(name: str, function: str) -> None:
    """The slow path alone must give the same codes as the estimates do."""
    fmt = get(name)
    operands = decode(fmt, np.arange(1 << fmt.nbits))
    codes = np.nonzero(in_domain(function, operands))[0]
    chosen = np.random.default_rng(5).choice(codes, min(60, len(codes)), replace=False).tolist()
    table = mathfun.table(fmt, function)
    assert [mathfun.refine(fmt, function, c) for c in chosen] == table[chosen].tolist()


@pytest.mark.parametrize(
    ("function", "x", "step"),
    [
        ("exp", 2.0**-28, 1),
        ("exp", -(2.0**-29), 0),
        ("sqrt", 1 + 2.0**-27, 0),
        ("sqrt", 1 - 2.0**-28, -1),
    ],
)
def test_doubtful_numbers_are_decided(
    monkeypatch: pytest.MonkeyPatch, function: str, x: float, step: int
) -> None:
    """Beside 1 the result is so near to a tie that float64 cannot tell: exp(d) = 1 + d + d*d/2."""
    fmt = posit(32, 2)
    asked: list[int] = []
    refine = mathfun.refine

    def counting(*arguments: Any) -> int:
        asked.append(arguments[2])
        return refine(*arguments)

    monkeypatch.setattr(mathfun, "refine", counting)
    code = int(encode(fmt, x))
    result = int(mathfun.apply(fmt, function, [code])[0])
    assert asked == [code]
    assert result == expected(fmt.name, function, code) == fmt.encode_exact(1) + step


def test_apply_to_wide_formats() -> None:
    fmt = get("posit32_es2")
    codes = np.random.default_rng(7).integers(1, 1 << 31, (4, 10))
    for function in FUNCTIONS:
        got = mathfun.apply(fmt, function, codes)
        assert got.shape == codes.shape
        assert got.dtype == np.uint32
        flat = zip(codes.ravel().tolist(), got.ravel().tolist(), strict=True)
        assert [c for c, r in flat if r != expected(fmt.name, function, c)] == []


def test_tables_are_cached_and_read_only() -> None:
    table = mathfun.table("bfloat16", "exp")
    assert mathfun.table("bfloat16", "exp") is table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1


def test_bad_requests() -> None:
    with pytest.raises(UnsupportedError, match="did you mean 'sigmoid'"):
        mathfun.table("posit8_es0", "sigmiod")
    with pytest.raises(UnsupportedError, match="up to 16 bits"):
        mathfun.table("posit32_es2", "exp")
    with pytest.raises(InputError, match="is not a finite number"):
        mathfun.refine(get("bfloat16"), "exp", 0x7F80)
    with pytest.raises(InputError, match="is not a number"):
        mathfun.refine(get("bfloat16"), "log", 0)
    with pytest.raises(InputError, match="is not a number"):
        mathfun.refine(minifloat(5, 10), "sqrt", 0xBC00)
