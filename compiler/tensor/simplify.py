"""Integer expressions made shorter, bit for bit: what fused quantized operators leave behind."""

from __future__ import annotations

from compiler.tensor.expr import BinOp, Cast, Expr, IntImm, rewrite
from compiler.types.dtypes import INT32, DType

_RANGES = {DType.parse("uint8"): (0, 255), DType.parse("int8"): (-128, 127)}


def simplify(e: Expr) -> Expr:
    """`e` without narrowings that change nothing, and with constants added to clamps moved inside.

    - int32(uint8(clip(x, lo, hi))) is clip(x, lo, hi) where the bounds fit uint8 (int8 likewise).
    - clip(x + a, lo, hi) + b is clip(x + (a + b), lo + b, hi + b), provided that x + a does not
      overflow, as quantized operators take care of.
    """
    return rewrite(e, _rule)


def _rule(e: Expr) -> Expr | None:
    if isinstance(e, Cast) and e.dtype == INT32 and isinstance(e.value, Cast):
        narrow, inner = e.value, e.value.value
        bounds = clip_of(inner)
        if bounds is not None and narrow.dtype in _RANGES and inner.dtype == INT32:
            low, high = _RANGES[narrow.dtype]
            if low <= bounds[1] and bounds[2] <= high:
                return inner
    if isinstance(e, BinOp) and e.op == "Add" and e.dtype == INT32 and isinstance(e.b, IntImm):
        bounds, b = clip_of(e.a), e.b.value
        if bounds is not None:
            x, low, high = bounds
            inside = _plus(x, b)
            clipped = BinOp("Max", inside, IntImm(low + b, INT32), INT32)
            return BinOp("Min", clipped, IntImm(high + b, INT32), INT32)
    return None


def clip_of(e: Expr) -> tuple[Expr, int, int] | None:
    """(x, lo, hi) of min(max(x, lo), hi) with constant integer bounds; None: `e` is none."""
    if not (isinstance(e, BinOp) and e.op == "Min" and isinstance(e.b, IntImm)):
        return None
    inner = e.a
    if not (isinstance(inner, BinOp) and inner.op == "Max" and isinstance(inner.b, IntImm)):
        return None
    return inner.a, inner.b.value, e.b.value


def _plus(x: Expr, k: int) -> Expr:
    if isinstance(x, BinOp) and x.op == "Add" and isinstance(x.b, IntImm):
        k += x.b.value
        x = x.a
    return x if k == 0 else BinOp("Add", x, IntImm(k, INT32), INT32)
