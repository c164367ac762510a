"""Functions of one operand: tables up to 16 bits, float64 and one rounding for wider formats."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.lowering.tables import table
from compiler.tensor.expr import Buffer, Expr, call, maximum, minimum
from compiler.types.dtypes import FLOAT64
from datatypes.arithmetic import oracle
from datatypes.builtin import softposit, through_float64
from datatypes.builtin.common import look_up
from datatypes.builtin.decoding import TABLE_BITS, decode
from datatypes.formats import Format


def lower(fmt: Format, fn: str, a: Expr) -> Expr | None:
    """`fn` of a storage integer; None if there is no such function.

    Correctly rounded up to 16 bits. Wider formats take the C library's float64 function and round
    its result, which is within one unit in the last place (sqrt, floor, ceil, round: exact).
    """
    f = FUNCTIONS.get(fn)
    if f is None or not f.in_formats:
        return None
    if fmt.nbits <= TABLE_BITS:
        return look_up(results(fmt, fn), a)
    if fn == "sqrt" and fmt.name in softposit.PREFIXES:
        return softposit.sqrt(fmt, a)
    x, fmt = decode(fmt, a), oracle.functions_format(fmt)
    if x is None:
        return None
    return through_float64.encode(fmt, in_float64(f, x))


def in_float64(f: ScalarFunction, x: Expr) -> Expr:
    """f of a float64, from which a format rounds: what is too large or too small for the format
    still is a number other than 0, which is rounded by the format's own rule."""
    if f.far is not None:
        x = minimum(maximum(x, -f.far), f.far)
    return call(f.name, x, dtype=FLOAT64)


@lru_cache(maxsize=256)
def results(fmt: Format, fn: str) -> Buffer:
    """The code of fn(x) for every code x."""
    return table(f"{fmt.name}_{fn}", oracle.apply(fmt, fn, np.arange(fmt.mask + 1)))
