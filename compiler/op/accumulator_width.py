"""Integer accumulators of fewer bits than their sums may need: the accumulations `int<N>_wrap` and
`int<N>_saturate`, for contractions of bytes.

`wrap`: modulo 2**N, which gives the same at every step and at the end. `saturate`: every step stops
at the ends of the range, so that the order of the steps, which DESIGN pins, matters. A product is
of x - input_zero_point and w, exact; the bias is the last term. A result is in [-2**(N-1),
2**(N-1) - 1], in the operator's own dtype.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.tensor.expr import Expr, cast, const, maximum, minimum
from compiler.types.dtypes import INT8, INT32, INT64, UINT8, Array, DType

LEAST_BITS = 2
FORM = "int<N>_wrap or int<N>_saturate (N from 2 to 32)"


@dataclass(frozen=True)
class Width:
    """An accumulator of `bits` bits, signed, that wraps or saturates."""

    bits: int
    saturates: bool

    @property
    def low(self) -> int:
        """The least number it holds."""
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        """The largest number it holds."""
        return (1 << (self.bits - 1)) - 1

    @property
    def held(self) -> DType:
        """What kernels hold it in, so that no step overflows (or, where it wraps, does so by
        itself)."""
        return INT64 if self.saturates and self.bits == INT32.bits else INT32

    @property
    def update(self) -> str:
        """The update of the stage that adds up (see `compiler.tensor.stmt.range_of`)."""
        return f"Add{self.bits}" if self.saturates else "Add"

    def limited(self, sums: Array) -> Array:
        """int64 sums as the accumulator holds them."""
        if self.saturates:
            return np.clip(sums, self.low, self.high)
        return np.asarray((sums - self.low) % (1 << self.bits) + self.low)

    def finish(self, total: Expr, bias: Expr | None, dtype: DType) -> Expr:
        """What kernels store of `total`, which the accumulator holds already if it saturates."""
        if self.saturates:
            if bias is None:
                return cast(total, dtype)
            last = cast(total, INT64) + cast(bias, INT64)
            return cast(minimum(maximum(last, self.low), self.high), dtype)
        if bias is not None:
            total = total + cast(bias, total.dtype)
        unused = const(dtype.bits - self.bits, dtype)
        return total if self.bits == dtype.bits else (total << unused) >> unused


def width(mode: str) -> Width | None:
    """The accumulator that an accumulation names, None: it names none."""
    found = re.fullmatch(r"int([1-9]\d*)_(wrap|saturate)", mode)
    if found is None or not LEAST_BITS <= int(found[1]) <= INT32.bits:
        return None
    return Width(int(found[1]), found[2] == "saturate")


def check_width(op: str, mode: str, dtype: DType, operand: DType | None) -> None:
    """Check that sums of products of `operand`s in `dtype` can have this width.

    Raises:
        TypeInferenceError: they are no products of bytes in int32.
    """
    if operand not in (INT8, UINT8) or dtype != INT32:
        raise TypeInferenceError(
            f"{op}: accumulate={mode!r} is for products of 8-bit integers with out_dtype='int32'; "
            "use 'sequential'"
        )
