"""Exact arithmetic on arrays of Python integers, where floats stand for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.types.dtypes import Array


def _exact_step(acc: float, x: float, w: float) -> float:
    if type(acc) is int and type(x) is int and type(w) is int:
        return acc + x * w
    a, b, c = (math.copysign(v != 0, v) if type(v) is int else v for v in (acc, x, w))
    return a + b * c


def multiply_add(acc: Any, x: Any, w: Any) -> Array:
    """acc + x * w of Python integers and floats, which broadcast."""
    step: Any = np.frompyfunc(_exact_step, 3, 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(step(acc, x, w), object)


def scaled_integers(values: Array, shift: int) -> Array:
    """Python integers of values * 2**shift, which are whole; what is not finite stays."""

    def integer(v: float) -> float:
        if not math.isfinite(v):
            return v
        n, d = v.as_integer_ratio()
        return (n << max(shift, 0)) // (d << max(-shift, 0))

    convert: Callable[[Array], Any] = np.frompyfunc(integer, 1, 1)
    return np.asarray(convert(values.astype(object)), object)


def rounded_to_odd(n: float, shift: int) -> float:
    """float64 of n * 2**-shift; where 53 bits do not suffice, the odd one of its neighbours, which
    can be rounded again (S. Boldo and G. Melquiond, 2008)."""
    if type(n) is not int:
        return n
    size = abs(n)
    dropped = max(0, size.bit_length() - 53)
    kept = size >> dropped
    kept |= kept << dropped != size
    return math.copysign(math.ldexp(float(kept), dropped - shift), n) if n else 0.0
