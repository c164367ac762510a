"""SplitExact: exact sums of products become sums of float64, several where one does not hold them.

Where float64 holds the sum, operands are converted, constants at build time. Else every operand is
the sum of parts: one takes the leading bits, the next those that follow. Products of two parts are
so short that float64 adds them up without rounding, by the kernels of any other float64 convolution
or product. What they add up to lies on ascending grids; carrying from the lower to the next makes
them parts of one number, of which the lower ones are rounded to odd (S. Boldo and G. Melquiond,
2008), so that the last conversion rounds the exact sum once.

Most sums are far shorter: a quick way is tried first where the CPU tells of rounding (see
`quick_sums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil, prod
from typing import Any

import numpy as np

from compiler.dtypes import FLOAT64, Array, DType, custom, random_dtype, span
from compiler.errors import LoweringError
from compiler.ir.expr import Atom, Binding, Call, Constant, Function, IRModule, Var, tensor_type
from compiler.op.accumulate import EXACT_BITS, exact_bits
from compiler.op.common import axes_of, known_shape
from compiler.op.nn_pool import AvgPool2dAttrs, divisors
from compiler.op.opdef import get_op
from compiler.symbolic import Index, IntLike, product
from compiler.transform.infer_type import infer_value
from compiler.transform.passes import FunctionPass, PassContext
from compiler.transform.quick_sums import (
    MOST,
    last_bit,
    ordinary_spread,
    parts_to_try,
    row_spread,
)
from compiler.transform.rewrite import Rewriter, op_name

MOST_PARTS = 256
"""Products of two parts that an operator may become."""
_APART = 8
"""Bits between grids, so that a sum of what is left on the lower ones is below half of a unit."""
_PRODUCTS = ("nn.conv2d", "nn.dense", "nn.matmul")
_SUMS = ("sum", "mean", "nn.avg_pool2d", "nn.global_avg_pool2d")


class SplitExact(FunctionPass):
    """Rewrites exact sums of products, and others that are too long.

    `watched`: native code for the target can be watched for rounding.
    """

    name = "SplitExact"
    required = ("InferType",)

    def __init__(self, watched: bool = False):
        self.watched = watched

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with exact sums that float64 holds."""
        r = Rewriter(f)
        for b in map(r.read, f.bindings):
            split = _Split.of(r, b, self.watched)
            if split is None:
                r.keep(b)
            else:
                split.run()
        return r.finish()


def _terms(v: Call, name: str) -> IntLike:
    """Terms of each sum of an operator, its bias included."""
    shapes = [tensor_type(a).shape for a in v.args]
    if name == "nn.avg_pool2d":
        return product(v.attrs.pool_size)
    if name in _PRODUCTS:
        return product(shapes[0][-1:] if name == "nn.matmul" else shapes[1][1:]) + 1
    if name == "nn.global_avg_pool2d":
        return product(shapes[0][2:])
    axes = axes_of(name, v.attrs.axis, len(shapes[0]))
    return product(n for k, n in enumerate(shapes[0]) if k in axes or v.attrs.axis == ())


def _sizes(a: Atom) -> tuple[int, ...]:
    """Channels, height and width, which must be known."""
    return known_shape(tensor_type(a).shape[1:4])


def _width(bits: int, n: int) -> int:
    """Distance of the grids of n parts; each is at most half of it, to either side, also the
    leading one."""
    return bits if n == 1 else ceil((bits + 1) / n)


@dataclass(frozen=True)
class Parts:
    """Numbers as sums of parts: values[k] is a multiple of 2**grids[k]; the leading one first."""

    values: tuple[Atom, ...]
    grids: tuple[int, ...]


@dataclass(frozen=True)
class _Split:
    """One operator whose sums have `terms` terms of `dtype`."""

    r: Rewriter
    b: Binding
    dtype: DType
    terms: int
    products: bool
    watched: bool
    widened: dict[Atom, Atom] = field(default_factory=dict)

    @staticmethod
    def of(r: Rewriter, b: Binding, watched: bool) -> _Split | None:
        """The rewriting of a binding; None where it is not needed."""
        v, name = b.value, op_name(b.value)
        if name not in (*_PRODUCTS, *_SUMS) or not isinstance(v, Call):
            return None
        if v.attrs.accumulate != "exact":
            return None
        dtype, products, terms = tensor_type(v.args[0]).dtype, name in _PRODUCTS, _terms(v, name)
        if exact_bits(dtype, terms, products) <= EXACT_BITS and not products:
            return None  # the operator itself adds up float64
        return _Split(r, b, dtype, Index.of(terms).const, products, watched)

    def run(self) -> None:
        """Append the bindings that take the operator's place."""
        v = self.b.value
        assert isinstance(v, Call)
        ranges = [self.range_of(a) for a in v.args[: 2 if self.products else 1]]
        bits = [high - low for low, high in ranges]
        shares = self.shares(bits)
        quick = self.quick_sum(prod(n for n, _ in shares))
        total = self.sure_sum(ranges, shares)
        if quick is not None:
            total = self.call("if_exact", quick, total)
        last = self.named("cast", total, dtype=str(self.dtype))
        counts = self.counts()
        if counts is not None and random_dtype(self.dtype) is not None:
            raise LoweringError(  # their roundings are numbered as those of one operator
                f"exact means of {self.terms} terms of {self.dtype}, which rounds stochastically, "
                f"need more than {EXACT_BITS} bits; accumulate in float64"
            )
        if counts is not None:
            last = self.named("divide", self.emit(last), counts)
        self.r.changed = True
        self.r.keep(Binding(self.b.var, last, self.b.origins))

    def quick_sum(self, sure: int) -> Atom | None:
        """The sum, rounded to odd, if nothing rounds before; None where that is not likely, or
        where it takes no less than the `sure` products."""
        v = self.b.value
        assert isinstance(v, Call)
        if not (self.watched and self.products):
            return None
        first, second, *bias = v.args
        spreads = [self.spread(a) for a in (first, second)]
        low, high = self.range_of(second)
        finite = isinstance(second, Constant) and bool(np.isfinite(self.decoded(second)).all())
        most = range(1, (MOST if finite else 1) + 1)
        n = parts_to_try(spreads, [_width(high - low, k) for k in most], self.terms)
        if not 0 < n < sure:
            return None
        x, w = self.wide(first), self.parts(second, low, n, _width(high - low, n))
        home = min(range(n), key=lambda k: abs(w.grids[k]))  # where a bias, which is near one, fits
        sums = [
            self.apply([x, q, *(map(self.wide, bias) if k == home else ())])
            for k, q in enumerate(w.values)
        ]
        return sums[0] if n == 1 else self.call("add_to_odd", *sums)

    def spread(self, a: Atom) -> int:
        """Bits that a row of an operand is likely to span."""
        if isinstance(a, Constant):
            return row_spread(self.decoded(a))
        return ordinary_spread(self.dtype)

    def sure_sum(
        self, ranges: Sequence[tuple[int, int]], shares: Sequence[tuple[int, int]]
    ) -> Atom:
        """The sum, rounded to odd, for any values."""
        v = self.b.value
        assert isinstance(v, Call)
        _, *rest = v.args
        operands = [
            self.parts(a, low, *share)
            for a, (low, _), share in zip(v.args, ranges, shares, strict=False)
        ]
        first, second = operands[0], operands[1] if self.products else None
        sums: list[tuple[int, Atom]] = []
        for p, g in zip(first.values, first.grids, strict=True):
            pairs = [(None, 0)] if second is None else zip(second.values, second.grids, strict=True)
            for q, h in pairs:
                sums.append((g + h, self.apply([p] if q is None else [p, q])))
        if self.products and len(rest) == 2:
            sums += self.bias(rest[1], [g for g, _ in sums])
        sums.sort(key=lambda s: s[0])
        total = sums[0][1]
        if len(sums) > 1:
            total = self.call("join", *(v for _, v in sums), grids=tuple(g for g, _ in sums))
        if prod(n for n, _ in shares) > 1 and self.has_infinity():
            raw = self.apply([self.wide(a) for a in v.args[: len(operands)]])
            number = self.call("less", self.call("abs", raw), self.scalar(np.inf))
            total = self.call("where", number, total, raw)
        return total

    def counts(self) -> Constant | None:
        """What the sums of a mean are divided by."""
        v, name = self.b.value, op_name(self.b.value)
        assert isinstance(v, Call)
        if name in ("mean", "nn.global_avg_pool2d"):
            count = np.asarray(self.terms)
        elif name == "nn.avg_pool2d":
            sizes, outputs = (_sizes(a)[1:] for a in (v.args[0], self.b.var))
            count = divisors(v.attrs, sizes, outputs)
        else:
            return None
        codes = custom(self.dtype.name).encode(count.astype(np.float64), self.dtype)
        return Constant(np.asarray(codes, self.dtype.storage), self.dtype)

    # ---- how many parts --------------------------------------------------------------------------
    def range_of(self, a: Atom) -> tuple[int, int]:
        """The grid of an operand and a power of two above its magnitude; constants have less."""
        grid = span(self.dtype)
        assert grid is not None
        if not isinstance(a, Constant):
            return grid
        values = self.decoded(a)
        known = values[np.isfinite(values) & (values != 0)]
        if not known.size:
            return 0, 1
        # Within the grid of a bias, and above its magnitude, if the other operand is.
        return min(0, last_bit(known)), max(0, int(np.frexp(known)[1].max()))

    def shares(self, bits: Sequence[int]) -> list[tuple[int, int]]:
        """(parts, bits of a part) of each operand: the fewest pairs that float64 can add up."""
        most = range(1, MOST_PARTS + 1)
        if len(bits) == 1:
            every = [[(n, _width(bits[0], n))] for n in most]
        else:
            pairs = ((n, m) for n in most for m in range(1, MOST_PARTS // n + 1))
            every = [self.pair(n, m, bits) for n, m in sorted(pairs, key=lambda c: c[0] * c[1])]
        found = next(filter(self.fits, every), None)
        if found is None:
            raise LoweringError(
                f"exact sums of {self.terms} terms of {self.dtype} need more than {MOST_PARTS} "
                "products of parts; accumulate in float64"
            )
        return found

    @staticmethod
    def pair(n: int, m: int, bits: Sequence[int]) -> list[tuple[int, int]]:
        """So many parts of two operands; their products' grids are equal or far apart."""
        widths = _width(bits[0], n), _width(bits[1], m)
        both = (max(widths),) * 2 if min(n, m) > 1 else widths
        return [(n, both[0]), (m, both[1])]

    def fits(self, shares: Sequence[tuple[int, int]]) -> bool:
        """Whether float64 adds up all products of such parts, or the parts themselves."""
        pairs = prod(n for n, _ in shares)
        room = EXACT_BITS - (self.terms * pairs + 1).bit_length()
        apart = all(width >= _APART for n, width in shares if n > 1)
        # Parts are rounded to nearest: a bit less than the distance of their grids.
        return apart and sum(width - (n > 1) for n, width in shares) <= room

    # ---- parts -----------------------------------------------------------------------------------
    def parts(self, a: Atom, low: int, n: int, width: int) -> Parts:
        """`a`, multiples of 2**low, in n parts of `width` bits."""
        grids = tuple(low + width * k for k in reversed(range(n)))
        return Parts(self.on_grids(self.wide(a), grids), grids)

    def on_grids(self, a: Atom, grids: tuple[int, ...]) -> tuple[Atom, ...]:
        """The parts of a float64; the last one is what is left."""
        if len(grids) == 1:
            return (a,)
        return tuple(self.call("part", a, grids=grids, index=k) for k in range(len(grids)))

    def bias(self, bias: Atom, grids: Sequence[int]) -> list[tuple[int, Atom]]:
        """The bias, the last term, in parts on the grids of the sums."""
        wide = self.wide(bias)
        if op_name(self.b.value) == "nn.conv2d":
            wide = self.call("reshape", wide, newshape=(1, -1, 1, 1))
        descending = tuple(sorted(set(grids), reverse=True))
        return list(zip(descending, self.on_grids(wide, descending), strict=True))

    # ---- operators -------------------------------------------------------------------------------
    def apply(self, args: Sequence[Atom]) -> Atom:
        """The operator itself on float64."""
        v, name = self.b.value, op_name(self.b.value)
        assert isinstance(v, Call)
        if name == "nn.avg_pool2d":
            return self.under_windows(args[0], v.attrs)
        if name == "nn.global_avg_pool2d":
            axes = tuple(range(2, tensor_type(args[0]).rank))
            return self.call("sum", args[0], axis=axes, keepdims=True)
        if name == "mean":
            return self.call("sum", args[0], axis=v.attrs.axis, keepdims=v.attrs.keepdims)
        changes = {"accumulate": "sequential", "out_dtype": ""}
        has = {f.name for f in fields(v.attrs)}
        attrs = replace(v.attrs, **{k: x for k, x in changes.items() if k in has})
        return self.emit(Call(v.op, tuple(args), attrs))

    def under_windows(self, x: Atom, a: AvgPool2dAttrs) -> Atom:
        """Sums under sliding windows: a convolution of each channel with ones."""
        channels, *sizes = _sizes(x)
        outputs = _sizes(self.b.var)[1:]
        # The last window may reach beyond the padding, or not as far.
        after = [
            max(0, (n - 1) * s + (k - 1) * d + 1 - size - before)
            for n, s, k, d, size, before in zip(
                outputs, a.strides, a.pool_size, a.dilation, sizes, a.padding[:2], strict=True
            )
        ]
        ones = Constant(np.ones((channels, 1, *a.pool_size)), FLOAT64)
        padding = (*a.padding[:2], *after)
        return self.call(
            "nn.conv2d", x, ones, strides=a.strides, padding=padding, dilation=a.dilation,
            groups=channels,
        )  # fmt: skip

    def wide(self, a: Atom) -> Atom:
        """`a` in float64."""
        if isinstance(a, Constant):
            return Constant(self.decoded(a), FLOAT64)
        if a not in self.widened:
            self.widened[a] = self.call("cast", a, dtype="float64")
        return self.widened[a]

    def decoded(self, a: Constant) -> Array:
        values = custom(self.dtype.name).decode(a.data, self.dtype)
        return np.asarray(values, np.float64).reshape(a.data.shape)

    def has_infinity(self) -> bool:
        """Whether the datatype has infinite values: sums of them are infinite or not numbers."""
        if self.dtype.bits > 16:
            codes = custom(self.dtype.name).encode(np.array([np.inf]), self.dtype)
        else:
            codes = np.arange(1 << self.dtype.bits).astype(self.dtype.storage)
        return bool(np.isinf(custom(self.dtype.name).decode(codes, self.dtype)).any())

    @staticmethod
    def scalar(value: float) -> Constant:
        return Constant(np.asarray(value, np.float64), FLOAT64)

    @staticmethod
    def named(op: str, *args: Atom, **attrs: Any) -> Call:
        """A call that is not bound yet."""
        definition = get_op(op)
        return Call(definition, args, definition.make_attrs(**attrs))

    def call(self, op: str, *args: Atom, **attrs: Any) -> Atom:
        return self.emit(self.named(op, *args, **attrs))

    def emit(self, value: Call) -> Atom:
        """The variable of a new binding; constants are computed at once."""
        if all(isinstance(a, Constant) for a in value.args):
            return self.constant(value)
        name = self.r.fresh(f"{self.b.var.name}_exact")
        return self.r.emit(Binding(Var(name, infer_value(value)), value, self.b.origins))

    def constant(self, value: Call) -> Constant:
        from compiler.interpret import call_reference

        out = Var("constant", infer_value(value))
        arrays = [a.data for a in value.args if isinstance(a, Constant)]
        data = call_reference(value, arrays, out, {})
        return Constant(np.asarray(data, order="C"), tensor_type(out).dtype)
