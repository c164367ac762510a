"""Fused multiply-add of float64 arrays in plain numpy: a * b + c with one rounding.

The product is split into a float64 and its error (T. Dekker, 1971), the three parts are added with
exact errors (D. Knuth's two-sum), and what is left is rounded to odd before the last addition (S.
Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008). No part may
overflow or be subnormal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_BELOW_FLOAT32 = (1 << 29) - 1
"""Bits of a float64 that float32 has not."""
_MIDDLE = 1 << 28
_NORMAL = float(np.finfo(np.float32).tiny) * 2


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """a * b + c to nearest."""
    head, tail = _parts(a, b, c)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(head), head + tail, head)


def multiply_add32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of float32 operands, rounded to float32 once.

    float64 holds the product, and rounds the sum: rounding that again is wrong only where it lies
    in the middle between two float32 numbers, which are normal or not; those are rounded to odd.
    """
    with np.errstate(all="ignore"):
        total = np.asarray(np.asarray(a, np.float64) * b + c)
        out = np.asarray(total.astype(np.float32))
        middle = (total.view(np.int64) & _BELOW_FLOAT32) == _MIDDLE
        unsure = middle | ((np.abs(total) < _NORMAL) & (total != 0))
        if unsure.any():
            x, y, z = (np.broadcast_to(v, total.shape)[unsure] for v in (a, b, c))
            out[unsure] = to_odd(x, y, z).astype(np.float32)
    return out


def to_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c rounded to odd: to be rounded again, to at least two bits less."""
    return add_to_odd(*_parts(a, b, c))


def product_error(a: Array, b: Array, product: Array) -> Array:
    """a * b - product, exactly (Dekker 1971, with Veltkamp's splitting)."""

    def split(v: Array) -> tuple[Array, Array]:
        big = v * 134217729.0  # 2**27 + 1
        high = big - (big - v)
        return high, v - high

    (ah, al), (bh, bl) = split(a), split(b)
    error: Array = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    return error


def _parts(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """(head, tail) whose exact sum rounds, to nearest or to odd, as a * b + c does."""
    x, y, z = (np.asarray(v, np.float64) for v in (a, b, c))
    with np.errstate(all="ignore"):
        product = np.asarray(x * y)
        error = product_error(x, y, product)
        inner, inner_error = _two_sum(z, error)
        head, head_error = _two_sum(product, inner)
        plain = np.asarray(product + z)
        finite = np.isfinite(plain)
        tail = add_to_odd(inner_error, head_error)
        # An exact zero has IEEE 754's sign: -0 only if both terms are.
        zero = finite & (head == 0) & (tail == 0)
        head, tail = np.where(finite, head, plain), np.where(finite, tail, 0.0)
        return np.where(zero, plain, head), np.where(zero, plain, tail)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = np.asarray(a + b)
    part = total - a
    return total, np.asarray((a - (total - part)) + (b - part))


def add_to_odd(a: Array, b: Array) -> Array:
    """a + b rounded to odd."""
    with np.errstate(all="ignore"):
        total, error = _two_sum(np.asarray(a), np.asarray(b))
        even = (total.view(np.int64) & 1) == 0
        change = np.isfinite(total) & np.isfinite(error) & (error != 0) & even
        toward = np.where(error > 0, np.inf, -np.inf)
        return np.where(change, np.nextafter(total, toward), total)
