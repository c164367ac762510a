"""How large the tile of a product is that the warps of a block compute by products of small
matrices: by a model of what a multiprocessor needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as pairs

from compiler.scheduling.grids.products import Product
from compiler.scheduling.grids.tiles import LEAST, MULTIPROCESSORS, Tile, size_of
from compiler.scheduling.grids.words import LANES
from compiler.symbolic import Index, IntLike
from compiler.target.cuda import WARP

ROWS, COLUMNS = (16, 32, 64, 128), (16, 32, 64, 128, 256)
"""Of the tile of a block."""
OF_WARP = (16, 32, 64)
"""Rows or columns of a warp."""
STEPS = (8, 16, 32)
"""Words of the sum in shared memory at once."""
TOGETHER = 4
"""Words that a thread brings at once: 16 bytes."""
STAGES = (3, 4, 5)
"""Parts of operands in shared memory, if they are copied there without waiting; else it has 2."""
MOST_WARPS, SUMS, HELD = 8, 128, 24
"""Of a block; sums of a thread; words of the next part that a thread holds in registers."""
SHARED, OF_COPIES = 48 << 10, 99 << 10
"""Bytes of shared memory of a block: what each has, and what chips that copy without waiting give
at least (code for sm_80 runs on sm_86 and sm_89 too, which have not more)."""
OF_CHIP = 160 << 10
"""Of a multiprocessor of such chips, the larger ones (sm_80)."""
LINE = 8
"""Stretches of 16 bytes that shared memory moves at once: as many as it has banks for."""
PRODUCTS, NEAR, FAR = 2048, 128, 32
"""What a multiprocessor does a cycle: products of bytes, bytes from shared memory and from the L2
cache (of an A100: NVIDIA A100 Tensor Core GPU Architecture, 2020; of the cache two thirds of that,
since all multiprocessors want it at once)."""
WAIT, LATE, MEET, BUSY = 800, 800, 60, 8
"""Cycles until a block begins to multiply, that an operand is on its way at most, and between a
barrier and the first products, if no other block multiplies then; warps that keep a multiprocessor
busy."""
REST = 0.2
"""Share of what is done meanwhile that takes time nevertheless."""
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
    def shared(self) -> int:
        """Bytes of shared memory of a stage."""
        return (self.rows + self.columns) * self.steps * LANES

    def swizzled(self, row: IntLike, byte: IntLike) -> Index:
        """Where a byte of a row is in shared memory, from the beginning of the row on.

        Rows follow each other without gaps. The `n` stretches of 16 bytes of a row are turned by
        one for every eight stretches: stretch s of row r comes to (s + r // (8 / n)) mod n. So the
        banks of a stretch are (r mod 8 / n) * n + (s + r // (8 / n)) mod n. Lanes that read or
        write together have either one s and eight neighbouring r (ldmatrix), or all s of 8 / n
        neighbouring r, which begin at a multiple of that (copies): these are eight different ones
        both times.
        """
        row, byte, stretch = Index.of(row), Index.of(byte), TOGETHER * LANES
        n = self.steps // TOGETHER
        return (byte // stretch + row // max(LINE // n, 1)) % n * stretch + byte % stretch


def warp_tiles(steps: int, turned: bool, late: bool = False) -> list[WarpTile]:
    """The tiles of a sum of so many words. `late`: whether both operands are copied to shared
    memory without waiting."""
    out = []
    stages = STAGES if late else (2,)
    for rows, columns, a, b, part, ahead in pairs(ROWS, COLUMNS, OF_WARP, OF_WARP, STEPS, stages):
        if a > rows or b > columns or (part != STEPS[0] and steps < part):
            continue
        t = WarpTile(rows, columns, part, ahead, (a, b), turned)
        parts = -(-steps // part)
        if ahead > max(parts, stages[0]):
            continue
        fits = min(parts, ahead) * t.shared <= (OF_COPIES if late else SHARED)
        shared_out = all(n * part % (t.threads * TOGETHER) == 0 for n in (rows, columns))
        held = 0 if late else (rows + columns) * part // t.threads
        few = a * b // WARP <= SUMS and held <= HELD
        if t.threads <= MOST_WARPS * WARP and fits and shared_out and few:
            out.append(t)
    return out


def large_enough(p: Product) -> bool:
    """Whether a product is large enough for tiles."""
    return min(size_of(p)[:2]) >= LEAST


def choose_warp_tile(p: Product, turned: bool, late: bool = False) -> WarpTile:
    """The tile for a product (see `warp_tiles`)."""
    rows, columns, many = size_of(p)

    def time(t: WarpTile) -> tuple[float, int, int]:
        blocks = -(-rows // t.rows) * -(-columns // t.columns) * many
        return _time(t, blocks, -(-p.steps // t.steps), late), t.threads, -t.stages

    return min(warp_tiles(p.steps, turned, late), key=time)


def _time(t: WarpTile, blocks: int, parts: int, late: bool) -> float:
    """Cycles of the multiprocessor that does the most."""
    nbytes, threads = t.steps * LANES, t.threads
    warps = threads // WARP
    read = warps * sum(t.warp) * nbytes
    multiply = t.rows * t.columns * nbytes / PRODUCTS
    brought = t.shared if late else 2 * t.shared
    at_once = (multiply, (read + brought) / NEAR, t.shared / FAR)
    part = max(at_once) + REST * (sum(at_once) - max(at_once))
    registers = threads * (t.warp[0] * t.warp[1] // WARP + BESIDE)
    room = OF_CHIP if late else 2 * SHARED
    fit = min(REGISTERS // registers, room // (min(t.stages, parts) * t.shared))
    mine = -(-blocks // MULTIPROCESSORS)
    held = max(1, min(mine, fit))
    busy = min(1.0, held * warps / BUSY)
    each = held * part / busy
    if parts > 1:  # the others are on their way meanwhile
        each = max(each, LATE / (t.stages - 1)) + MEET / held
    store = held * t.rows * t.columns * LANES / FAR
    return mine / held * (parts * each + store) + -(-mine // held) * WAIT


__all__ = ["WarpTile", "choose_warp_tile", "large_enough", "warp_tiles"]
