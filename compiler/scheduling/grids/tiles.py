"""How large the tile of a product is that a block of threads computes: by a model of the time that
its instructions take."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product as pairs

from compiler.scheduling.grids.products import Product
from compiler.scheduling.grids.steps import BUILT_IN, WORD, Step
from compiler.symbolic import Index, Var

MULTIPROCESSORS = 108
"""Of a large chip; smaller ones are busy sooner."""
ASSUMED = 8
"""What a dimension is that is known at run time only."""
LEAST = 8
"""Rows, columns and steps from which on there are tiles."""
SIZES = {128: 8, 64: 4, 32: 4, 16: 2, 8: 1}
"""Rows or columns of a tile -> those of a thread."""
APART = 4
"""Elements between rows in shared memory that are written column by column."""
MOST, FEWEST = 256, 32
"""Threads of a block."""
REGISTERS = 64
"""Of a thread, for sums."""
WIDEST = 64
"""Rows or columns of a tile of numbers of two registers each."""
FULL = 10
"""Steps that may be done for each eight that are needed."""
MOST_STEPS, UNROLLED, HELD, SHARED = 64, 512, 16, 26 << 10
"""Of a tile: steps, products of a thread in these (or instructions of these that are unrolled),
registers for the next part, and bytes of shared memory, of which the smallest chip has room for two
blocks."""
LOOP = 8
"""Instructions of an iteration that is not unrolled."""
MOST_STAGES = 4
"""Of an operand that is copied: with more, parts wait in shared memory."""
TOGETHER = 8
"""Rows of tiles that are computed column by column."""
BUSY = 2
"""Warps that keep a quarter of a multiprocessor busy."""


@dataclass(frozen=True)
class Tile:
    """The part of a product that a block of threads computes.

    Attributes:
        rows, columns: of the result.
        steps: of the sum, whose operands are in shared memory at once.
        stages: such parts of an operand that shared memory holds, if it is copied there without
            waiting: all but one are on their way.
        unrolled: whether a thread's instructions for all of these follow each other.
    """

    rows: int
    columns: int
    steps: int
    stages: int = 2
    unrolled: bool = field(default=True, kw_only=True)

    @property
    def each(self) -> tuple[int, int]:
        """Rows and columns of a thread."""
        return SIZES[self.rows], SIZES[self.columns]

    @property
    def products(self) -> int:
        """Elements of a thread."""
        rows, columns = self.each
        return rows * columns

    @property
    def threads(self) -> int:
        """Threads of the block."""
        rows, columns = self.each
        return (self.rows // rows) * (self.columns // columns)


def choose_tile(p: Product, step: Step = BUILT_IN) -> Tile | None:
    """The tile for a product whose sums take such steps; None: it is too small for tiles."""
    rows, columns, many = size_of(p)
    if min(rows, columns, p.steps) < LEAST:
        return None
    best: tuple[float, Tile] | None = None
    for r, c in pairs(SIZES, SIZES):
        tile = tile_of(r, c, p.steps, step)
        if step.words > 1 and max(r, c) > WIDEST:
            continue
        if not FEWEST <= tile.threads <= MOST:
            continue
        if tile.products * step.registers > REGISTERS:
            continue
        blocks = -(-rows // r) * -(-columns // c) * many
        time = _time(tile, blocks, step)
        if best is None or time < best[0]:
            best = time, tile
    return None if best is None else best[1]


def tile_of(rows: int, columns: int, whole: int, step: Step = BUILT_IN) -> Tile:
    """A tile of a sum of `whole` steps.

    Steps of the sum at once: more where a thread does little in one, since each part of the
    operands is waited for; as many as there are registers for the next part and shared memory, not
    many more than are needed, and so many that every thread loads something."""
    one = Tile(rows, columns, LEAST)
    steps = max(LEAST, one.threads // min(rows, columns))
    while steps < MOST_STEPS:
        more = 2 * steps
        held = (rows + columns) * more // one.threads * step.words
        nbytes = 2 * more * (rows + columns) * WORD * step.words
        if one.products * more > UNROLLED or held > HELD or nbytes > SHARED:
            break
        if -(-whole // more) * more > -(-whole // LEAST) * FULL:
            break
        steps = more
    stages = SHARED // (steps * (rows + columns + APART) * WORD * step.words)
    stages = max(2, min(stages, MOST_STAGES))
    long = one.products * steps * step.instructions > UNROLLED
    return Tile(rows, columns, steps, stages, unrolled=not long)


def _time(t: Tile, blocks: int, step: Step) -> float:
    """Cycles of a step of the sum, in all."""
    rows, columns = t.each
    loads = (rows + columns) + 2 * (t.rows + t.columns) / t.threads
    alone = rows * step.of_row + columns * step.of_column + (0 if t.unrolled else LOOP)
    warps = -(-t.threads // 32) * -(-blocks // MULTIPROCESSORS)
    at_once = min(4.0, warps / BUSY)
    return warps * (t.products * step.instructions + alone + loads) / at_once


def in_groups(number: Index, rows: Index, columns: Index) -> tuple[Index, Index]:
    """Which row and column of tiles a block computes, of `rows` and `columns` of these.

    Blocks that run at a time should read few different parts of the operands, which then come from
    memory once and stay in the L2 cache: where there are more tiles than multiprocessors, tiles go
    column by column through groups of up to `TOGETHER` rows (CUTLASS, "threadblock
    rasterization"); else row by row.
    """
    r, c = rows.constant(), columns.constant()
    group = 1
    if r is not None and c is not None and r * c > MULTIPROCESSORS:
        group = next(n for n in range(TOGETHER, 0, -1) if r % n == 0)
    if group == 1:
        return number // columns, number % columns
    within = number % (columns * group)
    return number // (columns * group) * group + within % group, within // group


def size_of(p: Product) -> tuple[int, int, int]:
    """Rows, columns, and how many such products there are; see ASSUMED."""
    rows, columns, many = (_assumed(i) for i in (p.rows.length, p.columns.length, _both(p)))
    return rows, columns, many


def _both(p: Product) -> Index:
    out = Index.of(1)
    for f in p.both:
        out = out * f.extent
    return out


def _assumed(i: Index) -> int:
    known: dict[Var, int] = dict.fromkeys(i.vars(), ASSUMED)
    return int(i.value(known))


__all__ = ["Tile", "choose_tile", "in_groups", "size_of", "tile_of"]
