"""What is known of floats that are rounded to integers: on some targets, small ones take fewer
instructions."""

from __future__ import annotations

from compiler.tensor.expr import BinOp, Call, Expr, FloatImm, IntImm, Select
from compiler.tensor.simplify import clip_of
from compiler.types.dtypes import FLOAT32


def is_within(x: Expr, most: float) -> bool:
    """Whether a float has been clipped to constants of magnitudes up to `most`, NaN too: a
    comparison with a bound replaces it by that."""
    outer = _clipped(x)
    inner = None if outer is None else _clipped(outer[0])
    if outer is None or inner is None or outer[1] == inner[1]:
        return False
    return max(abs(outer[2]), abs(inner[2])) <= most


def _clipped(x: Expr) -> tuple[Expr, str, float] | None:
    """(v, comparison, c) of select(v > c, v, c), or of <; None: it is neither."""
    if not isinstance(x, Select) or not isinstance(x.b, FloatImm) or x.b.value != x.b.value:
        return None
    c = x.cond
    if not isinstance(c, BinOp) or c.op not in ("GT", "LT") or not isinstance(c.b, FloatImm):
        return None
    same = c.b.value == x.b.value and (c.a is x.a or repr(c.a) == repr(x.a))
    return (x.a, c.op, x.b.value) if same else None


def clipped_rounding(x: Expr) -> tuple[Expr, int, int, int] | None:
    """(v, lo, hi, k) where `x` is clip(rint_i32(v) + k, lo + k, hi + k) of float32 v, as integer
    kernels end; None: it is not."""
    found = clip_of(x)
    if found is None:
        return None
    moved, low, high = found
    rounded, k = moved, 0
    if isinstance(moved, BinOp) and moved.op == "Add" and isinstance(moved.b, IntImm):
        rounded, k = moved.a, moved.b.value
    if not isinstance(rounded, Call) or rounded.fn != "rint_i32":
        return None
    (value,) = rounded.args
    return (value, low - k, high - k, k) if value.dtype == FLOAT32 else None
