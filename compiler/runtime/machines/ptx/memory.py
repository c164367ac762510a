"""Memory of a device: allocations at addresses that do not come back soon."""

from __future__ import annotations

import bisect
import mmap
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import MachineError, OutOfMemoryError
from compiler.runtime.machines.ptx.program import PtxModule

Array = npt.NDArray[Any]

BASE = 0x7F00_0000_0000
"""Where global memory begins; all generic addresses from here on are global."""
ALIGN = 256
_NEW = 0xFF
"""What fresh memory holds in every byte: NaN as floats, -1 as integers, so that who reads what
nobody wrote is found out."""
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Area:
    """Bytes in one piece, seen as any dtype."""

    def __init__(self, data: Array):
        self.data = data
        self._views: dict[Any, Array] = {}

    def view(self, dtype: Any) -> Array:
        """The same bytes as elements of a dtype."""
        found = self._views.get(dtype)
        if found is None:
            size = np.dtype(dtype).itemsize
            found = self._views[dtype] = self.data[: len(self.data) // size * size].view(dtype)
        return found


class Memory:
    """Global memory.

    Attributes:
        limit: bytes that may be allocated at a time.
        used: bytes that are.
    """

    def __init__(self, limit: int = 1 << 30):
        if limit <= 0:
            raise MachineError("a device needs memory: its limit is a positive number of bytes")
        self.limit, self.used = limit, 0
        # Freed addresses come back when the rest is used up.
        self._span = limit + min(limit, 64 << 20) + (1 << 20)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        try:
            self._pages = mmap.mmap(-1, self._span, flags)
        except (OSError, ValueError, OverflowError) as e:
            raise OutOfMemoryError(f"a device of {limit} bytes does not fit here: {e}") from None
        self.area = Area(np.frombuffer(self._pages, np.uint8))
        self._top = ALIGN
        self._starts: list[int] = []  # offsets, sorted; _ends beside them
        self._ends: list[int] = []
        self._table: tuple[Array, Array] | None = None
        self.modules: weakref.WeakKeyDictionary[PtxModule, dict[str, int]] = (
            weakref.WeakKeyDictionary()
        )

    def allocate(self, nbytes: int) -> int:
        """The address of `nbytes` bytes, a multiple of 256 and never 0. They hold 255.

        Raises:
            OutOfMemoryError: there are not as many.
        """
        if nbytes < 0:
            raise MachineError(f"no memory has {nbytes} bytes")
        if self.used + nbytes > self.limit:
            raise OutOfMemoryError(
                f"the device has {self.limit} bytes of memory, of which {self.used} are used: "
                f"{nbytes} more are too many"
            )
        start = self._room(max(nbytes, 1))
        k = bisect.bisect(self._starts, start)
        self._starts.insert(k, start)
        self._ends.insert(k, start + nbytes)
        self._table = None
        self.used += nbytes
        self.area.data[start : start + nbytes] = _NEW
        return BASE + start

    def _room(self, nbytes: int) -> int:
        padded = -(-nbytes // ALIGN) * ALIGN
        if self._top + padded <= self._span:
            start, self._top = self._top, self._top + padded
            return start
        at = ALIGN
        for start, end in zip(self._starts, self._ends, strict=True):
            if start - at >= padded:
                return at
            at = -(-max(end, start + 1) // ALIGN) * ALIGN
        if self._span - at >= padded:
            return at
        raise OutOfMemoryError(f"the device has no {nbytes} bytes of memory in one piece")

    def free(self, address: int) -> None:
        """Give back what `allocate` gave.

        Raises:
            MachineError: it gave no such address, or that is free already.
        """
        start = address - BASE
        k = bisect.bisect_left(self._starts, start)
        if k == len(self._starts) or self._starts[k] != start:
            raise MachineError(f"nothing is allocated at address {address:#x}, which is freed")
        del self._starts[k]
        end = self._ends.pop(k)
        self._table = None
        self.used -= end - start
        if end - start >= 1 << 16:
            first, last = -(-start // mmap.PAGESIZE), end // mmap.PAGESIZE
            self._pages.madvise(
                mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
            )

    def write(self, address: int, content: Array | bytes | bytearray | memoryview) -> None:
        """Copy an array, or bytes, to an address.

        Raises:
            MachineError: not all of that is inside one allocation.
        """
        if isinstance(content, np.ndarray):
            new = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        else:
            new = np.frombuffer(content, np.uint8)
        start = self._inside(address, len(new))
        self.area.data[start : start + len(new)] = new

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes from an address on.

        Raises:
            MachineError: not all of them are inside one allocation.
        """
        start = self._inside(address, nbytes)
        return self.area.data[start : start + nbytes].tobytes()

    def zero(self, address: int | None = None, nbytes: int = 0) -> None:
        """Make bytes zero; without an address, all that is allocated.

        Raises:
            MachineError: not all of them are inside one allocation.
        """
        if address is None:
            for start, end in zip(self._starts, self._ends, strict=True):
                self.area.data[start:end] = 0
            return
        start = self._inside(address, nbytes)
        self.area.data[start : start + nbytes] = 0

    def _inside(self, address: int, nbytes: int) -> int:
        start = address - BASE
        k = bisect.bisect(self._starts, start) - 1
        if nbytes < 0 or k < 0 or start + nbytes > self._ends[k]:
            raise MachineError(
                f"{nbytes} bytes at address {address:#x} are not inside of one allocation"
            )
        return start

    def inside(self, offsets: Array, nbytes: int) -> Array | None:
        """Which of some offsets from `BASE` have `nbytes` bytes inside of one allocation; None: all
        of them."""
        if not len(offsets):
            return None
        low, high = int(offsets.min()), int(offsets.max())
        k = bisect.bisect(self._starts, low) - 1
        if k >= 0 and high + nbytes <= self._ends[k]:
            return None
        if not self._starts:
            return np.zeros(len(offsets), np.bool_)
        if self._table is None:
            self._table = np.array(self._starts, np.int64), np.array(self._ends, np.int64)
        starts, ends = self._table
        at = np.searchsorted(starts, offsets, "right") - 1
        good: Array = (at >= 0) & (offsets + nbytes <= ends[np.maximum(at, 0)])
        return None if bool(good.all()) else good

    def addresses_of(self, module: PtxModule) -> dict[str, int]:
        """Where the variables of a module are, which stay there as long as it does."""
        known = self.modules.get(module)
        if known is not None:
            return known
        known = {}
        mine = [v for v in module.variables.values() if v.space in ("global", "const")]
        for v in mine:
            known[v.name] = self.allocate(v.size)
        for v in mine:
            content = bytearray(v.initial if v.initial is not None else bytes(v.size))
            for at, symbol in v.addresses:
                if symbol.name not in known:
                    raise MachineError(
                        f"variable {v.name!r} of the PTX has the address of {symbol.name!r}, which "
                        "is no variable in global memory"
                    )
                content[at : at + 8] = (known[symbol.name] + symbol.offset).to_bytes(8, "little")
            self.write(known[v.name], bytes(content))
        self.modules[module] = known
        return known
