"""What an operation of a format means, on arrays of codes: what compiled code is compared with.

Up to 16 bits: `integers`, and for functions the correctly rounded tables of
`datatypes.arithmetic.mathfun`. Wider formats: `datatypes.arithmetic.oracle`, in float64 rounded to
odd, and Fractions where it does not reach.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from compiler.op.elementwise import RELU
from compiler.types.dtypes import Array
from datatypes.arithmetic import mathfun, oracle
from datatypes.formats import Format, as_float, decode, encode, ordered_values
from datatypes.proof import integers, rational

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip
TABULATED_BITS = 16


@dataclass(frozen=True)
class Judge:
    """The meaning of a format's operations."""

    fmt: Format

    @cached_property
    def integer(self) -> bool:
        """Whether arithmetic is judged in integers."""
        return integers.judges(self.fmt)

    @property
    def name(self) -> str:
        """Who judges arithmetic."""
        return (
            "integers" if self.integer else "float64 rounded to odd" if self._wide else "rational"
        )

    @property
    def _wide(self) -> bool:
        return oracle.float64_range(self.fmt)

    def arithmetic(self, op: str, *codes: Array) -> Array:
        """Add, Sub, Mul, Div, Fma of arrays of codes that broadcast."""
        arrays = np.broadcast_arrays(*codes)
        if self.integer:
            return integers.apply(self.fmt, op, *arrays)
        if op != "Fma" and self._wide:
            return oracle.apply(self.fmt, op, *arrays)
        tuples = zip(*(a.flat for a in arrays), strict=True)
        exact = (rational.apply(self.fmt, op, *map(int, codes)) for codes in tuples)
        return np.fromiter(exact, self.fmt.storage, arrays[0].size).reshape(arrays[0].shape)

    def compare(self, op: str, a: Array, b: Array) -> Array:
        """LT LE GT GE EQ NE: by value; NaN is unordered, NaR equals itself and is below all."""
        x, y = self.orders(a), self.orders(b)
        nan = self.unordered(a) | self.unordered(b)
        return np.where(nan, op == "NE", COMPARISONS[op](x, y))

    def extreme(self, op: str, a: Array, b: Array) -> Array:
        """Max, Min: NaN (NaR) if either is; +0 is above -0."""
        x, y = self.orders(a), self.orders(b)
        tie = x == y
        upper = (x > y) | (tie & (a < b))  # of equal codes, or of zeros of which +0 is code 0
        chosen = np.where(upper == (op == "Max"), a, b)
        return np.where(self.is_nan(a) | self.is_nan(b), self.fmt.nan_code, chosen)

    def orders(self, codes: Array) -> Array:
        """int64 that compare as the values do; NaR is the smallest."""
        fmt, signed = self.fmt, np.asarray(codes).astype(np.int64)
        if fmt.negation == "complement":
            return np.where(signed >= fmt.sign_bit, signed - fmt.mask - 1, signed)
        if fmt.negation == "none":
            return np.searchsorted(ordered_values(fmt), decode(fmt, codes))
        return np.where(signed >= fmt.sign_bit, fmt.sign_bit - signed, signed)

    def is_nan(self, codes: Array) -> Array:
        """Which codes mean no number at all."""
        return (
            np.isnan(decode(self.fmt, codes)) if self.fmt.has_nan else np.zeros(codes.shape, bool)
        )

    def unordered(self, codes: Array) -> Array:
        """Which codes compare as NaN does."""
        return self.is_nan(codes) & (self.fmt.negation != "complement")

    def function(self, fn: str, codes: Array) -> Array:
        """A function of one operand, correctly rounded, on an array of codes."""
        if fn in oracle.ROUNDINGS:
            return self.encode(oracle.ROUNDINGS[fn](decode(self.fmt, codes)))
        if fn == "negative":
            return self.arithmetic("Sub", self._zero(), codes)
        if fn == "abs":
            return self.extreme("Max", codes, self.function("negative", codes))
        if fn == RELU.name:
            return self.extreme("Max", codes, np.full_like(codes, self.fmt.zero(False)))
        if self.fmt.nbits <= TABULATED_BITS:
            return mathfun.table(self.fmt, fn)[codes]
        return mathfun.apply(self.fmt, fn, codes)

    def _zero(self) -> Array:
        return np.array(self.fmt.zero(True), self.fmt.storage)

    def encode(self, values: Array) -> Array:
        """Codes of float64 numbers, rounded once."""
        if self.integer:
            return integers.encode(self.fmt, values)
        return _exact_codes(self.fmt, values.astype(np.float64).tobytes()).reshape(values.shape)

    def decode(self, codes: Array) -> Array:
        """float64 values, from the exact ones; NaR is NaN."""
        distinct, place = np.unique(codes, return_inverse=True)
        values = np.array([_exact_value(self.fmt, code) for code in distinct.tolist()])
        return values[place].reshape(codes.shape)


@lru_cache(maxsize=1 << 18)
def _exact_value(fmt: Format, code: int) -> float:
    value = as_float(fmt.decode_exact(code))
    return -0.0 if fmt.signed_zero and code == fmt.sign_bit else value


@lru_cache(maxsize=32)
def _exact_codes(fmt: Format, values: bytes) -> Array:
    """Codes of float64 values, memoized, since all targets are asked the same."""
    numbers = np.frombuffer(values)
    guesses = Judge(fmt).orders(encode(fmt, numbers)).tolist()
    pairs = zip(numbers.tolist(), guesses, strict=True)
    exact = (fmt.encode_exact(x, near=guess) for x, guess in pairs)
    return np.fromiter(exact, fmt.storage, numbers.size)
