"""Scalar arithmetic over arrays, per dtype: what operator references are written in.

A reference written over an `Arithmetic` holds for float32, integers and every custom datatype
alike, and pins the order of the scalar operations. Arrays hold storage elements (integers for
custom types).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from compiler.arithmetic import fused_multiply_add, over_arrays
from compiler.arithmetic.rounding_sites import RoundingSites
from compiler.arithmetic.scalar_functions import BITS, COMPARE
from compiler.arithmetic.stochastic import PLACED, random_dtype
from compiler.errors import UnsupportedError
from compiler.types.dtypes import Array, CustomDType, DType, custom


class Choice:
    """Operations of every arithmetic over arrays that do not round."""

    def bitwise(self, op: str, a: Array, b: Array) -> Array:
        """And, Or, Xor, Shl or Shr of integers, or of truth values."""
        return np.asarray(BITS[op](a, b))

    def select(self, condition: Array, a: Array, b: Array) -> Array:
        """Elements of `a` where `condition` holds, else of `b`."""
        return np.where(condition, a, b)


class Arithmetic(Protocol):
    """Operations on storage arrays of one dtype; binary ones broadcast as numpy does."""

    dtype: DType

    def at(self, index: Array) -> Arithmetic:
        """The same arithmetic for operations whose results lie at these flat positions of the
        operator's result, if these are not all of them in order."""
        ...

    def of(self, dtype: DType) -> Arithmetic:
        """The arithmetic of another dtype."""
        ...

    def add(self, a: Array, b: Array) -> Array:
        """a + b, rounded to the dtype (integers wrap)."""
        ...

    def sub(self, a: Array, b: Array) -> Array:
        """a - b, rounded to the dtype."""
        ...

    def mul(self, a: Array, b: Array) -> Array:
        """a * b, rounded to the dtype."""
        ...

    def div(self, a: Array, b: Array) -> Array:
        """a / b, rounded to the dtype (integers: toward zero; by zero: 0)."""
        ...

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """a * b + c, rounded once; of floats and custom dtypes."""
        ...

    def maximum(self, a: Array, b: Array) -> Array:
        """The larger value; NaN if one is NaN, and +0 is larger than -0."""
        ...

    def minimum(self, a: Array, b: Array) -> Array:
        """The smaller value; NaN if one is NaN, and -0 is smaller than +0."""
        ...

    def compare(self, op: str, a: Array, b: Array) -> Array:
        """Boolean array of `a op b`; op is LT LE GT GE EQ NE."""
        ...

    def call(self, fn: str, a: Array) -> Array:
        """A unary function of scalar_functions.FUNCTIONS."""
        ...

    def remainder(self, a: Array, b: Array) -> Array:
        """What is left of a after the division by b, with the sign of a (C's fmod); floats only."""
        ...

    def bitwise(self, op: str, a: Array, b: Array) -> Array:
        """And, Or, Xor, Shl or Shr of integers, or of truth values."""
        ...

    def select(self, condition: Array, a: Array, b: Array) -> Array:
        """Elements of `a` where `condition` holds, else of `b`."""
        ...

    def const(self, value: float | Array) -> Array:
        """Array nearest to `value`; scalar if that is."""
        ...

    def lowest(self) -> Array:
        """Scalar array of the least value, minus infinity if there is one (what max-pooling starts
        from)."""
        ...

    def cast(self, a: Array, source: DType) -> Array:
        """Values of dtype `source` converted to this dtype. Floats (and custom dtypes) become
        integers toward zero and saturate, NaN becomes 0; integers of fewer bits wrap."""
        ...


class NumpyArithmetic(Choice):
    """Built-in dtypes: float arithmetic as numpy rounds it; integer arithmetic in int64, then
    wrapped."""

    def __init__(self, dtype: DType, sites: RoundingSites | None = None):
        self.dtype, self._sites = dtype, sites
        self._np = dtype.storage

    def of(self, dtype: DType) -> Arithmetic:
        """See Arithmetic."""
        return arithmetic(dtype, self._sites)

    def at(self, index: Array) -> Arithmetic:
        """See Arithmetic."""
        return self

    def _binary(self, f: Any, a: Array, b: Array) -> Array:
        if self.dtype.is_float:
            with np.errstate(all="ignore"):
                return np.asarray(f(a, b), self._np)
        wide = np.uint64 if self.dtype == DType("uint", 64) else np.int64
        with np.errstate(over="ignore"):
            return np.asarray(f(np.asarray(a).astype(wide), np.asarray(b).astype(wide))).astype(
                self._np
            )

    def add(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._binary(np.add, a, b)

    def sub(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._binary(np.subtract, a, b)

    def mul(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._binary(np.multiply, a, b)

    def div(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        if self.dtype.is_float:
            return self._binary(np.divide, a, b)
        if self.dtype == DType("uint", 64):
            return np.where(b == 0, 0, a // np.where(b == 0, 1, b)).astype(self._np)
        with np.errstate(over="ignore"):
            x, y = np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)
            # Toward zero from the quotient toward -inf: the least number has no absolute value.
            by = np.where(y == 0, 1, y)
            q = x // by
            q = q + ((q * by != x) & ((x < 0) != (by < 0)))
            return np.where(y == 0, 0, q).astype(self._np)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """See Arithmetic."""
        if self.dtype == DType("float", 32):
            return fused_multiply_add.multiply_add32(a, b, c)
        if self.dtype == DType("float", 64):
            return fused_multiply_add.multiply_add(a, b, c)
        raise UnsupportedError(f"no fused multiply-add of {self.dtype}")

    def maximum(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return over_arrays.maximum(a, b)

    def minimum(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return over_arrays.minimum(a, b)

    def compare(self, op: str, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return np.asarray(COMPARE[op](a, b))

    def call(self, fn: str, a: Array) -> Array:
        """See Arithmetic. What has a body in float32 is that expression there, and correctly
        rounded in float16; the rest is the C library's function of float64, rounded once."""
        return over_arrays.function(fn, self.dtype, a)

    def remainder(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._binary(np.fmod, a, b)

    def const(self, value: float | Array) -> Array:
        """See Arithmetic."""
        with np.errstate(over="ignore"):
            return np.asarray(value, self._np)

    def lowest(self) -> Array:
        """See Arithmetic."""
        return np.asarray(self.dtype.least, self._np)

    def cast(self, a: Array, source: DType) -> Array:
        """See Arithmetic."""
        if source.lane:
            return self.cast(a, source.storage_dtype)
        if source.is_custom:
            return self.cast(custom(source.name).decode(a, source), DType("float", 64))
        if self.dtype.is_integer and source.is_float:
            return _to_integer(a, self._np)
        with np.errstate(all="ignore"):
            return np.asarray(a).astype(self._np)


def _to_integer(a: Array, dtype: np.dtype[Any]) -> Array:
    """Floats as integers: toward zero, bounded by the integers there are; 0 for NaN."""
    ends = np.iinfo(dtype)
    whole = np.trunc(np.asarray(a, np.float64))
    above = whole >= 2.0 ** (ends.bits - (ends.min < 0))  # of 64 bits, the last is no float64
    with np.errstate(invalid="ignore"):
        inside = np.where((whole >= float(ends.min)) & ~above, whole, 0.0).astype(dtype)
    found = np.where(above, ends.max, inside)
    return np.asarray(np.where(whole < float(ends.min), ends.min, found), dtype)


class CustomArithmetic(Choice):
    """A registered custom dtype: every operation asks its oracle. Lanes are encoded, and the result
    is decoded again. Stochastic roundings get their place from `sites`."""

    def __init__(self, dtype: DType, sites: RoundingSites | None = None, at: Array | None = None):
        self.dtype, self._sites, self._at = dtype, sites, at
        self._type: CustomDType = custom(dtype.name)
        self._random = random_dtype(dtype)

    def _apply(self, op: str, *args: Array) -> Array:
        code = self.dtype.code
        if self._random is not None and self._sites is not None and op in PLACED:
            shape = np.broadcast_shapes(*map(np.shape, args))
            return self._random.apply_at(op, code, self._sites.next(shape, self._at), *args)
        if not self.dtype.lane:
            return self._type.apply(op, code, *args)
        out = self._type.apply(op, code, *(self._type.encode(a, code) for a in args))
        return out if op in COMPARE else self._stored(out)

    def _stored(self, codes: Array) -> Array:
        """Codes as this dtype stores them."""
        if not self.dtype.lane:
            return codes
        with np.errstate(all="ignore"):
            return self._type.decode(codes, self.dtype.code).astype(self.dtype.storage)

    def of(self, dtype: DType) -> Arithmetic:
        """See Arithmetic."""
        return arithmetic(dtype, self._sites)

    def at(self, index: Array) -> Arithmetic:
        """See Arithmetic."""
        return self if self._random is None else CustomArithmetic(self.dtype, self._sites, index)

    def add(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._apply("Add", a, b)

    def sub(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._apply("Sub", a, b)

    def mul(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._apply("Mul", a, b)

    def div(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._apply("Div", a, b)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        """See Arithmetic."""
        return self._apply("fma", a, b, c)

    def maximum(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._apply("Max", a, b)

    def minimum(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._apply("Min", a, b)

    def compare(self, op: str, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        return self._apply(op, a, b)

    def call(self, fn: str, a: Array) -> Array:
        """See Arithmetic."""
        return self._apply(fn, a)

    def remainder(self, a: Array, b: Array) -> Array:
        """See Arithmetic."""
        raise UnsupportedError(f"no remainder of {self.dtype}")

    def const(self, value: float | Array) -> Array:
        """See Arithmetic."""
        return self._stored(self._type.encode(np.asarray(value, np.float64), self.dtype.code))

    def lowest(self) -> Array:
        """See Arithmetic."""
        code = self.dtype.code
        return self._stored(np.asarray(self._type.lowest(code), code.storage))

    def cast(self, a: Array, source: DType) -> Array:
        """See Arithmetic."""
        if source.is_custom and not source.lane:
            a = custom(source.name).decode(a, source)
        if self._random is not None and self._sites is not None:
            place = self._sites.next(np.shape(a), self._at)
            return self._random.encode_at(a, self.dtype.code, place)
        return self._stored(self._type.encode(a, self.dtype.code))


def arithmetic(dtype: DType, sites: RoundingSites | None = None) -> Arithmetic:
    """The arithmetic of `dtype`; `sites` numbers its stochastic roundings."""
    kind = CustomArithmetic if dtype.is_custom else NumpyArithmetic
    return kind(dtype, sites)
