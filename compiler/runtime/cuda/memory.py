"""A pool of device memory: what is given back is kept for the next who asks, since the driver takes
its time, and waits for the device."""

from __future__ import annotations

import bisect
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from compiler.errors import OutOfMemoryError
from compiler.runtime.cuda.driver import Driver

STEP = 512
"""Sizes are multiples of this."""
LARGE_STEP = 1 << 20
"""Those from LARGE on are multiples of this."""
LARGE = 4 << 20
SPARE = 4
"""A block that is larger than what is asked for by more than a fourth of that is left alone."""


@dataclass(frozen=True)
class Block:
    """Memory of the device: at `address`, at least as many bytes as were asked for."""

    address: int
    nbytes: int


@dataclass(frozen=True)
class Statistics:
    """Bytes of device memory: what the driver has given (`held`), what of that is in use now
    (`used`), the most that ever was (`peak`), and how many blocks are in use."""

    held: int
    used: int
    peak: int
    blocks: int


class Holder(Protocol):
    """Who keeps memory that he could do without for now."""

    def let_go(self) -> None:
        """Give back what is not needed at this moment. It may not wait for a thread."""


class Pool:
    """Blocks of one device's memory: the smallest that fits, if it is not much larger.

    `give` may be called anywhere, by finalizers too: it takes no lock. Methods may be called from
    several threads.
    """

    def __init__(self, driver: Driver):
        self._driver = driver
        self._lock = threading.RLock()
        self._back: deque[tuple[Block, bool]] = deque()
        self._free: list[tuple[int, int]] = []  # (bytes, address), in order
        self._used: dict[int, int] = {}
        self._held = self._peak = 0
        self._unsettled: set[int] = set()
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def take(self, nbytes: int, what: str) -> Block:
        """A block of `nbytes` or more bytes, with anything in it, at a multiple of 256.

        Args:
            what: what it is for, in an error.

        Raises:
            OutOfMemoryError: the device has no room, though all that is free has been given back to
                it, as has been what others did not need just now.
        """
        size = rounded(nbytes)
        with self._lock:
            self._drain()
            found = self._fitting(size) or self._fresh(size, what)
            self._used[found.address] = found.nbytes
            self._peak = max(self._peak, sum(self._used.values()))
            return found

    def give(self, block: Block, settled: bool = True) -> None:
        """Take a block back. `settled`: nothing on the device uses it any more; else the device is
        waited for before somebody else gets it."""
        self._back.append((block, settled))

    def release(self) -> None:
        """Give all that is free back to the device."""
        with self._lock:
            self._drain()
            while self._free:
                size, address = self._free.pop()
                self._held -= size
                self._unsettled.discard(address)
                self._driver.free(address)  # which waits for the device

    def statistics(self) -> Statistics:
        """How much there is now."""
        with self._lock:
            self._drain()
            used = sum(self._used.values())
            return Statistics(self._held, used, self._peak, len(self._used))

    def _drain(self) -> None:
        while self._back:
            block, settled = self._back.popleft()
            del self._used[block.address]
            bisect.insort(self._free, (block.nbytes, block.address))
            if not settled:
                self._unsettled.add(block.address)

    def _fitting(self, size: int) -> Block | None:
        k = bisect.bisect_left(self._free, (size, 0))
        if k == len(self._free) or self._free[k][0] > size + size // SPARE:
            return None
        nbytes, address = self._free[k]
        if address in self._unsettled:
            self._driver.synchronize(None)
            self._unsettled.clear()
        del self._free[k]
        return Block(address, nbytes)

    def _fresh(self, size: int, what: str) -> Block:
        try:
            return self._allocated(size)
        except OutOfMemoryError:
            self.release()
        try:
            return self._allocated(size)
        except OutOfMemoryError:
            for holder in list(self.holders):
                holder.let_go()
            self.release()
        try:
            return self._allocated(size)
        except OutOfMemoryError as error:
            raise self._no_room(size, what, error) from error

    def _allocated(self, size: int) -> Block:
        address = self._driver.allocate(size)
        self._held += size
        return Block(address, size)

    def _no_room(self, size: int, what: str, error: Exception) -> OutOfMemoryError:
        properties = self._driver.properties
        free, used = self._driver.free_bytes(), sum(self._used.values())
        return OutOfMemoryError(
            f"no memory on {properties.name} for {quantity(size)} of {what}: "
            f"{quantity(free)} of its {quantity(properties.memory)} are free, and this process "
            f"uses {quantity(used)} there ({error})"
        )


def rounded(nbytes: int) -> int:
    """The size of the block for so many bytes."""
    step = LARGE_STEP if nbytes >= LARGE else STEP
    return max(step, -(-nbytes // step) * step)


def quantity(nbytes: int) -> str:
    """Bytes for people."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} bytes"
