"""A scalar function as one record: everything that is true of it, for whoever computes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from compiler.arithmetic.mathlib import FLOAT16, through_float32
from compiler.tensor.expr import Expr, cast
from compiler.types.dtypes import FLOAT32, FLOAT64, Array, DType

Interval = tuple[Fraction, Fraction]
Body = Callable[[Expr], Expr]
Derivative = Callable[[Any, Any, Any], Any]
"""See `compiler.arithmetic.derivatives`."""


@dataclass(frozen=True, eq=False)
class ScalarFunction:
    """A function of one real number (or of `arity`).

    A call of it in a built-in float dtype, compiled and interpreted, is the first of these that it
    has: its body for the dtype (`single`, `double`); `llvm`; `c`, in float64, rounded once. Where
    there is no C library, compiled code has `alone` for `c`.

    Attributes:
        name: as expressions call it, and the operator.
        numpy: float64 arrays -> float64 array, within 5 units in the last place. An infinity at a
            pole, NaN outside the domain.
        arity: how many operands it takes.
        operator: whether there is an operator of that name, too; `elementwise` makes it.
        llvm: stem of LLVM's intrinsic, which is right to the bit in every float dtype.
        c: the function of C's math.h, of float64.
        alone: that as an expression, for machines without a C library: within 1 unit in the last
            place, and mostly the nearest number.
        alone_narrow: the same of float64 operands that float32 has; None: `alone` will do.
        single: its body in float32; that of float16 is float32's, rounded once more.
        double: its body in float64.
        half: codes of the float16 operands for which rounding twice is wrong, with the right codes.
        exact: float64's result, rounded to a narrower float, is right; numpy has it to the bit.
        integral: rounds to an integral value, which formats then round to a value that they have.
        enclose: (x, digits) -> exact bounds of f(x), about 10**-digits apart; equal if f(x) is
            rational. For x inside `domain`. Results beyond 2**+-1000 may be replaced by any other
            one that is. With it, results of number formats are correctly rounded.
        limits: f at -infinity and at +infinity; NaN where it has none.
        domain: ends of the open interval where f(x) is a real number.
        far: beyond +-far results are beyond the range of every format (2**+-1000) or as near to a
            limit as none can tell, though not of float64: operands may be clipped to it. None:
            no operand is.
        power: f(x) = x**power; formats that hold logarithms multiply by it.
        trend: 1 where it never falls, -1 where it never rises, as x grows through the domain; else
            0.
        symmetry: "odd": f(-x) = -f(x); "even": f(-x) = f(x); else "".
        onnx: ONNX's operator of one operand, without attributes, that is this function.
        derivative: f'(x) as an expression; None: it has none, or is constant between jumps.
    """

    name: str
    numpy: Callable[..., Array]
    arity: int = 1
    operator: bool = True
    llvm: str | None = None
    c: str | None = None
    alone: Callable[..., Expr] | None = None
    alone_narrow: Callable[..., Expr] | None = None
    single: Body | None = None
    double: Body | None = None
    half: tuple[tuple[int, int], ...] = ()
    exact: bool = False
    integral: bool = False
    enclose: Callable[[Fraction, int], Interval] | None = None
    limits: tuple[float, float] = (math.nan, math.nan)
    domain: tuple[float, float] = (-math.inf, math.inf)
    far: float | None = None
    power: float | None = None
    trend: int = 0
    symmetry: str = ""
    onnx: str | None = None
    derivative: Derivative | None = None

    @property
    def in_formats(self) -> bool:
        """Whether number formats have it, correctly rounded."""
        return self.enclose is not None or self.integral

    def body(self, dtype: DType) -> Body | None:
        """What a call of it means, in additions, multiplications and operations on bits; None where
        it is one operation or the C library's."""
        if dtype == FLOAT16 and self.single is not None:
            return self._half
        return {FLOAT32: self.single, FLOAT64: self.double}.get(dtype)

    def body_alone(self, dtype: DType) -> Callable[..., Expr] | None:
        """What a call of `c` means, of as many operands as it has, where there is no C library:
        as there, in float64, rounded once. None: it calls none, or cannot do without."""
        if self.alone is None or self.llvm is not None or not dtype.is_float:
            return None
        return self.alone if dtype == FLOAT64 else self._narrow

    def _narrow(self, *args: Expr) -> Expr:
        function = self.alone_narrow or self.alone
        assert function is not None
        return cast(function(*(cast(a, FLOAT64) for a in args)), args[0].dtype)

    def _half(self, x: Expr) -> Expr:
        return through_float32(self.name, x, self.half)

    def near(self, x: Array) -> Array:
        """float64 operands clipped to `far`."""
        return x if self.far is None else np.clip(x, -self.far, self.far)

    def inside(self, x: Array) -> Array:
        """Where numbers lie inside the domain."""
        low, high = self.domain
        return np.asarray((x > low) & (x < high))
