"""The tile of a convolution on an accelerator: the quickest of the most promising ones, which are
simulated without their numbers."""

from __future__ import annotations

import functools
import itertools

from compiler.codegen.accel.convolution import Finish, Places, convolution
from compiler.codegen.accel.instructions import encoded
from compiler.runtime.accel.simulator import Report, simulator
from compiler.scheduling.accelerator_tiles import Convolution, Tile, tiles
from compiler.target.accelerator import Design

_ALIGNED = 64


def places(c: Convolution, d: Design) -> tuple[Places, int]:
    """Where the arrays of a convolution are in a memory of its own, and how large that is."""
    entry = simulator(d).entry_bytes
    tall, wide = c.out_size
    sizes = (
        c.operands * c.ins * c.height * c.width * entry[0],
        c.weighted * entry[1],
        c.outs * 2 * entry[2],
        c.outs * c.planes * tall * wide * entry[3],
    )
    ends = list(itertools.accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes))
    return Places(0, ends[0], ends[1], ends[2], entry), ends[3]


@functools.lru_cache(maxsize=4096)
def best_tile(c: Convolution, d: Design, most: int = 24) -> tuple[Tile, Report]:
    """The quickest tile, and what it costs.

    Raises:
        UnsupportedError: a buffer cannot hold one tile; says how many bytes that needs.
    """
    found = [(t, timed(c, t, d)) for t in tiles(c, d, most)]
    return min(found, key=lambda f: f[1].cycles)


def timed(c: Convolution, t: Tile, d: Design) -> Report:
    """What a convolution costs that is cut into these tiles."""
    stream = encoded(convolution(c, t, d, places(c, d)[0], Finish()))
    return simulator(d).run(stream, None, functional=False)
