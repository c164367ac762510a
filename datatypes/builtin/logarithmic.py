"""Logarithmic formats of more than 8 bits: `datatypes.arithmetic.logarithms` as expressions."""

from __future__ import annotations

from functools import lru_cache

from compiler.lowering.tables import table
from compiler.tensor.expr import Buffer, Expr, cast, const, let, maximum, minimum, select
from compiler.types.dtypes import INT32
from datatypes.arithmetic import logarithms
from datatypes.builtin.common import look_up, storage
from datatypes.formats import Format


def binary(fmt: Format, op: str, a: Expr, b: Expr) -> Expr | None:
    """Add, Sub, Mul, Div on storage integers."""
    operation = {"Add": _sum, "Sub": _difference, "Mul": _product, "Div": _quotient}.get(op)
    if operation is None:
        return None
    return let(cast(a, INT32), lambda x: let(cast(b, INT32), lambda y: operation(fmt, x, y)))


def _sum(fmt: Format, a: Expr, b: Expr) -> Expr:
    x, y = _magnitude(fmt, a), _magnitude(fmt, b)
    distance = maximum(x - y, y - x)
    same = ((a ^ b) & fmt.sign_bit).equal(0)
    entry = select(same, distance, distance + fmt.sign_bit)
    total = maximum(x, y) + cast(look_up(_corrections(fmt), entry), INT32)
    total = select(minimum(x, y).equal(0), maximum(x, y), total)
    return _packed(fmt, total, select(x >= y, a, b), _is_nan(fmt, a, b))


def _difference(fmt: Format, a: Expr, b: Expr) -> Expr:
    # NaN and zero have no negative.
    negated = select(_magnitude(fmt, b).equal(0), b, b ^ fmt.sign_bit)
    return let(negated, lambda c: _sum(fmt, a, c))


def _product(fmt: Format, a: Expr, b: Expr) -> Expr:
    x, y = _magnitude(fmt, a), _magnitude(fmt, b)
    total = x + y - logarithms.code_of(fmt).bias
    return _packed(
        fmt, select(minimum(x, y).equal(0), const(0, INT32), total), a ^ b, _is_nan(fmt, a, b)
    )


def _quotient(fmt: Format, a: Expr, b: Expr) -> Expr:
    x, y = _magnitude(fmt, a), _magnitude(fmt, b)
    total = select(x.equal(0), const(0, INT32), x - y + logarithms.code_of(fmt).bias)
    invalid = a.equal(fmt.nan_code) | y.equal(0)  # NaN has the magnitude 0
    return _packed(fmt, total, a ^ b, invalid)


def _magnitude(fmt: Format, code: Expr) -> Expr:
    return code & (fmt.sign_bit - 1)


def _is_nan(fmt: Format, a: Expr, b: Expr) -> Expr:
    return a.equal(fmt.nan_code) | b.equal(fmt.nan_code)


def _packed(fmt: Format, total: Expr, signed: Expr, invalid: Expr) -> Expr:
    kept = let(
        minimum(total, fmt.highest),
        lambda t: select(t < 1, const(0, INT32), t | (signed & fmt.sign_bit)),
    )
    return cast(select(invalid, const(fmt.nan_code, INT32), kept), storage(fmt))


@lru_cache(maxsize=16)
def _corrections(fmt: Format) -> Buffer:
    """int32: the corrections of sums, then those of differences."""
    import numpy as np

    both = np.concatenate([logarithms.corrections(fmt, sign) for sign in (1, -1)])
    return table(f"{fmt.name}_corrections", both.astype(np.int32))
