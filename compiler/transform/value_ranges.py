"""Which integers the values of a function can be, by what makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Function, TupleGetItem, Var, tensor_type
from compiler.op.facts import Moves
from compiler.op.opdef import OpDef, Quantized
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType

Range = tuple[int, int]


@dataclass
class ValueRanges:
    """The least and the largest integer of each value of a function, every one on its own: data do
    not reach all ends at once.

    What puts numbers on a grid says its ends (a relu that was folded into it among them); what
    moves elements keeps them; of everything else it is the range of the dtype.
    """

    f: Function
    made: dict[Var, Binding] = field(init=False)
    found: dict[Var, Range] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.made = {b.var: b for b in self.f.bindings}
        for b in self.f.bindings:
            t = b.var.type
            if isinstance(t, TensorType) and t.dtype.is_integer:
                self.found[b.var] = self._of(b, t)

    def of(self, a: Atom) -> Range:
        """The range of an atom of an integer dtype."""
        if isinstance(a, Constant):
            return (int(a.data.min()), int(a.data.max())) if a.data.size else (0, 0)
        return self.found[a] if a in self.found else whole(tensor_type(a).dtype)

    def _of(self, b: Binding, t: TensorType) -> Range:
        v = b.value
        if isinstance(v, TupleGetItem):
            split = self.made.get(v.value) if isinstance(v.value, Var) else None
            v = split.value if split is not None else v
        if not isinstance(v, Call) or not isinstance(v.op, OpDef):
            return self.of(v) if isinstance(v, Var | Constant) else whole(t.dtype)
        return within(self._by(v, v.op, t.dtype), whole(t.dtype))

    def _by(self, v: Call, op: OpDef, dtype: DType) -> Range:
        a: Any = v.attrs
        if hasattr(a, "qmin") and dtype.bits <= 16:
            return a.qmin, a.qmax
        if getattr(a, "levels", 0):
            return 0, a.levels
        same = [x for x in v.args if tensor_type(x).dtype == dtype]
        if op.tables and v.args and tensor_type(v.args[op.tables[0]]).dtype == dtype:
            return self.of(v.args[op.tables[0]])
        if op.clips is not None and same:
            return within(self.of(v.args[0]), _integers(*op.clips(a)))
        if op.moves in (Moves.JOIN, Moves.PAD) or op.quantized == Quantized.SAME:
            ranges = [self.of(x) for x in same]
            if op.moves == Moves.PAD and getattr(a, "mode", "") == "constant":
                ranges.append((int(a.value), int(a.value)))
            return min(r[0] for r in ranges), max(r[1] for r in ranges)
        return whole(dtype)


def whole(dtype: DType) -> Range:
    """All that an integer dtype holds; a bool is 0 or 1."""
    if dtype.kind == "bool":
        return 0, 1
    info = np.iinfo(dtype.storage)
    return int(info.min), int(info.max)


def within(inner: Range, outer: Range) -> Range:
    """What clipping to `outer` leaves of `inner`."""
    low, high = (min(max(n, outer[0]), outer[1]) for n in inner)
    return low, high


def _integers(low: float, high: float) -> Range:
    """The integers between two bounds, which may be infinite."""
    least = -(1 << 63) if math.isinf(low) else math.ceil(low)
    return least, (1 << 63) if math.isinf(high) else math.floor(high)
