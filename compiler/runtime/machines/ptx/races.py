"""Races for shared memory: two warps at one byte, one of which stores, with no barrier between."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_NOBODY = -1
_SEVERAL = -2


class Races:
    """Which warp read and stored which byte since its block last met at a barrier.

    Attributes:
        arriving: bytes that an asynchronous copy will store, not waited for yet.
    """

    def __init__(self, size: int, block: Array, padded: int):
        self.warp = (np.arange(len(block)) // 32).astype(np.int32)
        self.stored = np.full(size, _NOBODY, np.int32)
        self.read = np.full(size, _NOBODY, np.int32)
        self.arriving = np.zeros(size, np.bool_)

    def load(self, at: Array, nbytes: int, lanes: Array) -> tuple[str, int] | None:
        """Lanes read bytes. Returns what is wrong and the lane, if something is."""
        which, me = self._bytes(at, nbytes, lanes)
        bad = (self.stored[which] != _NOBODY) & (self.stored[which] != me)
        if bad.any():
            return "it reads what another warp stores with no barrier between", self._lane(
                bad, lanes, nbytes
            )
        if self.arriving[which].any():
            return "it reads bytes of an asynchronous copy that was not waited for", self._lane(
                self.arriving[which], lanes, nbytes
            )
        old = self.read[which]
        self.read[which] = np.where((old == _NOBODY) | (old == me), me, _SEVERAL)
        others = self.read[which] != me  # of several in this instruction, the last one is there
        self.read[which[others]] = _SEVERAL
        return None

    def store(self, at: Array, nbytes: int, lanes: Array) -> tuple[str, int] | None:
        """Lanes store bytes. Returns what is wrong and the lane, if something is."""
        which, me = self._bytes(at, nbytes, lanes)
        stored, read = self.stored[which], self.read[which]
        bad = ((stored != _NOBODY) & (stored != me)) | ((read != _NOBODY) & (read != me))
        if not bad.any():
            self.stored[which] = me
            bad = self.stored[which] != me
        if bad.any():
            return "it stores where another warp reads or stores with no barrier between", (
                self._lane(bad, lanes, nbytes)
            )
        return None

    def forget(self, low: int, high: int) -> None:
        """The block whose shared memory this is has met at a barrier."""
        self.stored[low:high] = _NOBODY
        self.read[low:high] = _NOBODY

    def _bytes(self, at: Array, nbytes: int, lanes: Array) -> tuple[Array, Array]:
        which = (at[:, None] + np.arange(nbytes)).reshape(-1)
        return which, np.repeat(self.warp[lanes], nbytes)

    def _lane(self, bad: Array, lanes: Array, nbytes: int) -> int:
        return int(lanes[int(np.argmax(bad)) // nbytes])
