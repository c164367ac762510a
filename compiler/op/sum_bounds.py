"""Bounds of sums of integers: what the fact `OpDef.integer_sums` is made of.

A sum of products (x - z) * w with constant w is largest where x is at one end of its range for each
positive w and at the other for each negative one, so that the bounds are numbers that some data
reach: no narrower accumulator holds every sum. Taps in the padding contribute nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.op.window import Window
from compiler.symbolic import Dim
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class Known:
    """What is known of an operand: its type, the least and the largest integer in it, its integers
    if it is constant, and where it can be other than its zero point (bool, of its shape; None:
    anywhere)."""

    type: TensorType
    low: int
    high: int
    data: Array | None = None
    positions: Array | None = None

    def above(self, zero_point: int) -> tuple[int, int]:
        """Its range, counted from a zero point."""
        return self.low - zero_point, self.high - zero_point

    def low_bits(self, bits: int) -> Known:
        """What is known of its low bits; 0: of all. Its zero point has no others."""
        most = (1 << bits) - 1
        if not bits or 0 <= self.low <= self.high <= most:
            return self
        return replace(self, low=0, high=most, data=None if self.data is None else self.data & most)


@dataclass(frozen=True)
class SumBounds:
    """Bounds of the sums of an operator.

    Attributes:
        low, high: int64, the ends of whole sums, the bias included: of each output channel (of a
            grouped sum: channel and group), in any shape.
        least, most: the ends of all partial sums, in the order in which they are formed.
        terms: how many terms a sum has, the bias not counted.
    """

    low: Array
    high: Array
    least: Array
    most: Array
    terms: int


IntegerSums = Callable[[Any, Sequence[Known]], SumBounds]
"""(attributes, what is known of the operands) -> bounds of the integer sums.

Raises:
    UnsupportedError: they are not known, for example for as many terms as an input has elements.
"""


def of_weights(
    data: Known, zero_point: int, weights: Array, bias: Array | None, seen: Array | None = None
) -> SumBounds:
    """Sums over all axes but the first of constant weights [channels, inputs, *kernel].

    Args:
        seen: bool [masks, *kernel]: which taps lie inside the data, at the positions of the window;
            None: all of them, everywhere.
    """
    a, b = data.above(zero_point)
    rows = weights.reshape(*weights.shape[:2], -1)
    # The sums of positive weights, and of all of them, over the inputs: [channels, taps].
    whole = rows.sum(axis=1, dtype=np.int64)
    above = np.maximum(rows, 0).sum(axis=1, dtype=np.int64)
    below = whole - above
    low, high = above * a + below * b, above * b + below * a
    taps = rows.shape[2]
    masks = np.ones((1, taps), bool) if seen is None else seen.reshape(len(seen), taps)
    ends = (low @ masks.T).min(axis=1), (high @ masks.T).max(axis=1)
    if a <= 0 <= b:  # no term takes a sum back
        least, most = ends
    else:  # the terms of one sign come first
        far = b if a > 0 else a
        signed = (above * far).sum(axis=1), (below * far).sum(axis=1)
        least, most = np.minimum(*signed), np.maximum(*signed)
    return _with_bias(*ends, least, most, bias, rows.shape[1] * taps)


def _with_bias(
    low: Array, high: Array, least: Array, most: Array, bias: Array | None, terms: int
) -> SumBounds:
    """Bounds of sums whose last term is `bias`; a sum starts from zero."""
    last = np.zeros_like(low) if bias is None else bias.astype(np.int64)
    low, high = low + last, high + last
    least = np.minimum(np.minimum(least, 0), low)
    return SumBounds(low, high, least, np.maximum(np.maximum(most, 0), high), terms)


def of_products(a: tuple[int, int], b: tuple[int, int], terms: int) -> SumBounds:
    """Sums of products of any numbers in the range `a` with any in `b`."""
    corners = [x * y for x in a for y in b]
    return of_terms((min(corners), max(corners)), terms, terms)


def of_terms(term: tuple[int, int], fewest: int, terms: int) -> SumBounds:
    """Sums of `fewest` to `terms` numbers of one range."""
    low, high = (np.asarray([n], np.int64) for n in term)
    ends = np.minimum(low * fewest, low * terms), np.maximum(high * fewest, high * terms)
    partial = np.minimum(low, 0) * terms, np.maximum(high, 0) * terms
    return _with_bias(*ends, *partial, None, terms)


def taps_seen(window: Window, size: Dim, outputs: Dim) -> Array:
    """bool [distinct positions, taps]: which taps of a window lie inside the data; of an open size,
    any of them that are neighbours."""
    if not isinstance(size, int) or not isinstance(outputs, int):
        taps = np.arange(window.kernel)
        if not window.before and not window.after:
            return np.ones((1, window.kernel), bool)
        return np.asarray([(taps >= i) & (taps <= j) for i in taps for j in taps[i:]])
    seen = np.zeros((outputs, window.kernel), bool)
    for tap in range(window.kernel):
        seen[window.valid(size, outputs, tap)[0], tap] = True
    return np.unique(seen, axis=0)


def taps_of_positions(down: Window, across: Window, positions: Array) -> Array:
    """bool [distinct positions of the window, rows * columns of the kernel]: which taps meet
    elements of [n, channels, height, width] that can be other than the zero point, in any
    channel."""
    plane = positions.any(axis=(0, 1))
    plane = np.pad(plane, [(w.before, w.after) for w in (down, across)])
    views = np.lib.stride_tricks.sliding_window_view(plane, (down.span, across.span))
    seen = views[:: down.stride, :: across.stride, :: down.dilation, :: across.dilation]
    return np.unique(seen.reshape(-1, down.kernel * across.kernel), axis=0)


def taps_of_both(down: Array, across: Array) -> Array:
    """bool [masks, rows * columns of the kernel]: every pair of masks along the two axes."""
    both = down[:, None, :, None] & across[None, :, None, :]
    return both.reshape(len(down) * len(across), -1)


def counted(what: str, *sizes: Dim) -> int:
    """The product of known sizes.

    Raises:
        UnsupportedError: one is open.
    """
    total = 1
    for size in sizes:
        if not isinstance(size, int):
            raise UnsupportedError(
                f"its sums have as many terms as {what} ({size}), which is open: fix the shapes"
            )
        total *= size
    return total


def constant(what: str, operand: Known) -> Array:
    """The integers of an operand.

    Raises:
        UnsupportedError: it is not constant.
    """
    if operand.data is None:
        raise UnsupportedError(f"its {what} are not constant")
    return operand.data
