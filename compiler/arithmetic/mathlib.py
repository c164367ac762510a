"""Float32 exp, log, tanh, sigmoid and erf as scalar expressions.

Written in additions, multiplications, explicit fma and bit operations, they give the same bits on
every instruction set and vectorize like any other expression. References compute the same
expressions over arrays (see `over_arrays`). Relative error below 3e-7 (erf: absolute).

Where `fma` stands, the product is not rounded, on every target: by the processor's instruction, or,
where it has none, by the C library's function, which rounds once as well. Elsewhere every operation
rounds: generated code carries no flag that lets LLVM contract or reorder anything.

Sources: exp and log by range reduction with a two-part ln 2 (Cody and Waite, Software Manual for
the Elementary Functions, 1980) and truncated series; erf by Chebyshev fits of erf(x)/x in x^2 on
[0, 1] and of log(erfc(x)) on [1, 4].
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.tensor.expr import Expr, call, cast, const, maximum, minimum, select
from compiler.types.dtypes import FLOAT32, INT32, UINT16, DType

FLOAT16 = DType("float", 16)
_SIGN = -(1 << 31)
_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.1219444005469057e-4
_EXP = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)
_ATANH = (2 / 9, 2 / 7, 2 / 5, 2 / 3)
_TANH = (-1382 / 155925, 62 / 2835, -17 / 315, 2 / 15, -1 / 3)
_ERF = (
    -9.673594831838273e-06, 0.00011268258822383359, -0.0008484397549182177, 0.005221053492277861,
    -0.026865437626838684, 0.11283782869577408, -0.37612637877464294, 1.128379225730896,
)  # fmt: skip
_LOG_ERFC = (
    1.6263086308754282e-06, -4.581687971949577e-05, 0.0005945361917838454, -0.004747807048261166,
    0.02638421207666397, -0.11000879853963852, -0.6319087743759155, -1.1301807165145874,
    0.0003060615563299507,
)  # fmt: skip


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c, rounded once."""
    return call("fma", a, b, c)


def _horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    out = const(coefficients[0], FLOAT32)
    for c in coefficients[1:]:
        out = fma(out, x, const(c, FLOAT32))
    return out


def _power_of_two(k: Expr) -> Expr:
    """2^k for an int32 -126 <= k <= 127."""
    return call("bits", (k + 127) << 23, dtype=FLOAT32)


def exp(x: Expr) -> Expr:
    """e^x; overflows to inf, underflows through the subnormals to 0."""
    rest, whole = _exp_parts(minimum(maximum(x, -104.0), 89.0))
    half = whole >> 1
    return rest * _power_of_two(half) * _power_of_two(whole - half)


def _exp_parts(x: Expr) -> tuple[Expr, Expr]:
    """(r, int32 k) with e^x = r * 2^k, r about 1."""
    k = call("round", x * _LOG2E)
    r = fma(k, const(-_LN2_LOW), fma(k, const(-_LN2_HIGH), x))
    return _horner(r, _EXP), call("rint_i32", k, dtype=INT32)


def _exp_below_one(x: Expr) -> Expr:
    """The bits of `exp` for -80 <= x < 1, in fewer operations: nothing is subnormal there."""
    rest, whole = _exp_parts(x)
    return rest * _power_of_two(whole)


def _with_sign(size: Expr, x: Expr) -> Expr:
    """`size`, which is not negative, with the sign of `x`."""
    sign = call("bits", x, dtype=INT32) & _SIGN
    return call("bits", call("bits", size, dtype=INT32) | sign, dtype=FLOAT32)


def log(x: Expr) -> Expr:
    """Natural logarithm; log(0) = -inf, NaN below 0."""
    tiny = x < 1.1754943508222875e-38
    y = select(tiny, x * 8388608.0, x)
    bits = call("bits", y, dtype=INT32)
    # Exponent of y relative to sqrt(1/2), so that the mantissa lies in [sqrt(1/2), sqrt(2)).
    e = (bits - 0x3F3504F3) >> 23
    m = call("bits", bits - (e << 23), dtype=FLOAT32)
    k = e.astype("float32") - select(tiny, const(23.0), 0.0)
    s = (m - 1.0) / (m + 1.0)
    s2 = s * s
    series = fma(_horner(s2, _ATANH) * s2, s, s * 2.0)
    out = fma(k, const(_LN2_HIGH), fma(k, const(_LN2_LOW), series))
    out = select(x.equal(0.0), const(float("-inf")), out)
    out = select(x < 0.0, const(float("nan")), out)
    # inf and NaN pass through unchanged.
    return select(x < float("inf"), out, x)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent: odd series below 0.35, else through e^(-2|x|); of -0, -0."""
    a = call("abs", x)
    e = _exp_below_one(maximum(a * -2.0, -80.0))  # large is 1 from -18 on
    large = (1.0 - e) / (1.0 + e)
    a2 = a * a
    small = fma(_horner(a2, _TANH) * a2, a, a)
    return _with_sign(select(a < 0.35, small, large), x)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + exp(0.0 - x))


def erf(x: Expr) -> Expr:
    """Error function."""
    a = call("abs", x)
    small = x * _horner(x * x, _ERF)
    large = 1.0 - _exp_below_one(_horner(minimum(a, 4.0), _LOG_ERFC))
    return select(a < 1.0, small, _with_sign(large, x))


def rsqrt(x: Expr) -> Expr:
    """1 / sqrt(x), of any float."""
    return 1.0 / call("sqrt", x)


def sigmoid64(x: Expr) -> Expr:
    """1 / (1 + e^-x), of float64: with the C library's exp."""
    return 1.0 / (1.0 + call("exp", 0.0 - x))


def through_float32(fn: str, x: Expr, half: Sequence[tuple[int, int]]) -> Expr:
    """A function of a float16 operand, correctly rounded: its body in float32, but for the few
    operands where that rounds twice (`half`: codes of operands and of right results; all 65536 were
    tried)."""
    out = cast(call(fn, cast(x, FLOAT32)), FLOAT16)
    code = call("bits", x, dtype=UINT16)
    for operand, result in half:
        right = call("bits", const(result, UINT16), dtype=FLOAT16)
        out = select(code.equal(operand), right, out)
    return out
