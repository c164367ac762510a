"""Functions that are given as lists of results, as shared multiplexers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from datatypes.hardware.netlist import Bits, Circuit


def looked_up(
    c: Circuit, index: Bits, results: Sequence[int] | npt.NDArray[np.integer], width: int
) -> Bits:
    """[width] `results[index]`, for 2**index.width results.

    Every bit of the result is a reduced ordered decision diagram over the bits of the index, from
    the highest down; equal parts are there once (R. Bryant, "Graph-Based Algorithms for Boolean
    Function Manipulation", 1986).
    """
    table = np.asarray([int(result) for result in results], object)
    assert len(table) == 1 << index.width
    known: dict[bytes, Bits] = {}
    bits = []
    for place in range(width):
        column = np.asarray((table >> place) & 1, np.uint8)
        bits.append(_diagram(c, index, column, known))
    return c.joint(*reversed(bits))


def pairs_looked_up(
    c: Circuit, a: Bits, b: Bits, results: Sequence[int] | npt.NDArray[np.integer], width: int
) -> Bits:
    """[width] `results[a, b]`, the operands of one width, a in the upper bits of the index.

    The order of the bits is the better of two: operand by operand, or their bits in turn, as suits
    what is nearly a sum.
    """
    table = np.asarray([int(result) for result in results], np.int64)
    pairs = c.joint(a, b)
    turns = [place + side * a.width for place in range(a.width) for side in (0, 1)]
    index = np.arange(len(table))
    from_turns = sum(((index >> k) & 1) << place for k, place in enumerate(turns))
    mixed = table[from_turns]
    if _size(mixed, width) < _size(table, width):
        pairs, table = c.joint(*(pairs[place] for place in reversed(turns))), mixed
    return looked_up(c, pairs, table, width)


def _size(table: npt.NDArray[np.int64], width: int) -> int:
    """Parts of the diagrams of all bits: at every level the different ones of two halves that
    differ."""
    found = 0
    parts = np.stack([table >> place & 1 for place in range(width)])
    while parts.shape[1] > 1:
        low, high = parts[:, ::2], parts[:, 1::2]
        pairs = low * (parts.max() + 1) + high
        found += len(np.unique(pairs[low != high]))
        parts = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape)
    return found


def _diagram(
    c: Circuit, index: Bits, column: npt.NDArray[np.uint8], known: dict[bytes, Bits]
) -> Bits:
    """One bit of a table, by the lower bits of the index."""
    if not column.any():
        return c.constant(0, 1)
    if column.all():
        return c.constant(1, 1)
    key = column.tobytes()
    if key not in known:
        half = len(column) // 2
        low, high = column[:half], column[half:]
        if np.array_equal(low, high):
            known[key] = _diagram(c, index, low, known)
        else:
            level = half.bit_length() - 1
            yes, no = (_diagram(c, index, part, known) for part in (high, low))
            known[key] = index[level].chosen(yes, no)
    return known[key]
