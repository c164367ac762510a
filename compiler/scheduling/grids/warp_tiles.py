"""How large the tile of a product is that the warps of a block compute by products of small
matrices: by a model of what a multiprocessor needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as pairs

from compiler.scheduling.grids.products import Product
from compiler.scheduling.grids.tiles import LEAST, MULTIPROCESSORS, Tile, size_of
from compiler.scheduling.grids.words import LANES
from compiler.target.cuda import WARP

ROWS, COLUMNS = (16, 32, 64, 128), (16, 32, 64, 128, 256)
"""Of the tile of a block."""
OF_WARP = (16, 32, 64)
"""Rows or columns of a warp."""
STEPS = (8, 16)
"""Words of the sum in shared memory at once."""
TOGETHER = 4
"""Words that a thread brings at once: 16 bytes."""
MOST_WARPS, SUMS, HELD = 8, 128, 24
"""Of a block; sums of a thread; words of the next part that a thread holds."""
SHARED = 48 << 10
"""Bytes of shared memory of a block."""
PRODUCTS, NEAR, FAR = 2048, 128, 40
"""What a multiprocessor does a cycle: products of bytes, bytes from shared memory and from the L2
cache (of an A100: NVIDIA A100 Tensor Core GPU Architecture, 2020)."""
WAIT, BUSY = 800, 8
"""Cycles until the first operands are there; warps that keep a multiprocessor busy."""
BESIDE, REGISTERS = 64, 1 << 16
"""Registers of a thread beside its sums, and of a multiprocessor."""


@dataclass(frozen=True)
class WarpTile(Tile):
    """The part of a product that a block of warps computes; steps are words.

    Attributes:
        warp: rows and columns of a warp.
        turned: whether rows of the product are columns of the instruction.
    """

    warp: tuple[int, int] = (16, 16)
    turned: bool = False

    @property
    def each(self) -> tuple[int, int]:
        """Rows and columns of a thread."""
        rows, columns = self.warp
        return (rows // 4, columns // 8) if self.turned else (rows // 8, columns // 4)

    @property
    def warps(self) -> tuple[int, int]:
        """Warps along rows and along columns."""
        return self.rows // self.warp[0], self.columns // self.warp[1]

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return self.warps[0] * self.warps[1] * WARP

    @property
    def pitch(self) -> int:
        """Bytes from a row in shared memory to the next: 16 more than it has, so that eight rows
        of 16 bytes lie in different banks."""
        return (self.steps + TOGETHER) * LANES


def warp_tiles(steps: int, turned: bool) -> list[WarpTile]:
    """The tiles of a sum of so many words."""
    out = []
    for rows, columns, a, b, part in pairs(ROWS, COLUMNS, OF_WARP, OF_WARP, STEPS):
        if a > rows or b > columns or (part != STEPS[0] and steps < part):
            continue
        t = WarpTile(rows, columns, part, (a, b), turned)
        turns = 2 if steps > part else 1
        fits = turns * t.pitch * (rows + columns) <= SHARED
        shared_out = all(n * part % (t.threads * TOGETHER) == 0 for n in (rows, columns))
        held = (rows + columns) * part // t.threads
        few = a * b // WARP <= SUMS and held <= HELD
        if t.threads <= MOST_WARPS * WARP and fits and shared_out and few:
            out.append(t)
    return out


def choose_warp_tile(p: Product, turned: bool) -> WarpTile | None:
    """The tile for a product; None: it is too small for tiles."""
    rows, columns, many = size_of(p)
    if min(rows, columns) < LEAST:
        return None

    def time(t: WarpTile) -> tuple[float, int]:
        blocks = -(-rows // t.rows) * -(-columns // t.columns) * many
        return _time(t, blocks, -(-p.steps // t.steps)), t.threads

    return min(warp_tiles(p.steps, turned), key=time)


def _time(t: WarpTile, blocks: int, parts: int) -> float:
    """Cycles of the multiprocessor that does the most."""
    nbytes, threads = t.steps * LANES, t.threads
    both, warps = (t.rows + t.columns) * nbytes, threads // WARP
    read = warps * sum(t.warp) * nbytes
    multiply = t.rows * t.columns * nbytes / PRODUCTS
    part = max(multiply, (read + 2 * both) / NEAR, both / FAR)
    registers = threads * (t.warp[0] * t.warp[1] // WARP + BESIDE)
    fit = min(REGISTERS // registers, 2 * SHARED // (2 * t.pitch * (t.rows + t.columns)))
    mine = -(-blocks // MULTIPROCESSORS)
    at_once = max(1, min(mine, fit))
    busy = min(1.0, at_once * warps / BUSY)
    store = t.rows * t.columns * LANES / FAR
    return mine * (parts * part + store) / busy + -(-mine // at_once) * WAIT


__all__ = ["WarpTile", "choose_warp_tile", "warp_tiles"]
