"""Functions of one operand: tables up to 16 bits, float64 and one rounding for wider formats."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compiler.lowering.tables import table
from compiler.tensor.expr import Expr, call, maximum, minimum
from compiler.tensor.stmt import Buffer
from compiler.types.dtypes import FLOAT64
from datatypes.arithmetic import mathfun, oracle
from datatypes.builtin import softposit, through_float64
from datatypes.builtin.common import look_up
from datatypes.builtin.decoding import TABLE_BITS, decode
from datatypes.formats import Format

FLOAT64_FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf", "sqrt", "rsqrt", *oracle.ROUNDINGS)
FAR = 700.0
"""exp(+-FAR) is beyond the range of every format, but not of float64: what is too large or
too small for the format is then rounded by the format's own rule."""


def lower(fmt: Format, fn: str, a: Expr) -> Expr | None:
    """`fn` of a storage integer; None if there is no such function.

    Correctly rounded up to 16 bits. Wider formats take the C library's float64 function and round
    its result, which is within one unit in the last place (sqrt, floor, ceil, round: exact).
    """
    if fmt.nbits <= TABLE_BITS:
        if fn not in mathfun.FUNCTIONS and fn not in oracle.ROUNDINGS:
            return None
        return look_up(results(fmt, fn), a)
    if fn not in FLOAT64_FUNCTIONS:
        return None
    if fn == "sqrt" and fmt.name in softposit.PREFIXES:
        return softposit.sqrt(fmt, a)
    x, fmt = decode(fmt, a), oracle.functions_format(fmt)
    if x is None:
        return None
    if fn in ("exp", "sigmoid"):
        x = minimum(maximum(x, -FAR), FAR)
    return through_float64.encode(fmt, call(fn, x, dtype=FLOAT64))


@lru_cache(maxsize=256)
def results(fmt: Format, fn: str) -> Buffer:
    """The code of fn(x) for every code x."""
    return table(f"{fmt.name}_{fn}", oracle.apply(fmt, fn, np.arange(fmt.mask + 1)))
