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
`sequential` rounds. What holds sums may be any format, and the way they are added a description
(see `compiler.op.accumulator`): float32 takes these too. Other floats only know `sequential`;
integers also accumulators of a given width (see `compiler.op.accumulator_width`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.errors import DtypelabError, LoweringError, TypeInferenceError
from compiler.op.accumulation import FLOATS, Accumulation, accumulation
from compiler.op.accumulator import LITERAL, Accumulator, accumulator
from compiler.op.accumulator import MODES as MODES
from compiler.op.accumulator_presets import PRESETS
from compiler.op.accumulator_width import FORM, Width, check_width, width
from compiler.symbolic import IntLike, dim
from compiler.tensor.custom_dtypes import lane_of
from compiler.tensor.expr import Buffer, Call, Expr, binary
from compiler.types.dtypes import FLOAT32, FLOAT64, DType, precision, span

CERTIFIED = "certified"
"""The accumulation of a configuration that leaves the width of each layer's to its certificate."""

EXACT_BITS = 53
"""Of integers that float64 holds."""


def check_mode(op: str, mode: str, dtype: DType, operand: DType | None = None) -> None:
    """Check that sums of `dtype`, of products of `operand`s, can be formed this way.

    Raises:
        TypeInferenceError: no such mode, or not for these dtypes.
    """
    if width(mode) is not None:
        check_width(op, mode, dtype, operand)
        return
    try:
        chosen = accumulator(mode)
    except DtypelabError as error:
        raise TypeInferenceError(f"{op}: {error}") from None
    if chosen is not None:
        check_accumulator(op, chosen, dtype)
        return
    if mode not in MODES:
        raise TypeInferenceError(f"{op}: {unknown_mode(mode)}")
    if mode != "sequential" and not dtype.is_custom:
        raise TypeInferenceError(
            f"{op}: accumulate={mode!r} is for custom datatypes; {dtype} takes 'sequential'"
        )


def check_accumulator(op: str, chosen: Accumulator, dtype: DType) -> None:
    """Check that sums of `dtype` can be held in an accumulator.

    Raises:
        TypeInferenceError: they cannot.
    """
    try:
        held = chosen.dtype, chosen.outer_dtype
    except DtypelabError as error:
        raise TypeInferenceError(f"{op}: {error}") from None
    if dtype != FLOAT32 and not dtype.is_custom:
        raise TypeInferenceError(
            f"{op}: accumulate={str(chosen)!r} is for float32 and custom datatypes, not {dtype}"
        )
    if not chosen.stepwise and dtype.is_custom and dtype.bits > EXACT_BITS // 2:
        raise TypeInferenceError(
            f"{op}: products of {dtype.code} may have more than the {EXACT_BITS} bits of float64, "
            "in which chunks, trees and groups are added; give the format alone"
        )
    if chosen.align_bits and chosen.align_bits < (least := _product_bits(dtype)):
        raise TypeInferenceError(
            f"{op}: an accumulator that keeps {chosen.align_bits} bits is narrower than products "
            f"of {dtype}, which have {least}"
        )
    for f in held:
        if dtype.is_custom and f.bits < dtype.bits:
            raise TypeInferenceError(
                f"{op}: an accumulator of {f.bits} bits ({f}) is narrower than products of "
                f"{dtype.code}, and than one of its factors; choose one of {dtype.bits} bits or "
                "more"
            )


def _product_bits(dtype: DType) -> int:
    """Bits of products of factors; 0 of float32, whose numbers may have any number."""
    return 2 * (precision(dtype) or 0) if dtype.is_custom else 0


def staged(mode: str) -> Accumulator | None:
    """The accumulator that an accumulation describes, if it does more than to round every step
    (`compiler.op.staged_sums` has its loop nests)."""
    found = accumulator(mode)
    return None if found is None or found.stepwise else found


def require_steps(op: str, mode: str) -> None:
    """Check that sums that go on from one another are formed term by term.

    Raises:
        TypeInferenceError: they are not.
    """
    found = staged(mode)
    if found is not None and (found.order != "sequential" or found.align_bits):
        raise TypeInferenceError(
            f"{op} has no sums in {found}, since each goes on with the one before, and trees, "
            "pairs and aligned groups need all of their terms at once; add up in sequence"
        )


def is_mode(mode: str) -> bool:
    """Whether sums of numbers, not of integers, can be formed so: a mode, or an accumulator.

    Raises:
        DtypelabError: it is an accumulator that does not hold together.
    """
    if mode in MODES:
        return True
    chosen = accumulator(mode)
    return chosen is not None and bool(chosen.dtype.bits and chosen.outer_dtype.bits)


def names_sums(name: str) -> bool:
    """Whether an accumulation is called so that is no format: a mode, published hardware,
    integers of a width, or those that are certified; no format may have such a name."""
    return name in (*MODES, CERTIFIED) or name in PRESETS or width(name) is not None


def unknown_mode(mode: str) -> str:
    """The sentence that says that there is no such mode, and which there are."""
    return (
        f"unknown accumulation {mode!r}; choose one of {', '.join((*MODES, *PRESETS))}, the name "
        f"of a format, or a description such as {LITERAL}; for int8 {FORM}"
    )


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

    @property
    def in_format(self) -> bool:
        """Whether steps round to a format of their own: operands stay what they are until then."""
        return self.held.is_custom and self.held != self.dtype

    def factor(self, x: Expr) -> Expr:
        """An operand as it is multiplied or added."""
        return x if self.in_format else x.astype(self.held)

    def added(self, total: Expr, x: Expr) -> Expr:
        """total + x, where x is a `factor`."""
        return into(self.held, x, total) if self.in_format else binary("Add", total, x)

    def finish(self, total: Expr, bias: Expr | None = None) -> Expr:
        """The result of a sum."""
        if self.width is not None:
            return self.width.finish(total, bias, self.dtype)
        if bias is not None:
            total = self.added(total, self.factor(bias))
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
    if (chosen := accumulator(mode)) is not None:
        return Sums(dtype, held_form(chosen.dtype, dtype), "Fma" if products else "Add")
    if mode == "fma":
        return Sums(dtype, dtype, "Fma" if products else "Add")
    if mode == "exact":
        _require_exact(dtype, terms, products)
        return Sums(dtype, FLOAT64, "Add")
    if mode in FLOATS:
        return Sums(dtype, FLOATS[mode], "Fma" if products else "Add")
    return Sums(dtype, dtype, "Add")


def held_form(held: DType, dtype: DType) -> DType:
    """The dtype of sums in the form that goes with data of `dtype`: lanes, if it has them, where
    the data is in lanes or in floats; else codes."""
    if not held.is_custom or (dtype.is_custom and not dtype.lane):
        return held
    if held.code == dtype.code:
        return dtype
    lane = lane_of(held)
    return held if lane is None else held.in_form(str(lane))


def into(held: DType, *terms: Expr) -> Expr:
    """The sum of two terms of any dtype, or a product and a sum (a, b, c), exact but for one
    rounding to `held`."""
    return Call("fma" if len(terms) == 3 else "sum", terms, held)


MOST_OPEN = (1 << 20) - 1
"""How many terms an exact sum over an open number of positions has at most: what programs take for
granted of their inputs (see `compiler.boundary.assumptions`)."""


def most_terms(terms: IntLike) -> int:
    """How many terms an exact sum has at most."""
    known = dim(terms)
    return known if isinstance(known, int) else MOST_OPEN


def exact_bits(dtype: DType, terms: IntLike, products: bool) -> int:
    """Bits that hold every sum of at most `terms` terms, however they are ordered; of an open
    number of terms, of at most MOST_OPEN.

    Raises:
        LoweringError: they are not known.
    """
    grid = span(dtype)
    if grid is None:
        raise LoweringError(f"{dtype.code} has no exact sums; its values are not known")
    low, high = grid
    least = min(low, 2 * low) if products else low
    largest = max(high, 2 * high) if products else high
    return largest - least + most_terms(terms).bit_length()


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
    "into",
    "is_mode",
    "require_steps",
    "staged",
    "sums",
    "unknown_mode",
]
