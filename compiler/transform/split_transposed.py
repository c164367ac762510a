"""SplitTransposed: convolutions of data between which zeros lie become convolutions without them.

A transposed convolution of stride s is read from files as one of data with s - 1 zeros after each
element. Results whose positions differ by multiples of s meet the data with the same taps of the
kernel, and zeros with all others: they are one convolution of the data by these taps. The results
of each are put between those of the others (Shi et al., Is the deconvolution layer the same as a
convolutional layer?, 2016). What follows element by element is done before that, with each.

Terms keep their order, and a zero adds nothing to a sum: results keep their bits, but where fused
steps of floats have underflown to -0, which a product of zero may make +0. In custom formats that
step by `fma` such convolutions stay as they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Value,
    Var,
    tensor_type,
    uses,
)
from compiler.ir.substitution import substitute
from compiler.op.accumulate import staged
from compiler.op.facts import Moves
from compiler.op.interleave import INTERLEAVE
from compiler.op.opdef import Fusion
from compiler.op.shapes import EXPAND_DIMS
from compiler.op.slice import PAD, STRIDED_SLICE
from compiler.passes.manager import FunctionPass, PassContext
from compiler.passes.rewrite import Rewriter, call, op_of, typed, union
from compiler.symbolic import Dim, dim
from compiler.types.dtypes import Array, custom
from compiler.types.tensor_types import TensorType

MOST = 64
"""Convolutions that one becomes at most; each is a call, and a copy of its result."""


class SplitTransposed(FunctionPass):
    """Splits convolutions of data with zeros between, by constant finite weights, into as many as
    there are remainders of positions by their stride, at most 64; not where a remainder meets no
    tap, or (of open sizes) may have no position, nor sums that are grouped by their number of
    terms."""

    name = "SplitTransposed"
    opt_level = 2
    required = ("InferType",)

    def transform_function(self, f: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with its transposed convolutions split."""
        by = {b.var: b for b in f.bindings}
        r, readers, done = Rewriter(f), uses(f), set[Var]()
        for b in f.bindings:
            if b.var in done:
                continue
            parts = _parts(b, by)
            if parts is None:
                r.keep(b)
                continue
            chain = [b, *_followers(b, r, readers)]
            done |= {x.var for x in chain}
            _emit(r, chain, *parts)
        return r.finish()


@dataclass(frozen=True)
class _Data:
    """Data with zeros between, as a convolution reads it: `x`, an image or (`line`) a signal, with
    strides[k] - 1 zeros after each element along spatial axis k, of which so many at both ends are
    cut off."""

    x: Atom
    line: bool
    strides: tuple[int, int]
    cut: tuple[tuple[int, int], tuple[int, int]]

    @property
    def sizes(self) -> tuple[Dim, Dim]:
        """Rows and columns of `x`."""
        shape = tensor_type(self.x).shape
        return (1, shape[2]) if self.line else (shape[2], shape[3])


@dataclass(frozen=True)
class _Taps:
    """What the results of one remainder read along an axis: taps `first`, `first` + `step` ...,
    `count` of them, of which the data lie `apart`; behind `begin` elements that are cut off, or
    before `end` such, or behind and before zeros (`padding`)."""

    first: int
    step: int
    count: int
    apart: int
    begin: int
    end: int
    padding: tuple[int, int]


def _parts(b: Binding, by: Mapping[Var, Binding]) -> tuple[_Data, list[list[_Taps]]] | None:
    """The data of a convolution that can be split, and the taps of each remainder along each
    axis."""
    v, op = b.value, op_of(b.value)
    if (
        not isinstance(v, Call)
        or op is None
        or op.contraction is None
        or op.contraction.kernel != 2
    ):
        return None
    a, weight = v.attrs, v.args[1]
    plain = (a.data_layout, a.out_layout, tuple(a.strides)) == ("NCHW", "NCHW", (1, 1))
    if a.accumulate == "fma" or staged(a.accumulate) is not None:
        return None
    if not plain or not _finite(weight):
        return None
    data = _spread(v.args[0], by, a.padding_value or a.input_zero_point)
    if data is None or not 1 < math.prod(data.strides) <= MOST:
        return None
    assert isinstance(weight, Constant)
    out, pads = tensor_type(b.var).shape[2:], (a.padding[0::2], a.padding[1::2])
    every: list[list[_Taps]] = []
    for k in range(2):
        if any(cut and pad for cut, pad in zip(data.cut[k], pads[k], strict=True)):
            return None  # what is cut off is no zero
        of = (data.sizes[k], out[k], weight.data.shape[2 + k], data.strides[k], a.dilation[k])
        taps = _taps(*of, pads[k][0] - data.cut[k][0])
        if taps is None:
            return None
        every.append(taps)
    return data, every


def _finite(weight: Atom) -> bool:
    """Whether weights are constants that, times zero, are zero."""
    if not isinstance(weight, Constant):
        return False
    data, dtype = weight.data, weight.dtype
    if dtype.is_custom and not dtype.lane:
        data = custom(dtype.name).decode(data, dtype)
    return bool(np.isfinite(data).all())


def _taps(
    size: Dim, results: Dim, kernel: int, stride: int, dilation: int, before: int
) -> list[_Taps] | None:
    """The taps of each remainder of an axis; None: there is a remainder without taps, or without
    results. `size`: elements; `results`; `before`: zeros before the first element."""
    more = dim(results - size * stride)
    if not isinstance(more, int):
        return None
    found = []
    for r in range(stride):
        met = [t for t in range(kernel) if (r + t * dilation - before) % stride == 0]
        extra = -((r - more) // stride)  # results than there are elements
        if not met or (isinstance(size, int) and size + extra < 1):
            return None
        step = stride // math.gcd(stride, dilation)
        apart = step * dilation // stride
        first = (r + met[0] * dilation - before) // stride  # the element that result 0 meets there
        last = extra + first + (len(met) - 1) * apart  # elements needed behind the data
        begin, end = max(0, first), max(0, -last)
        open_ends = not isinstance(size, int) and (begin or end or extra < 0)
        if open_ends or (isinstance(size, int) and size <= begin + end):
            return None
        padding = (max(0, -first), max(0, last))
        found.append(_Taps(met[0], step, len(met), apart, begin, end, padding))
    return found


# ---- what is there -------------------------------------------------------------------------------
def _spread(a: Atom, by: Mapping[Var, Binding], zero: int) -> _Data | None:
    """The data behind `a`, if that has zeros between its elements."""
    cut, strides, line = [(0, 0), (0, 0)], [1, 1], False
    v = _value(a, by)
    shape = tensor_type(a).shape
    if v is not None and _moves(v, Moves.VIEW) and tensor_type(v.args[0]).rank == 3:
        before = tensor_type(v.args[0]).shape
        if shape == (*before[:2], 1, before[2]):  # a signal, as an image of one row
            a, line = v.args[0], True
            v = _value(a, by)
    if v is not None and v.op is STRIDED_SLICE:
        found = _cut(v, 3 if line else 2)
        if found is None:
            return None
        cut, a = ([(0, 0), found[0]] if line else found), v.args[0]
    axes = (2,) if line else (2, 3)
    while (made := _between(a, by, zero)) is not None:
        a, axis, stride = made
        k = axis - 2 + line
        if axis not in axes or strides[k] > 1:
            return None
        strides[k] = stride
    return _Data(a, line, (strides[0], strides[1]), (cut[0], cut[1]))


def _cut(v: Call, spatial: int) -> list[tuple[int, int]] | None:
    """What a slice cuts off at both ends of each spatial axis, the last ones of its operand."""
    shape, left = tensor_type(v.args[0]).shape, None
    a, axes = v.attrs, v.attrs.axes or range(len(v.attrs.begin))
    left = dict.fromkeys(range(2, len(shape)), (0, 0))
    for begin, end, axis in zip(a.begin, a.end, axes, strict=True):
        n = shape[axis]
        if axis not in left or not isinstance(n, int) or begin < 0 or end < 0:
            return None
        left[axis] = (begin, max(0, n - end))
    return None if any(s != 1 for s in a.strides) else list(left.values())


def _between(a: Atom, by: Mapping[Var, Binding], zero: int) -> tuple[Atom, int, int] | None:
    """(x, axis, stride) where `a` is x with stride - 1 zeros after each element along the axis: a
    view of x with an axis more, filled up along that, and viewed as before."""
    flat = _value(a, by)
    pad = _value(flat.args[0], by) if flat is not None and _moves(flat, Moves.VIEW) else None
    if pad is None or pad.op is not PAD or pad.attrs.mode != "constant":
        return None
    wide = [k for k, w in enumerate(pad.attrs.pad_width) if any(w)]
    apart = _value(pad.args[0], by)
    if apart is None or not _moves(apart, Moves.VIEW) or len(wide) != 1 or pad.attrs.value != zero:
        return None
    (k,), x = wide, apart.args[0]
    shape, stride = tensor_type(x).shape, pad.attrs.pad_width[k][1] + 1
    fits = k > 0 and pad.attrs.pad_width[k][0] == 0
    if not fits or tensor_type(pad.args[0]).shape != (*shape[:k], 1, *shape[k:]):
        return None
    whole = (*shape[: k - 1], dim(shape[k - 1] * stride), *shape[k:])
    return (x, k - 1, stride) if tensor_type(a).shape == whole else None


def _value(a: Atom, by: Mapping[Var, Binding]) -> Call | None:
    v: Value | None = by[a].value if isinstance(a, Var) and a in by else None
    return v if isinstance(v, Call) else None


def _moves(v: Call, how: Moves) -> bool:
    op = op_of(v)
    return op is not None and op.moves is how


def _followers(
    b: Binding, r: Rewriter, readers: Mapping[Var, Sequence[Binding | None]]
) -> list[Binding]:
    """What is done with each element of a result, and with nothing else, alike for all positions
    of a channel."""
    found: list[Binding] = []
    last = b
    while r.used_once(last.var):
        (reader,) = readers[last.var]
        if reader is None or not _alike(reader, last.var):
            break
        found.append(reader)
        last = reader
    return found


def _alike(b: Binding, x: Var) -> bool:
    v, op, out = b.value, op_of(b.value), b.var.type
    if not isinstance(v, Call) or op is None or op.fusion is not Fusion.ELEMENTWISE or op.rounds:
        return False
    if not isinstance(out, TensorType) or out.shape != tensor_type(x).shape:
        return False
    axis = getattr(v.attrs, "axis", None)
    return all(
        a is x or (isinstance(a, Constant) and (k in op.tables or _by_channel(a.data, axis)))
        for k, a in enumerate(v.args)
    )


def _by_channel(c: Array, axis: object) -> bool:
    """Whether a constant is the same for all positions of a channel."""
    return c.size == 1 or (c.ndim == 1 and axis in (1, -3)) or c.shape[-2:] == (1, 1)


# ---- what becomes of it --------------------------------------------------------------------------
def _emit(
    r: Rewriter, chain: Sequence[Binding], data: _Data, taps: Sequence[Sequence[_Taps]]
) -> None:
    """The convolution that starts a chain of bindings, and what follows it, for each remainder;
    what they give takes the place of the last."""
    first, last = chain[0], chain[-1]
    assert isinstance(first.value, Call)
    x = data.x
    if data.line:
        x = r.emit(
            typed(r.fresh(f"{first.var.name}_line"), call(EXPAND_DIMS, x, axes=(2,)), first.origins)
        )
    cuts: dict[tuple[int, ...], Atom] = {(0, 0, 0, 0): x}
    parts = []
    for down in taps[0]:
        for across in taps[1]:
            key = (down.begin, across.begin, down.end, across.end)
            if key not in cuts:
                ends = tuple(
                    int(str(n)) - t.end for n, t in zip(data.sizes, (down, across), strict=True)
                )
                piece = call(STRIDED_SLICE, x, begin=key[:2], end=ends, axes=(2, 3))
                cuts[key] = r.emit(typed(r.fresh(f"{first.var.name}_cut"), piece, first.origins))
            made = _convolution(first.value, cuts[key], down, across)
            part = r.emit(typed(r.fresh(f"{first.var.name}_part"), made, first.origins))
            for before, b in itertools.pairwise(chain):
                again = substitute(b.value, {before.var: part})
                part = r.emit(typed(r.fresh(f"{b.var.name}_part"), again, b.origins))
            parts.append(part)
    origins = union(*(b.origins for b in chain))
    r.emit(Binding(last.var, call(INTERLEAVE, *parts, steps=data.strides), origins))


def _convolution(v: Call, x: Atom, down: _Taps, across: _Taps) -> Call:
    """The convolution of the data with these taps."""
    weight = v.args[1]
    assert isinstance(weight, Constant)
    ys, xs = (slice(t.first, t.first + (t.count - 1) * t.step + 1, t.step) for t in (down, across))
    taken = Constant(np.ascontiguousarray(weight.data[:, :, ys, xs]), weight.dtype)
    padding = tuple(t.padding[end] for end in range(2) for t in (down, across))
    attrs = replace(v.attrs, padding=padding, dilation=(down.apart, across.apart))
    return Call(v.op, (x, taken, *v.args[2:]), attrs)
