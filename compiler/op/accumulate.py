"""How sums are formed: the attribute `accumulate` of every operator that adds up more than two
terms (`OpDef.terms` says how many): contractions, sums and means, pooling, softmax, normalization,
cumsum, scattered sums.

- `sequential`: every product and every sum is rounded to the datatype;
- `fma`: one rounding per step, acc = rnd(acc + x * w);
- `float32`, `float64`: operands become floats; one fused multiply-add of floats per step, in order;
- `exact`: the exact sum of the exact products. It never overflows.

The last three round to the datatype once, at the end; the bias is one more term, added last. A mean
is the sum, rounded, then one division. Inside softmax and normalization the sums alone are formed
so: what is added is rounded as ever, but for products (the squares of a variance), which only
`sequential` rounds. Floats only know `sequential`; integers also accumulators of a given width (see
`compiler.op.accumulator_width`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.arithmetic.arrays import Arithmetic, arithmetic
from compiler.arithmetic.python_integers import multiply_add, rounded_to_odd, scaled_integers
from compiler.errors import LoweringError, TypeInferenceError
from compiler.op.accumulator_width import FORM, Width, check_width, width
from compiler.symbolic import IntLike, dim
from compiler.tensor.expr import Buffer, Expr
from compiler.types.dtypes import FLOAT32, FLOAT64, Array, DType, span

MODES = ("sequential", "fma", "exact", "float32", "float64")
EXACT_BITS = 53
"""Of integers that float64 holds."""
_FLOATS = {"float32": FLOAT32, "float64": FLOAT64, "exact": FLOAT64}


def check_mode(op: str, mode: str, dtype: DType, operand: DType | None = None) -> None:
    """Check that sums of `dtype`, of products of `operand`s, can be formed this way.

    Raises:
        TypeInferenceError: no such mode, or not for these dtypes.
    """
    if width(mode) is not None:
        check_width(op, mode, dtype, operand)
        return
    if mode not in MODES:
        raise TypeInferenceError(f"{op}: {unknown_mode(mode)}")
    if mode != "sequential" and not dtype.is_custom:
        raise TypeInferenceError(
            f"{op}: accumulate={mode!r} is for custom datatypes; {dtype} takes 'sequential'"
        )


def unknown_mode(mode: str) -> str:
    """The sentence that says that there is no such mode, and which there are."""
    return f"unknown accumulation {mode!r}; choose one of {', '.join(MODES)}; for int8 {FORM}"


# ---- reference -----------------------------------------------------------------------------------
class Accumulation:
    """The reference of one operator's sums, in `sequential` mode: arrays of `out`'s dtype.

    `operand` prepares the factors, `start` is the empty sum, `step` and `add` put a product or a
    term to it, `result` gives storage elements.
    """

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
    """The reference of sums in a mode of MODES or of a width, whose result has out's dtype."""
    if (held := width(mode)) is not None:
        return _Narrow(out, held)
    if mode == "fma":
        return _Fused(out)
    if mode == "exact":
        return _Exact(out)
    if mode in _FLOATS:
        return _Floating(out, _FLOATS[mode])
    return Accumulation(out)


# ---- loop nests ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Sums:
    """How a loop nest accumulates.

    Attributes:
        dtype: of the result.
        held: of the accumulator and of the factors.
        update: of the stage that adds up.
        width: of integers, if that is limited.
    """

    dtype: DType
    held: DType
    update: str
    width: Width | None = None

    def factor(self, x: Expr) -> Expr:
        """An operand as it is multiplied or added."""
        return x.astype(self.held)

    def finish(self, total: Expr, bias: Expr | None = None) -> Expr:
        """The result of a sum."""
        if self.width is not None:
            return self.width.finish(total, bias, self.dtype)
        if bias is not None:
            total = total + self.factor(bias)
        return total.astype(self.dtype)

    @property
    def rounds_last(self) -> bool:
        """Whether a stage must follow that rounds the sum."""
        return self.held != self.dtype or (self.width is not None and not self.width.saturates)

    @property
    def any_order(self) -> bool:
        """Whether the terms may be added in any order, the bias too."""
        return self.dtype.is_integer and self.update == "Add"


def sums(mode: str, dtype: DType, terms: IntLike, products: bool = True) -> Sums:
    """How a loop nest forms sums of at most `terms` terms of `dtype`.

    Raises:
        LoweringError: exact sums of this datatype and length are not supported.
    """
    if (limit := width(mode)) is not None:
        return Sums(dtype, limit.held, limit.update, limit)
    if mode == "fma":
        return Sums(dtype, dtype, "Fma" if products else "Add")
    if mode == "exact":
        _require_exact(dtype, terms, products)
        return Sums(dtype, FLOAT64, "Add")
    if mode in _FLOATS:
        return Sums(dtype, _FLOATS[mode], "Fma" if products else "Add")
    return Sums(dtype, dtype, "Add")


def exact_bits(dtype: DType, terms: IntLike, products: bool) -> int:
    """Bits that hold every sum of at most `terms` terms, however they are ordered.

    Raises:
        LoweringError: they are not known.
    """
    grid, most = span(dtype), dim(terms)
    if grid is None:
        raise LoweringError(f"{dtype.code} has no exact sums; its values are not known")
    if not isinstance(most, int):
        raise LoweringError(
            f"exact sums of {most} terms are as long as their inputs; give the model fixed shapes"
        )
    low, high = grid
    least = min(low, 2 * low) if products else low
    largest = max(high, 2 * high) if products else high
    return largest - least + most.bit_length()


def _require_exact(dtype: DType, terms: IntLike, products: bool) -> None:
    """Check that float64 holds every sum. (`SplitExact` rewrites sums that it does not hold.)"""
    needed = exact_bits(dtype, terms, products)
    if needed > EXACT_BITS:
        raise LoweringError(f"exact sums of {dtype.code} need {needed} bits, which no float has")


def finished(b: Any, s: Sums, name: str, total: Buffer, bias: Callable[..., Expr] | None) -> Buffer:
    """The stage that follows a sum: bias and rounding; `total` itself where there is neither."""
    if bias is None and not s.rounds_last:
        return total

    def value(*i: Any) -> Expr:
        return s.finish(total[i], bias(*i) if bias is not None else None)

    out: Buffer = b.compute(name, total.shape, s.dtype, value)
    return out


__all__ = [
    "MODES",
    "Accumulation",
    "Sums",
    "accumulation",
    "check_mode",
    "finished",
    "sums",
    "unknown_mode",
]
