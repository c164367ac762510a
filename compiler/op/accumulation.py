"""The references of sums: what each accumulation (see `compiler.op.accumulate`) means, in numpy."""

from __future__ import annotations

import numpy as np

from compiler.arithmetic.arrays import Arithmetic, arithmetic
from compiler.arithmetic.fused_multiply_add import add_to_odd, to_odd
from compiler.arithmetic.python_integers import multiply_add, rounded_to_odd, scaled_integers
from compiler.op.accumulator import accumulator
from compiler.op.accumulator_width import Width, width
from compiler.types.dtypes import FLOAT32, FLOAT64, Array, DType

FLOATS = {"float32": FLOAT32, "float64": FLOAT64, "exact": FLOAT64}
"""Accumulations that add up floats, and which."""


class Accumulation:
    """The reference of one operator's sums, in `sequential` mode: arrays of `out`'s dtype.

    `operand` prepares the factors, `start` is the empty sum, `step` and `add` put a product or a
    term to it, `result` gives storage elements.
    """

    counts_padding = False
    """Whether a term that reads padding is a zero with a place, instead of no term."""

    def __init__(self, out: Arithmetic):
        self.out = out

    def at(self, index: Array) -> Accumulation:
        """The same sums where only those at these flat positions are added to
        (`Arithmetic.at`)."""
        return type(self)(self.out.at(index))

    def operand(self, a: Array, source: DType, zero_point: int = 0) -> Array:
        """`a` ready for `step`: int64 counted from the zero point, or values of out's dtype."""
        if self.out.dtype.is_integer:
            return a.astype(np.int64) - zero_point
        return a if source == self.out.dtype else self.out.cast(a, source)

    def start(self) -> Array:
        """The empty sum: +0."""
        integer = self.out.dtype.is_integer
        return np.zeros((), np.int64) if integer else self.out.const(0)

    def begin(self, first: Array) -> Array:
        """A sum that starts from a term instead, which was prepared as an operand."""
        return first

    def step(self, acc: Array, x: Array, w: Array) -> Array:
        """acc + x * w, product and sum rounded to out's dtype.

        Integers wrap in int64; wrapping the result to out's dtype at the end gives the same bits as
        wrapping at every step.
        """
        if self.out.dtype.is_integer:
            return np.asarray(acc + x * w)
        return self.out.add(acc, self.out.mul(x, w))

    def add(self, acc: Array, x: Array) -> Array:
        """acc + x."""
        return np.asarray(acc + x) if self.out.dtype.is_integer else self.out.add(acc, x)

    def result(self, acc: Array, bias: Array | None = None) -> Array:
        """The sum, and `bias` (storage elements that broadcast) as its last term."""
        y = acc.astype(self.out.dtype.storage)
        return y if bias is None else self.out.add(y, bias)


class _Narrow(Accumulation):
    """Integers of a width, in int64."""

    def __init__(self, out: Arithmetic, held: Width):
        super().__init__(out)
        self.held = held

    def at(self, index: Array) -> Accumulation:
        return self

    def step(self, acc: Array, x: Array, w: Array) -> Array:
        return self.add(acc, x * w)

    def add(self, acc: Array, x: Array) -> Array:
        return self.held.limited(acc + x)

    def result(self, acc: Array, bias: Array | None = None) -> Array:
        if bias is not None:
            acc = self.add(acc, bias.astype(np.int64))
        return acc.astype(self.out.dtype.storage)


class _Fused(Accumulation):
    def step(self, acc: Array, x: Array, w: Array) -> Array:
        return self.out.fma(x, w, acc)


class _Floating(Accumulation):
    def __init__(self, out: Arithmetic, dtype: DType):
        super().__init__(out)
        self.floats = arithmetic(dtype)

    def at(self, index: Array) -> Accumulation:
        return self

    def operand(self, a: Array, source: DType, zero_point: int = 0) -> Array:
        return self.floats.cast(a, source)

    def start(self) -> Array:
        return self.floats.const(0)

    def step(self, acc: Array, x: Array, w: Array) -> Array:
        return self.floats.fma(x, w, acc)

    def add(self, acc: Array, x: Array) -> Array:
        return self.floats.add(acc, x)

    def result(self, acc: Array, bias: Array | None = None) -> Array:
        if bias is not None:
            acc = self.floats.add(acc, self.floats.cast(bias, self.out.dtype))
        return self.out.cast(acc, self.floats.dtype)


class InFormat(Accumulation):
    """Sums in a format: acc = rnd(acc + x * w). Factors are float64, and equal to the operands."""

    def __init__(self, out: Arithmetic, held: DType):
        super().__init__(out)
        self.held = arithmetic(held)

    def at(self, index: Array) -> Accumulation:
        """The same: no step is random."""
        return self

    def operand(self, a: Array, source: DType, zero_point: int = 0) -> Array:
        """float64 of an operand."""
        return arithmetic(FLOAT64).cast(a, source)

    def start(self) -> Array:
        """+0 in the format."""
        return self.held.const(0)

    def begin(self, first: Array) -> Array:
        """A term, rounded to the format."""
        return self.rounded(first)

    def step(self, acc: Array, x: Array, w: Array) -> Array:
        """acc + x * w, rounded once."""
        return self.rounded(to_odd(x, w, self.values(acc)))

    def add(self, acc: Array, x: Array) -> Array:
        """acc + x, rounded once."""
        return self.rounded(add_to_odd(self.values(acc), x))

    def result(self, acc: Array, bias: Array | None = None) -> Array:
        """The sum, and `bias` as its last term, rounded to out's dtype."""
        if bias is not None:
            acc = self.add(acc, self.operand(bias, self.out.dtype))
        return self.out.cast(acc, self.held.dtype)

    def values(self, acc: Array) -> Array:
        """float64 values of sums."""
        return arithmetic(FLOAT64).cast(acc, self.held.dtype)

    def rounded(self, values: Array) -> Array:
        """Sums nearest to numbers that were rounded to odd."""
        return self.held.cast(values, FLOAT64)


class _Exact(Accumulation):
    """Python integers in units of 2**-shift; a float stands for what is not finite."""

    def __init__(self, out: Arithmetic):
        super().__init__(out)
        self.shift = 0

    def at(self, index: Array) -> Accumulation:
        return self

    def operand(self, a: Array, source: DType, zero_point: int = 0) -> Array:
        values = arithmetic(FLOAT64).cast(a, source)
        known = values[np.isfinite(values) & (values != 0)]
        shift = 53 - int(np.frexp(known)[1].min()) if known.size else 0
        self.shift += shift
        return scaled_integers(values, shift)

    def start(self) -> Array:
        return np.asarray(0, object)

    def step(self, acc: Array, x: Array, w: Array) -> Array:
        return multiply_add(acc, x, w)

    def add(self, acc: Array, x: Array) -> Array:
        return multiply_add(acc, x, 1)

    def result(self, acc: Array, bias: Array | None = None) -> Array:
        shift = self.shift
        if bias is not None:
            last = _Exact(self.out)
            terms = last.operand(bias, self.out.dtype)
            more = max(0, last.shift - shift)
            acc = multiply_add(0, acc, 1 << more)
            shift += more
            acc = multiply_add(acc, terms, 1 << (shift - last.shift))
        odd = np.frompyfunc(lambda n: rounded_to_odd(n, shift), 1, 1)
        return self.out.cast(np.asarray(odd(acc), np.float64), FLOAT64)


def accumulation(mode: str, out: Arithmetic) -> Accumulation:
    """The reference of sums in a mode of MODES, of a width, or in an accumulator; the result has
    out's dtype."""
    if (held := width(mode)) is not None:
        return _Narrow(out, held)
    if (chosen := accumulator(mode)) is not None:
        from compiler.op.staged_accumulation import Staged  # which is one of these

        return InFormat(out, chosen.dtype) if chosen.stepwise else Staged(out, chosen)
    if mode == "fma":
        return _Fused(out)
    if mode == "exact":
        return _Exact(out)
    if mode in FLOATS:
        return _Floating(out, FLOATS[mode])
    return Accumulation(out)
