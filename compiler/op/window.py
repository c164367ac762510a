"""Sliding windows of convolution and pooling: output sizes, and the taps inside the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from compiler.op.common import require
from compiler.symbolic import Dim, Index, IntLike, ceil_div, dim, imax, imin
from compiler.tensor.builder import Extent, PrimBuilder
from compiler.tensor.expr import Buffer, Expr, binary, index_value, select
from compiler.types.dtypes import DType

LOOPS = "ncyxb"
"""Names of the loops over NCHW[x]c data."""
_GUARDS = ("in_y", "in_x")
"""Names of the loops that skip taps in the padding."""


@dataclass(frozen=True)
class Window:
    """A window along one axis: `kernel` taps, `dilation` apart, moved by `stride`, over data that
    is padded by `before` and `after` elements."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int

    @property
    def span(self) -> int:
        """Data elements from the first tap to the last."""
        return (self.kernel - 1) * self.dilation + 1

    def outputs(self, size: Dim, ceil_mode: bool = False, partial: bool = False) -> Dim:
        """Window positions over `size` elements.

        With `ceil_mode` a last, partial window counts if it starts inside the data or its leading
        padding (the rule of ONNX and PyTorch). With `partial` the first one counts where it reaches
        beyond the padded data by less than a stride: ONNX divides towards zero.
        """
        room = size + (self.before + self.after - self.span)
        if not ceil_mode:
            low = Index.of(room).range()[0]
            steps = Index.of(room) // self.stride
            if partial and low is not None and -self.stride < low < 0:
                return dim(imax(steps + 1, 1))
            if partial and (low is None or low < 0):
                steps = imax(steps, imin(Index.of(ceil_div(room, self.stride)), 0))
            return dim(steps + 1)
        inside = Index.of(size + (self.before - 1)) // self.stride + 1
        return dim(imin(ceil_div(Index.of(room), self.stride) + 1, inside))

    def first_tap(self, size: IntLike, y: IntLike) -> Index:
        """Number of the first tap of window `y` that is not in the leading padding."""
        return self._taps_below(self.before - y * self.stride)

    def end_tap(self, size: IntLike, y: IntLike, slack: int = 0) -> Index:
        """One past the last tap of window `y` that lies before `slack` elements after the data."""
        return self._taps_below(size + (self.before + slack) - y * self.stride)

    def _taps_below(self, distance: IntLike) -> Index:
        # The numerator is kept non-negative, so that // is the same in every language.
        return imin(Index.of(ceil_div(imax(distance, 0), self.dilation)), self.kernel)

    def valid(self, size: int, outputs: int, tap: int) -> tuple[slice, slice]:
        """(windows for which `tap` lies inside the data, the data elements it meets there)."""
        shift = tap * self.dilation - self.before
        lo = min(outputs, max(0, -(shift // self.stride)))
        hi = min(outputs, max(lo, (size - 1 - shift) // self.stride + 1))
        start = lo * self.stride + shift
        if lo == hi:
            return slice(0, 0), slice(0, 0)
        return slice(lo, hi), slice(start, (hi - 1) * self.stride + shift + 1, self.stride)


def windows(
    op: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Window, Window]:
    """Vertical and horizontal window; `padding` is (top, left, bottom, right).

    Raises:
        TypeInferenceError: a length or a value is wrong.
    """
    require(len(padding) == 4, f"{op}: padding must be (top, left, bottom, right), not {padding}")
    for what, values in (("kernel", kernel), ("strides", strides), ("dilation", dilation)):
        require(
            len(values) == 2 and min(values) >= 1,
            f"{op}: {what} must be two positive integers, not {tuple(values)}",
        )
    require(min(padding) >= 0, f"{op}: padding {tuple(padding)} must not be negative")
    pads = (padding[0], padding[2]), (padding[1], padding[3])
    y, x = (Window(k, s, *p, d) for k, s, p, d in zip(kernel, strides, pads, dilation, strict=True))
    return y, x


class Skip(Enum):
    """Which taps in the padding a kernel may leave out: none, all, or those of whole rows, where it
    reads neighbouring columns at once (those outside get what padding holds)."""

    NEVER = "never"
    TAPS = "taps"
    ROWS = "rows"


class Reading(Enum):
    """What happens to the taps of a window that lie in the padding.

    PADDED: the source holds the padding, all taps are read. GUARDED: directly inside the tap loop a
    loop of one or no iteration skips them. SELECTED: a select gives them what padding holds; unlike
    a guard, it may differ between the lanes of a vector.
    """

    PADDED = "padded"
    GUARDED = "guarded"
    SELECTED = "selected"


@dataclass(frozen=True)
class Axis:
    """How a loop nest reads its source along one axis: window `y`, loop tap `k`."""

    window: Window
    size: Index
    reading: Reading

    def inside(self, y: IntLike, k: IntLike) -> Index:
        """1 if tap `k` of window `y` lies inside the data, else 0."""
        at = self.at(y, k)
        return imin(imax(at + 1, 0), 1) - imin(imax(at + 1 - self.size, 0), 1)

    def may_be_empty(self, outputs: Index) -> bool:
        """Whether some window of `outputs` may have no tap inside the data."""
        w, count, size = self.window, outputs.constant(), self.size.constant()
        if count is None or size is None:
            return w.dilation > 1 or max(w.before, w.after) >= w.span
        taps = range(0, w.span, w.dilation)
        starts = (w.before - y * w.stride for y in range(count))  # elements before the data
        return any(not any(0 <= k - n < size for k in taps) for n in starts)

    def at(self, y: IntLike, k: IntLike) -> Index:
        """Position in the source of the element under tap `k`."""
        w = self.window
        before = 0 if self.reading is Reading.PADDED else w.before
        return Index.of(y * w.stride - before + k * w.dilation)


@dataclass(frozen=True)
class Source:
    """The buffer that windows read, and how; `fill`: dtype -> what padding holds."""

    buffer: Buffer
    y: Axis
    x: Axis
    fill: Callable[[DType], Expr]

    def read(
        self, n: IntLike, c: IntLike, taps: Sequence[tuple[IntLike, IntLike]], *block: IntLike
    ) -> Expr:
        """The element under (window, tap) in y and in x."""
        axes = (self.y, self.x)
        at = [a.at(*tap) for a, tap in zip(axes, taps, strict=True)]
        clamped = [
            imin(imax(i, 0), a.size - 1) if a.reading is Reading.SELECTED else i
            for a, i in zip(axes, at, strict=True)
        ]
        value: Expr = self.buffer[n, c, *clamped, *block]
        for a, tap in zip(axes, taps, strict=True):
            if a.reading is Reading.SELECTED:
                inside = binary("NE", index_value(a.inside(*tap)), 0)
                value = select(inside, value, self.fill(value.dtype))
        return value

    def accumulate(
        self,
        b: PrimBuilder,
        out: Buffer,
        outer: Sequence[str],
        body: Callable[..., tuple[tuple[IntLike, ...], Expr]],
        inner: Mapping[str, Extent],
        update: str,
        start: Expr | Callable[..., Expr],
        name: str,
    ) -> None:
        """Stage `out = start; for inner, kh, kw: out (update)= body`; `start` may be a function of
        out's loops.

        `outer` names the loops over out's dimensions; the third and fourth are those of `taps`.
        """
        loops: dict[str, Extent] = dict(zip(outer, out.shape, strict=True))

        def begin(*i: Index) -> Expr:
            return start if isinstance(start, Expr) else start(*i)

        empty = any(
            axis.reading is Reading.GUARDED and axis.may_be_empty(n)
            for axis, n in zip((self.y, self.x), out.shape[2:4], strict=True)
        )
        if empty:  # a reduction without iterations would not start either
            b.stage(out, loops, lambda *i: (i, begin(*i)), name=f"{name}_init")
        init = None if empty else begin
        reduce = {**inner, **self._taps()}
        guards = [len(loops) + k for k, n in enumerate(reduce) if n in _GUARDS]

        def unguarded(*v: Index) -> tuple[tuple[IntLike, ...], Expr]:
            return body(*(x for k, x in enumerate(v) if k not in guards))

        b.stage(out, loops, unguarded, reduce, update, init, name)

    def _taps(self) -> dict[str, Extent]:
        """Reduction loops over the taps, for stages whose outer loops are n, channel, y, x."""
        loops: dict[str, Extent] = {}
        for at, tap, guard, axis in ((2, "kh", "in_y", self.y), (3, "kw", "in_x", self.x)):
            loops[tap] = axis.window.kernel
            if axis.reading is Reading.GUARDED:
                loops[guard] = lambda *v, at=at, axis=axis: axis.inside(v[at], v[-1])
        return loops


def source(
    b: PrimBuilder,
    data: Buffer,
    across: tuple[Window, Window],
    outputs: Sequence[IntLike],
    fill: Callable[[DType], Expr],
    skip: Skip = Skip.NEVER,
    finite: bool | None = True,
    filled: bool = False,
) -> Source:
    """What windows over NCHW or NCHW[x]c `data` read: `data` itself or a copy padded with `fill`.

    `filled`: taps in the padding count as what it is filled with, whatever that is.
    `skip`: padding contributes nothing, and taps there need not be computed. They never are where
    adding 0 * w may be something else: for codes of custom dtypes, where that may round or be NaN,
    for their lanes unless the weights are known to be `finite`, and for built-in floats if they are
    known not to be.
    """
    n, c, *sizes = data.shape[:4]
    block = data.shape[4:]
    wy, wx = across
    padded: list[Index] = []
    for w, size, count in zip(across, sizes, outputs, strict=True):
        needed = (Index.of(count) - 1) * w.stride + w.span  # by all taps of the last window
        room = size + (w.before + w.after)
        if needed.constant() is not None and size.constant() is not None:
            padded.append(imax(size + w.before, needed))
        elif w.outputs(size) != count:  # a last window reaches beyond the padding
            padded.append(imax(room, needed))
        else:
            padded.append(room)
    wider = [p != s for p, s in zip(padded, sizes, strict=True)]
    guarded = [Reading.GUARDED if w else Reading.PADDED for w in wider]
    ys, xs = (Axis(w, s, r) for w, s, r in zip(across, sizes, guarded, strict=True))
    harmless = finite if data.dtype.lane else not data.dtype.is_custom and finite is not False
    if not any(wider) or not (harmless or filled):
        return Source(data, ys, xs, fill)
    long = (Index.of(outputs[1]).constant() or 0) >= b.least_skipped
    empty = ys.may_be_empty(Index.of(outputs[0])) or xs.may_be_empty(Index.of(outputs[1]))
    zeroed = skip is Skip.ROWS and wider[1]
    if skip is not Skip.NEVER and long and not empty and not (zeroed and data.dtype.is_custom):
        xs = replace(xs, reading=Reading.SELECTED) if zeroed else xs
        return Source(data, ys, xs, fill)
    pad = b.buffer("pad", (n, c, *padded, *block), data.dtype)
    loops = LOOPS[: len(data.shape)]
    (height, width), (rows, columns) = sizes, padded
    # (rows, columns, first row, first column) of the four borders.
    borders = {
        "top": (Index.of(wy.before), columns, Index(), Index()),
        "bottom": (rows - height - wy.before, columns, height + wy.before, Index()),
        "left": (height, Index.of(wx.before), Index.of(wy.before), Index()),
        "right": (height, columns - width - wx.before, Index.of(wy.before), width + wx.before),
    }
    for side, (high, wide, top, left) in borders.items():
        if high != 0 and wide != 0:
            _fill(b, pad, (n, c, high, wide, *block), top, left, fill, f"pad_{side}")
    b.stage(
        pad,
        dict(zip(loops, data.shape, strict=True)),
        lambda n, c, y, x, *k: ((n, c, y + wy.before, x + wx.before, *k), data[n, c, y, x, *k]),
        name="pad_copy",
    )
    ys, xs = (replace(axis, reading=Reading.PADDED) for axis in (ys, xs))
    return Source(pad, ys, xs, fill)


def _fill(
    b: PrimBuilder,
    pad: Buffer,
    shape: Sequence[IntLike],
    top: Index,
    left: Index,
    value: Callable[[DType], Expr],
    name: str,
) -> None:
    """Stage that fills a rectangle of the padded buffer."""
    b.stage(
        pad,
        dict(zip(LOOPS[: len(shape)], shape, strict=True)),
        lambda n, c, y, x, *k: ((n, c, y + top, x + left, *k), value(pad.dtype)),
        name=name,
    )
