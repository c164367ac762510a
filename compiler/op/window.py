"""Sliding windows of convolution and pooling: output sizes, and the taps inside the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from compiler.dtypes import DType
from compiler.op.common import require
from compiler.symbolic import Dim, Index, IntLike, ceil_div, dim, imax, imin
from compiler.tensor.builder import Extent, PrimBuilder
from compiler.tensor.expr import Expr
from compiler.tensor.stmt import Buffer

LOOPS = "ncyxb"
"""Names of the loops over NCHW[x]c data."""


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

    def outputs(self, size: Dim, ceil_mode: bool = False) -> Dim:
        """Window positions over `size` elements.

        With `ceil_mode` a last, partial window counts if it starts inside the data or its leading
        padding (the rule of ONNX and PyTorch).
        """
        room = size + (self.before + self.after - self.span)
        if not ceil_mode:
            return dim(Index.of(room) // self.stride + 1)
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


@dataclass(frozen=True)
class Axis:
    """How a loop nest reads its source along one axis: window `y`, loop tap `k`.

    For built-in dtypes the source is padded and every window runs all taps. For custom dtypes
    padding must contribute nothing (acc + 0 * w may round or be NaN), so there is no padded source:
    the tap loop is trimmed to the taps inside the data.
    """

    window: Window
    size: Index
    trimmed: bool

    def first(self, y: IntLike) -> Index:
        """Number of the tap that the loop starts with."""
        return self.window.first_tap(self.size, y) if self.trimmed else Index()

    def extent(self, y: IntLike) -> Index:
        """Number of taps that the loop runs."""
        if not self.trimmed:
            return Index.of(self.window.kernel)
        return self.window.end_tap(self.size, y) - self.first(y)

    def may_be_empty(self, outputs: Index) -> bool:
        """Whether some window of `outputs` may run no tap at all."""
        if not self.trimmed:
            return False
        count, size = outputs.constant(), self.size.constant()
        if count is None or size is None:
            w = self.window
            return w.dilation > 1 or max(w.before, w.after) >= w.span
        return any(self.extent(y).const == 0 for y in range(count))

    def tap(self, y: IntLike, k: IntLike) -> Index:
        """Number of the tap in iteration `k`."""
        return self.first(y) + k

    def at(self, y: IntLike, k: IntLike) -> Index:
        """Position in the source of the element under that tap."""
        w = self.window
        start = y * w.stride - (w.before if self.trimmed else 0)
        return Index.of(start + self.tap(y, k) * w.dilation)


@dataclass(frozen=True)
class Source:
    """The buffer that windows read, and how."""

    buffer: Buffer
    y: Axis
    x: Axis

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

        empty = self.y.may_be_empty(out.shape[2]) or self.x.may_be_empty(out.shape[3])
        if empty:  # a reduction without iterations would not start either
            b.stage(out, loops, lambda *i: (i, begin(*i)), name=f"{name}_init")
        init = None if empty else begin
        b.stage(out, loops, body, {**inner, **self.taps()}, update, init, name)

    def taps(self) -> dict[str, Extent]:
        """Reduction loops over the taps, for stages whose outer loops are n, channel, y, x."""
        return {"kh": lambda *v: self.y.extent(v[2]), "kw": lambda *v: self.x.extent(v[3])}


def source(
    b: PrimBuilder,
    data: Buffer,
    across: tuple[Window, Window],
    outputs: Sequence[IntLike],
    fill: Callable[[DType], Expr],
) -> Source:
    """Padded copy of NCHW or NCHW[x]c `data`; `data` itself if no window leaves it or its dtype is
    custom."""
    n, c, *sizes = data.shape[:4]
    block = data.shape[4:]
    wy, wx = across
    padded: list[Index] = []
    for w, size, count in zip(across, sizes, outputs, strict=True):
        room = size + (w.before + w.after)
        partial = w.outputs(size) != count  # a last window reaches beyond the padding
        padded.append(imax(room, (Index.of(count) - 1) * w.stride + w.span) if partial else room)
    plain = all(p == s for p, s in zip(padded, sizes, strict=True))
    if plain or data.dtype.is_custom:
        ys, xs = (Axis(w, s, not plain) for w, s in zip(across, sizes, strict=True))
        return Source(data, ys, xs)
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
    return Source(pad, Axis(wy, sizes[0], False), Axis(wx, sizes[1], False))


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
