"""What goes wrong in a number format, counted per layer while a network is interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from compiler.arithmetic.stochastic import Place
from compiler.ir.expr import IRModule
from compiler.lowering.choose import custom_dtypes
from compiler.types.dtypes import Array, DType, custom, register_custom
from datatypes.arithmetic import oracle
from datatypes.custom.custom_type import RegisteredType
from datatypes.formats import Format, decode

_SUMS = ("Add", "Sub")


@dataclass
class Events:
    """Scalar operations and conversions of a layer whose result lost something.

    Attributes:
        overflow: the exact result of finite operands lies beyond the largest or least value.
        underflow: the exact result is not zero, but nearer to zero than the smallest value.
        nan: the result is NaN (NaR) and no operand is.
        absorbed: sums that equal their first operand although the second is not zero.
    """

    overflow: int = 0
    underflow: int = 0
    nan: int = 0
    absorbed: int = 0

    def taken(self) -> Events:
        """A copy of the counts, which start again from zero."""
        counts = replace(self)
        self.overflow = self.underflow = self.nan = self.absorbed = 0
        return counts


class _Counting(RegisteredType):
    """A described datatype that counts events as its oracle is asked."""

    def __init__(self, fmt: Format, events: Events):
        super().__init__(fmt.name, fmt)
        self._counted, self._events = fmt, events

    def apply(self, op: str, dtype: DType, *args: Array) -> Array:
        """See CustomDType."""
        result = super().apply(op, dtype, *args)
        self._count(op, result, args)
        return result

    def apply_at(self, op: str, dtype: DType, place: Place, *args: Array) -> Array:
        """See RandomDType."""
        result = super().apply_at(op, dtype, place, *args)
        self._count(op, result, args)
        return result

    def _count(self, op: str, result: Array, args: Sequence[Array]) -> None:
        if op not in oracle.ARITHMETIC:
            return
        fmt, events = self._counted, self._events
        a, b = np.broadcast_arrays(*(decode(fmt, codes) for codes in args))
        with np.errstate(all="ignore"):
            exact = oracle.arithmetic(fmt, op, a, b)
        finite = np.isfinite(a) & np.isfinite(b)
        self._range(np.where(finite, exact, 0.0))
        got = decode(fmt, result)
        events.nan += int((np.isnan(got) & ~np.isnan(a) & ~np.isnan(b)).sum())
        if op in _SUMS:
            events.absorbed += int(((got == a) & (b != 0) & finite).sum())

    def encode(self, values: Array, dtype: DType) -> Array:
        """See CustomDType."""
        self._converted(values)
        return super().encode(values, dtype)

    def encode_at(self, values: Array, dtype: DType, place: Place) -> Array:
        """See RandomDType."""
        self._converted(values)
        return super().encode_at(values, dtype, place)

    def _converted(self, values: Array) -> None:
        numbers = np.asarray(values, np.float64)
        self._range(np.where(np.isfinite(numbers), numbers, 0.0))

    def _range(self, exact: Array) -> None:
        fmt, events = self._counted, self._events
        most, least = float(fmt.maxpos), float(fmt.value(fmt.lowest))
        events.overflow += int(((exact > most) | (exact < least)).sum())
        events.underflow += int(((exact != 0) & (np.abs(exact) < float(fmt.minpos))).sum())


@contextmanager
def counting(module: IRModule) -> Iterator[Events]:
    """Count the events of every described format in `module` while the context lasts.

    Yields:
        The counts; `Events.taken` reads and resets them between layers.
    """
    events = Events()
    kinds = {dtype.name: custom(dtype.name) for dtype in custom_dtypes(module)}
    try:
        for kind in kinds.values():
            if isinstance(kind, RegisteredType) and kind.fmt is not None:
                register_custom(_Counting(kind.fmt, events), override=True)
        yield events
    finally:
        for kind in kinds.values():
            register_custom(kind, override=True)
