"""SplitExact: exact sums of products become sums of float64, several where one does not hold them.

Where float64 holds the sum, operands are converted, constants at build time. Else every operand is
the sum of parts: one takes the leading bits, the next those that follow. Products of two parts are
so short that float64 adds them up without rounding, by the kernels of any other float64 convolution
or product. What they add up to lies on ascending grids; carrying from the lower to the next makes
them parts of one number, of which the lower ones are rounded to odd (S. Boldo and G. Melquiond,
2008), so that the last conversion rounds the exact sum once.

Most sums are far shorter: a quick way is tried first where the CPU tells of rounding (see
`compiler.transform.speculative_exact_sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from compiler.errors import LoweringError
from compiler.ir.expr import Atom, Binding, Constant, Function, IRModule, tensor_type
from compiler.op.accumulate import EXACT_BITS
from compiler.op.elementwise import ABS, ADD, DIVIDE
from compiler.op.exact_sum_parts import IF_EXACT, JOIN
from compiler.op.mixed import CAST, WHERE
from compiler.op.shapes import RESHAPE
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, op_name
from compiler.symbolic import dim
from compiler.transform.exact_sum import ExactSum, check_numbered, width_of
from compiler.transform.exact_sums_apart import apart
from compiler.transform.speculative_exact_sums import integer_sum, quick_sum
from compiler.types.dtypes import custom

MOST_PARTS = 256
"""Products of two parts that an operator may become."""
_MOST_JOINED = 24
"""Sums that one expression joins; of more, those on one grid are added before."""
_APART = 8
"""Bits between grids, so that a sum of what is left on the lower ones is below half of a unit."""


class SplitExact(FunctionPass):
    """Rewrites exact sums of products, and others that are too long.

    Args:
        watched: whether native code for the target can be watched for rounding.
        pairs: whether the target multiplies pairs of int16.
    """

    name = "SplitExact"
    required = ("InferType",)

    def __init__(self, watched: bool = False, pairs: bool = False):
        self.watched, self.pairs = watched, pairs

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with exact sums that float64 holds.

        Raises:
            LoweringError: names the operator whose sums are too long, and its node.
        """
        r = Rewriter(f)
        for whole in map(r.read, f.bindings):
            try:
                self.replace_in(r, whole)
            except LoweringError as e:
                where = (
                    f"node {', '.join(whole.origins)}" if whole.origins else f"%{whole.var.name}"
                )
                raise LoweringError(f"{op_name(whole.value)} ({where}): {e}") from None
        return r.finish()

    def replace_in(self, r: Rewriter, whole: Binding) -> None:
        """Append a binding, or what takes its place."""
        for b in apart(r, whole):
            total = ExactSum.of(r, b)
            if total is None:
                r.keep(b)
            else:
                self.replace(total)

    def replace(self, s: ExactSum) -> None:
        """Append the bindings that take an operator's place."""
        ranges = [s.range_of(a) for a in s.operands]
        if not s.products:  # terms of one sum
            ranges = [(min(low for low, _ in ranges), max(high for _, high in ranges))]
        shares = _shares(s, [high - low for low, high in ranges])
        quick = self.quick_sum(s, prod(n for n, _ in shares))
        total = _sure_sum(s, ranges, shares)
        if quick is not None:
            total = s.call(IF_EXACT, quick, total)
        last = s.named(CAST, total, dtype=str(s.dtype))
        counts = _counts(s)
        if counts is not None:
            check_numbered("means", s.dtype, s.terms)
            last = s.named(DIVIDE, s.emit(last), counts)
        s.r.changed = True
        s.r.keep(Binding(s.b.var, last, s.b.origins))

    def quick_sum(self, s: ExactSum, sure: int) -> Atom | None:
        """What is tried before the `sure` products, if anything."""
        if not self.watched:
            return None
        found = integer_sum(s) if self.pairs else None
        return quick_sum(s, sure) if found is None else found


def _sure_sum(
    s: ExactSum, ranges: Sequence[tuple[int, int]], shares: Sequence[tuple[int, int]]
) -> Atom:
    """The sum, rounded to odd, for any values."""
    sums = _products(s, ranges, shares) if s.products else _terms(s, *ranges[0], *shares[0])
    if s.products and len(s.value.args) == 3:
        sums += _bias(s, s.value.args[2], [g for g, _ in sums])
    sums.sort(key=lambda x: x[0])
    if len(sums) > _MOST_JOINED:
        sums = _added(s, sums)
    total = sums[0][1]
    if len(sums) > 1:
        total = s.call(JOIN, *(v for _, v in sums), grids=tuple(g for g, _ in sums))
    if prod(n for n, _ in shares) > 1 and s.has_infinity():
        raw = s.apply([s.wide(a) for a in s.operands])
        number = s.call("less", s.call(ABS, raw), s.scalar(np.inf))
        total = s.call(WHERE, number, total, raw)
    return total


def _added(s: ExactSum, sums: Sequence[tuple[int, Atom]]) -> list[tuple[int, Atom]]:
    """One sum for each grid; float64 adds those on one grid without rounding."""
    out: list[tuple[int, Atom]] = []
    for grid, value in sums:
        if out and out[-1][0] == grid:
            out[-1] = (grid, s.call(ADD, out[-1][1], value))
        else:
            out.append((grid, value))
    return out


def _products(
    s: ExactSum, ranges: Sequence[tuple[int, int]], shares: Sequence[tuple[int, int]]
) -> list[tuple[int, Atom]]:
    """Sums of products of the parts of two factors, and their grids."""
    first, second = (
        s.parts(a, low, *share)
        for a, (low, _), share in zip(s.operands, ranges, shares, strict=True)
    )
    return [
        (g + h, s.apply([p, q]))
        for p, g in zip(first.values, first.grids, strict=True)
        for q, h in zip(second.values, second.grids, strict=True)
    ]


def _terms(s: ExactSum, low: int, _: int, n: int, width: int) -> list[tuple[int, Atom]]:
    """Sums of the parts of terms, and their grids."""
    every = [s.parts(a, low, n, width) for a in s.operands]
    values = zip(*(p.values for p in every), strict=True)
    return [(g, s.apply(v)) for g, v in zip(every[0].grids, values, strict=True)]


def _counts(s: ExactSum) -> Constant | None:
    """What the sums of a mean are divided by."""
    division = s.summation.division
    if division is None:
        return None
    counts, types = division.counts, [tensor_type(a) for a in s.value.args]
    assert s.op.terms is not None
    number = dim(s.op.terms(s.value.attrs, types))
    if not isinstance(number, int):
        raise LoweringError(
            f"exact means of {number} terms of {s.dtype} are as long as their inputs; give the "
            "model fixed shapes, or accumulate in float64"
        )
    count = np.asarray(s.terms) if counts is None else counts(s.value.attrs, *s.shapes)
    codes = custom(s.dtype.name).encode(count.astype(np.float64), s.dtype)
    return Constant(np.asarray(codes, s.dtype.storage), s.dtype)


def _shares(s: ExactSum, bits: Sequence[int]) -> list[tuple[int, int]]:
    """(parts, bits of a part) of each operand: the fewest pairs that float64 can add up."""
    most = range(1, MOST_PARTS + 1)
    if len(bits) == 1:
        every = [[(n, width_of(bits[0], n))] for n in most]
    else:
        pairs = ((n, m) for n in most for m in range(1, MOST_PARTS // n + 1))
        every = [_pair(n, m, bits) for n, m in sorted(pairs, key=lambda c: c[0] * c[1])]
    found = next((shares for shares in every if _fits(s, shares)), None)
    if found is None:
        raise LoweringError(
            f"exact sums of {s.terms} terms of {s.dtype} need more than {MOST_PARTS} "
            "products of parts; accumulate in float64"
        )
    return found


def _pair(n: int, m: int, bits: Sequence[int]) -> list[tuple[int, int]]:
    """So many parts of two operands; their products' grids are equal or far apart."""
    widths = width_of(bits[0], n), width_of(bits[1], m)
    both = (max(widths),) * 2 if min(n, m) > 1 else widths
    return [(n, both[0]), (m, both[1])]


def _fits(s: ExactSum, shares: Sequence[tuple[int, int]]) -> bool:
    """Whether float64 adds up all products of such parts, or the parts themselves."""
    pairs = prod(n for n, _ in shares)
    room = EXACT_BITS - (s.terms * pairs + 1).bit_length()
    apart = all(width >= _APART for n, width in shares if n > 1)
    # Parts are rounded to nearest: a bit less than the distance of their grids.
    return apart and sum(width - (n > 1) for n, width in shares) <= room


def _bias(s: ExactSum, bias: Atom, grids: Sequence[int]) -> list[tuple[int, Atom]]:
    """The bias, the last term, in parts on the grids of the sums."""
    wide = s.wide(bias)
    assert s.op.contraction is not None
    kernel = s.op.contraction.kernel
    if kernel:
        wide = s.call(RESHAPE, wide, newshape=(1, -1, *[1] * kernel))
    descending = tuple(sorted(set(grids), reverse=True))
    return list(zip(descending, s.on_grids(wide, descending), strict=True))
