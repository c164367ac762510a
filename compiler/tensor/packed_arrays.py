"""numpy twin of the schedule primitive `pack`: constants laid out as a kernel walks them."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.symbolic import Index, Var
from compiler.types.dtypes import Array

ALIGN = 64
"""Bytes that the address of an array made here is a multiple of: a cache line, a vector."""
LARGE_PAGE = 2 << 20
"""Bytes of a large page: reading from memory is up to twice as fast as with those of 4 KiB."""
ROOM = 4 * LARGE_PAGE
"""Bytes of what `Together` asks for at once."""


def aligned_empty(shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
    """An uninitialized contiguous array whose data starts at a multiple of ALIGN bytes, or of a
    large page where it takes half of one or more.

    Raises:
        MemoryError, ValueError: there is not that much memory; numpy says the latter of sizes
            beyond all.
    """
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size >= LARGE_PAGE // 2:
        return _in_large_pages(size).view(dtype).reshape(shape)
    raw = np.empty(size + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size].view(dtype).reshape(shape)


def _in_large_pages(size: int) -> Array:
    """Bytes that begin a large page, in pages that the system is asked to make large, where it has
    such. They come from the system and not from an allocator: what that hands out again stays in
    the small pages that it was first written in, and so two builds of one network took times up to
    5 % apart."""
    whole = -(-size // LARGE_PAGE) * LARGE_PAGE  # for the end to lie in a large page, too
    if hasattr(mmap, "MADV_HUGEPAGE"):
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            pages = mmap.mmap(-1, whole + LARGE_PAGE, flags=private)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for {size / 2**30:.3g} GiB: {error}") from None
        with contextlib.suppress(OSError):  # a system without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(pages, np.uint8)
    else:
        raw = np.empty(whole + LARGE_PAGE, np.uint8)
    start = -raw.ctypes.data % LARGE_PAGE
    return raw[start : start + size]


class Together:
    """Arrays that lie one behind the other in large pages: where each has small pages of its own,
    their addresses are chance, and with them what displaces what in caches, and a processor knows
    few of those pages at a time."""

    def __init__(self) -> None:
        self._room = np.empty(0, np.uint8)

    def empty(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> Array:
        """As `aligned_empty`."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size >= ROOM // 2:
            return aligned_empty(shape, dtype)
        if size > self._room.nbytes:
            self._room = aligned_empty((ROOM,), np.dtype(np.uint8))
        out, self._room = self._room[:size], self._room[-(-size // ALIGN) * ALIGN :]
        return out.view(dtype).reshape(shape)


def aligned_copy(a: Array) -> Array:
    """A contiguous copy whose data starts at a multiple of ALIGN bytes."""
    out = aligned_empty(a.shape, a.dtype)
    out[...] = a
    return out


@dataclass(frozen=True)
class IndexMap:
    """The order of a packed array: the element at `vars` is the source's element at `idx`, or zero
    where that lies outside the source. Every variable has a known largest extent."""

    vars: tuple[Var, ...]
    idx: tuple[Index, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the packed array."""
        highs = [v.extent.range()[1] if v.extent is not None else None for v in self.vars]
        assert None not in highs, "pack refuses loops of unknown extent"
        return tuple(n for n in highs if n is not None)


def pack_array(order: IndexMap, source: Array) -> Array:
    """`source` laid out in `order`, as an aligned array."""
    out = aligned_empty(order.shape, source.dtype)
    pack_into(out, order, source)
    return out


def pack_into(out: Array, order: IndexMap, source: Array) -> None:
    """Lay `source` out in `order`, in an array of that shape."""
    view = _strided(order, source)
    if view is None:
        out[...] = _gathered(order, source)
    elif out.ndim > 1 and out.shape[-1] <= 8:
        # numpy's innermost loop is that of the last axis: a short one costs more than it copies.
        for k in range(out.shape[-1]):
            out[..., k] = view[..., k]
    else:
        out[...] = view


def _strided(order: IndexMap, source: Array) -> Array | None:
    """The packed array as a view of the (padded) source, if every index is a linear form."""
    shape, position = order.shape, {v: k for k, v in enumerate(order.vars)}
    steps = np.zeros((len(order.idx), len(shape)), np.int64)
    for d, i in enumerate(order.idx):
        for atom, factor in i.terms.items():
            if not isinstance(atom, Var):
                return None
            steps[d, position[atom]] = factor
    if 0 in shape or 0 in source.shape:
        return None
    reach = steps * (np.array(shape, np.int64) - 1)
    start = np.array([i.const for i in order.idx], np.int64)
    low = start + np.minimum(reach, 0).sum(1)
    high = start + np.maximum(reach, 0).sum(1)
    before = np.maximum(0, -low)
    after = np.maximum(0, high + 1 - np.array(source.shape, np.int64))
    if before.any() or after.any():
        source = np.pad(source, np.stack([before, after], 1))
    first = source[tuple(slice(int(k), None) for k in start + before)]
    strides = np.array(source.strides, np.int64) @ steps
    return np.lib.stride_tricks.as_strided(first, shape, tuple(int(n) for n in strides))


def _gathered(order: IndexMap, source: Array) -> Array:
    """The packed array, element by element."""
    env = dict(zip(order.vars, np.ogrid[tuple(slice(0, n) for n in order.shape)], strict=True))
    at = [np.broadcast_to(i.value(env), order.shape) for i in order.idx]
    inside = np.ones(order.shape, bool)
    for a, n in zip(at, source.shape, strict=True):
        inside &= (a >= 0) & (a < n)
    clamped = tuple(np.clip(a, 0, n - 1) for a, n in zip(at, source.shape, strict=True))
    return np.where(inside, source[clamped], 0).astype(source.dtype)
