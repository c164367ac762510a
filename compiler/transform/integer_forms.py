"""Integer forms of float operators between dequantize and quantize, for UseIntegers.

A value has a form if its integers on any grid follow from integers that exist: those it is
dequantized from, an int32 accumulator, or operands that are themselves dequantized. They differ
from those of the float operators by the rounding of float sums, and of biases to accumulators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.ir.expr import Atom, Call, Constant, Var, tensor_type
from compiler.op.qnn import add as qnn_add
from compiler.op.qnn.lookup import LOOKUP
from compiler.op.qnn.requantize import REQUANTIZE
from compiler.passes.rewrite import Rewriter, call, op_of, typed
from compiler.types.dtypes import FLOAT32, Array, DType


@dataclass(frozen=True)
class Target:
    """The grid of a result, and the integers that it is clipped to."""

    scale: float
    zero_point: int
    dtype: str
    qmin: int
    qmax: int

    def clipped(self, bound: float) -> int:
        """The integer nearest to a real number, which may be infinite."""
        if math.isinf(bound):
            return self.qmax if bound > 0 else self.qmin
        q = round(bound / self.scale) + self.zero_point
        return min(max(q, self.qmin), self.qmax)

    def within(self, bounds: tuple[float, float]) -> Target:
        """This grid between real bounds."""
        low, high = map(self.clipped, bounds)
        return replace(self, qmin=low, qmax=high)

    def attrs(self) -> dict[str, Any]:
        """Attributes of the operator that gives the integers."""
        return {
            "output_zero_point": self.zero_point, "out_dtype": self.dtype,
            "qmin": self.qmin, "qmax": self.qmax,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Grid:
    """Integers `atom` of a value: real = (atom - zero_point) * scale."""

    atom: Atom
    scale: float
    zero_point: int

    @property
    def reach(self) -> float:
        """Largest magnitude of a real value."""
        info = np.iinfo(tensor_type(self.atom).dtype.storage)
        return self.above * self.scale if info.bits == 8 else math.inf

    @property
    def above(self) -> int:
        """Largest distance of an integer from the zero point."""
        info = np.iinfo(tensor_type(self.atom).dtype.storage)
        return max(int(info.max) - self.zero_point, self.zero_point - int(info.min))


@dataclass(frozen=True, eq=False)
class Form:
    """How the integers of a value are made.

    Attributes:
        make: grid -> the call that computes them.
        reach: the largest magnitude that the value can have.
        bounds: real bounds that the value is kept in.
    """

    make: Callable[[Target], Call]
    reach: float
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def on(self, target: Target) -> Call | str:
        """The call that computes the integers on a grid; or why it cannot be."""
        if self.reach >= target.scale * 2.0**30:
            return "integers of its result could overflow"
        return self.make(target.within(self.bounds))

    def clipped(self, low: float, high: float) -> Form:
        """The form of the value between further bounds."""
        inner = tuple(min(max(v, low), high) for v in self.bounds)
        return replace(self, bounds=(inner[0], inner[1]))


def ratio(a: float, b: float) -> float:
    """a / b in float32."""
    return float(np.float32(a) / np.float32(b))


def of_grid(g: Grid) -> Form:
    """The form of a value that is on a grid."""

    def make(t: Target) -> Call:
        scale = Constant.of(ratio(g.scale, t.scale), FLOAT32)
        return call(REQUANTIZE, g.atom, scale, axis=0, input_zero_point=g.zero_point, **t.attrs())

    return Form(make, g.reach)


def of_sums(sums: Var, unit: Array, axis: int, reach: float) -> Form:
    """The form of a value that an int32 accumulator of `unit` (one, or one per channel) holds."""

    def make(t: Target) -> Call:
        scale = Constant.of(unit / np.float32(t.scale), FLOAT32)
        return call(REQUANTIZE, sums, scale, axis=axis, **t.attrs())

    return Form(make, reach)


def of_sum(a: Grid, b: Grid) -> Form:
    """The form of a + b."""

    def make(t: Target) -> Call:
        return call(
            qnn_add.ADD, a.atom, b.atom, a_scale=ratio(a.scale, t.scale),
            b_scale=ratio(b.scale, t.scale), a_zero_point=a.zero_point,
            b_zero_point=b.zero_point, **t.attrs(),
        )  # fmt: skip

    return Form(make, a.reach + b.reach)


def of_moved(r: Rewriter, form: Form, value: Call, stem: str) -> Form:
    """The form of what only moves a value that has a form: its integers are moved."""

    def make(t: Target) -> Call:
        q = bound(r, f"{stem}_q", form.make(t))
        return Call(value.op, (q, *value.args[1:]), value.attrs)

    return Form(make, form.reach, form.bounds)


def of_average(g: Grid, value: Call) -> Form:
    """The form of a mean over axes or under a window."""
    attrs, rank, op = value.attrs, tensor_type(value.args[0]).rank, op_of(value)
    assert op is not None
    assert op.average is not None
    integer, given = op.average.integer, op.average.integer_attrs(attrs, rank)

    def make(t: Target) -> Call:
        how = {"ratio": ratio(g.scale, t.scale), "input_zero_point": g.zero_point, **t.attrs()}
        return call(integer, g.atom, **given, **how)

    return Form(make, g.reach)


def of_concatenation(r: Rewriter, grids: Sequence[Grid], value: Call, stem: str) -> Form:
    """The form of values side by side."""

    def make(t: Target) -> Call:
        parts = [_part(r, g, t, f"{stem}_part") for g in grids]
        return Call(value.op, tuple(parts), value.attrs)

    return Form(make, max(g.reach for g in grids))


def _part(r: Rewriter, g: Grid, t: Target, stem: str) -> Atom:
    same = str(tensor_type(g.atom).dtype) == t.dtype and g.zero_point == t.zero_point
    info = np.iinfo(t.dtype)
    if same and g.scale == t.scale and (t.qmin, t.qmax) == (info.min, info.max):
        return g.atom
    return bound(r, stem, of_grid(g).make(t))


def of_function(g: Grid, values: Array) -> Form:
    """The form of a function of integers: `values` are float32, at the positions of their bits."""

    def make(t: Target) -> Call:
        with np.errstate(all="ignore"):
            units = values / np.float32(t.scale)
        q = np.rint(np.nan_to_num(units.astype(np.float64), nan=-np.inf)) + t.zero_point
        table = np.clip(q, t.qmin, t.qmax).astype(t.dtype)
        return call(LOOKUP, g.atom, Constant(table, DType.parse(t.dtype)))

    return Form(make, 0.0)


def entries(g: Grid) -> Array:
    """float32 real values of the 256 integers, at the positions of their bits."""
    codes = np.arange(256, dtype=np.uint8).view(tensor_type(g.atom).dtype.storage)
    above = (codes.astype(np.int64) - g.zero_point).astype(np.float32)
    return np.asarray(above * np.float32(g.scale))


def bound(r: Rewriter, stem: str, value: Call, origins: Sequence[str] = ()) -> Var:
    """A new binding of `value`."""
    return r.emit(typed(r.fresh(stem), value, origins))
