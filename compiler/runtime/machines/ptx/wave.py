"""Blocks that run at the same time: registers of all of their lanes, and the memory they see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import DtypelabError
from compiler.runtime.machines.ptx.memory import BASE, Area, Memory
from compiler.runtime.machines.ptx.program import Function, Variable
from compiler.runtime.machines.ptx.races import Races

Array = npt.NDArray[Any]

WARP = 32
FIRST = 1024
"""The first address of shared and of local memory in their spaces: what is below is nobody's, so
that null pointers are found."""
SHARED_WINDOW = 1 << 40
LOCAL_WINDOW = 2 << 40
"""Where generic addresses of shared and of local memory begin."""
_GAP = 16
"""Bytes between two variables of shared memory that are nobody's, where their alignment allows."""

VIEWS = {
    "b1": (1, np.bool_), "u16": (16, np.uint16), "s16": (16, np.int16), "f16": (16, np.float16),
    "u32": (32, np.uint32), "s32": (32, np.int32), "f32": (32, np.float32),
    "u64": (64, np.uint64), "s64": (64, np.int64), "f64": (64, np.float64),
}  # fmt: skip
"""Ways to look at registers: how many bits they have, dtype."""
_STORED = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class Fault(DtypelabError):
    """An instruction cannot be executed. `lane`: of the wave, whose thread is to be named."""

    def __init__(self, what: str, lane: int | None = None):
        super().__init__(what)
        self.lane = lane


class Frame:
    """Registers and parameters of one call of a function."""

    def __init__(self, function: Function, lanes: int):
        self.function = function
        files: dict[int, Array] = {
            b: np.zeros((n, lanes), _STORED[b]) for b, n in function.registers.items()
        }
        self.views: dict[str, list[Array]] = {
            name: list(files[bits].view(dtype)) for name, (bits, dtype) in VIEWS.items()
        }
        self.params = {
            v.name: np.zeros((lanes, v.size), np.uint8)
            for v in function.variables.values()
            if v.space == "param"
        }


@dataclass
class Layout:
    """Where variables of shared or of local memory are.

    Attributes:
        at: address of each, by name.
        size: bytes in all, from `FIRST` on.
        owned: of every byte, whether it is part of a variable; `count`: how many up to it are.
    """

    at: dict[str, int]
    size: int
    owned: Array
    count: Array


def laid_out(variables: Iterable[Variable], dynamic: int = 0) -> Layout:
    """Variables one behind the other; those of no size share the `dynamic` bytes at the end."""
    at, end, owned = {}, 0, []
    open_ended = []
    for v in variables:
        if not v.size:
            open_ended.append(v)
            continue
        start = -(-end // v.align) * v.align
        at[v.name] = FIRST + start
        owned.append((start, start + v.size))
        end = start + v.size + _GAP
    align = max([16, *(v.align for v in open_ended)])
    start = -(-end // align) * align
    at |= {v.name: FIRST + start for v in open_ended}
    owned.append((start, start + dynamic))
    size = -(-(start + dynamic) // 128) * 128 + 128
    mask = np.zeros(size, np.bool_)
    for low, high in owned:
        mask[low:high] = True
    return Layout(at, size, mask, np.concatenate([[0], np.cumsum(mask)]))


@dataclass
class Statistics:
    """What a launch did.

    Attributes:
        instructions: by opcode, how often warps executed it.
        threads: by opcode, how often threads did.
        divergent: how often the lanes of a warp took different branches.
        steps: instructions that the interpreter executed, each for many warps.
        barriers: how often blocks met at a barrier.
    """

    instructions: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    divergent: int = 0
    steps: int = 0
    barriers: int = 0


@dataclass
class Pending:
    """An asynchronous copy into shared memory that has not been waited for.

    Attributes:
        lanes: that issued it.
        groups: of each, the number of its group.
        at: where in shared memory each lane's bytes go.
        content: the bytes (lanes, how many).
    """

    lanes: Array
    groups: Array
    at: Array
    content: Array


class Barriers:
    """Who waits at which barrier.

    Attributes:
        next: of each lane that waits, the instruction it goes on with; -1: it does not wait.
    """

    def __init__(self, wave: Wave):
        self.wave = wave
        self.next = np.full(wave.width, -1)
        self.ident = np.zeros(wave.width, np.int64)
        self.arrived: dict[int, Array] = {}

    def arrive(self, ident: int, needed: int | None, pc: int, wait: bool = True) -> bool:
        """The active lanes come to a barrier that `needed` threads (None: all of the block) must
        come to. Returns whether they simply go on; else `Wave.moved` holds who does.

        Raises:
            Fault: they are in a function, and do not complete the barrier.
        """
        st = self.wave
        if needed is None and st.count == st.per_block * len(st.blocks):
            self.complete(np.ones(len(st.blocks), np.bool_))
            return True
        arrived = self.arrived.setdefault(ident, np.zeros(len(st.blocks), np.int64))
        arrived += np.bincount(st.block[st.lanes], minlength=len(st.blocks))
        if wait:
            self.next[st.lanes], self.ident[st.lanes] = pc + 1, ident
        full = arrived >= (st.per_block if needed is None else needed)
        if full.any():
            self.complete(full)
            arrived[full] = 0
            free = np.flatnonzero((self.next >= 0) & (self.ident == ident) & full[st.block])
            for each in np.unique(self.next[free]):
                st.put(int(each), free[self.next[free] == each])
            self.next[free] = -1
        if st.nested and wait and (self.next[st.lanes] >= 0).any():
            raise Fault("a barrier in a function that not all threads of the block call at once")
        if not wait:
            st.put(pc + 1, st.lanes)
        return False

    def complete(self, blocks: Array) -> None:
        """Blocks have met."""
        st = self.wave
        st.statistics.barriers += int(np.count_nonzero(blocks))
        if st.races is not None:
            size = st.shared_layout.size
            for k in map(int, np.flatnonzero(blocks)):
                st.races.forget(k * size, (k + 1) * size)


class Wave:
    """Some blocks of a grid.

    Attributes:
        lanes: the active ones, sorted; `act`: the same for indexing; `count`, `warps`: how many of
            them, and how many warps they are of.
        width: all lanes, those included that no thread has.
        exists: whether a lane has a thread; `live`: that has not ended.
        block: of each lane, counted from the wave's first one.
        special: read-only registers, by name.
    """

    def __init__(
        self,
        blocks: Array,
        grid: tuple[int, int, int],
        threads: tuple[int, int, int],
        memory: Memory,
        shared: Layout,
        local: Layout,
        races: bool,
        dynamic: int = 0,
    ):
        per_block = threads[0] * threads[1] * threads[2]
        padded = -(-per_block // WARP) * WARP
        self.padded, self.threads, self.grid = padded, threads, grid
        self.per_block, self.blocks = per_block, blocks
        self.width = padded * len(blocks)
        self.memory, self.shared_layout, self.local_layout = memory, shared, local
        self.shared = Area(np.full(shared.size * len(blocks), 255, np.uint8))
        self.local = Area(np.full(local.size * self.width, 255, np.uint8))
        inner = np.tile(np.arange(padded), len(blocks))
        self.block = np.repeat(np.arange(len(blocks)), padded)
        self.shared_base = self.block * shared.size - FIRST
        self.local_base = np.arange(self.width) * local.size - FIRST
        self.exists = inner < per_block
        self.live = self.exists.copy()
        self.carry = np.zeros(self.width, np.bool_)
        self.dynamic = dynamic
        self.barriers = Barriers(self)
        self.call: Callable[[str, Sequence[str], Sequence[str]], None]
        self.nested = 0
        self.groups = np.zeros(self.width, np.int64)
        self.pending: list[Pending] = []
        self.product_groups = np.zeros(self.width, np.int64)
        self.products: list[Any] = []  # of `warpgroups.Product`
        self.statistics = Statistics()
        self.moved: list[tuple[int, Array]] = []
        self.races = Races(self.shared.data.size, self.block, padded) if races else None
        number = np.repeat(blocks, padded)
        self.special = _special(inner, number, grid, threads)
        self.frame: Frame
        self.views: dict[str, list[Array]]
        self.lanes, self.act, self.count, self.warps = np.arange(0), slice(0, 0), 0, 0

    def enter(self, frame: Frame) -> None:
        """Go on in a call."""
        self.frame, self.views = frame, frame.views

    def activate(self, lanes: Array) -> None:
        """Make lanes, which are sorted, the active ones."""
        n = len(lanes)
        first, last = int(lanes[0]), int(lanes[-1])
        self.lanes, self.count = lanes, n
        if last - first + 1 == n:
            self.act = slice(first, last + 1)
            self.warps = last // WARP - first // WARP + 1
        else:
            self.act = lanes  # type: ignore[assignment]
            self.warps = 1 + int(np.count_nonzero(np.diff(lanes // WARP)))

    def put(self, pc: int, lanes: Array) -> None:
        """Let lanes go on at an instruction, later."""
        if len(lanes):
            self.moved.append((pc, lanes))

    def wide(self, values: Array) -> Array:
        """One value of each active lane."""
        return values if len(values) == self.count else np.broadcast_to(values, self.count)

    def thread_name(self, lane: int) -> str:
        """Which thread of which block a lane is."""
        t = [int(self.special[f"%tid.{c}"][lane]) for c in "xyz"]
        b = [int(self.special[f"%ctaid.{c}"][lane]) for c in "xyz"]
        return f"thread ({t[0]}, {t[1]}, {t[2]}) of block ({b[0]}, {b[1]}, {b[2]})"

    def located(
        self, space: str, address: Array, nbytes: int, lanes: Array, align: int | None = None
    ) -> tuple[Area, Array]:
        """Where `nbytes` bytes from each address on are: in which area, from which byte on.
        `lanes`: whose addresses these are; `space`: none of `generic`.

        Raises:
            Fault: an address is misaligned, or not all of the bytes are anybody's.
        """
        at = address.view(np.int64)
        align = align or nbytes
        if int(np.bitwise_or.reduce(at)) & (align - 1):
            k = int(np.argmax((at & (align - 1)) != 0))
            raise Fault(f"address {int(address[k]):#x} is no multiple of {align}", int(lanes[k]))
        if space == "global":
            at = at - BASE
            good = self.memory.inside(at, nbytes)
            if good is not None:
                self._outside("of every allocation", address, good, nbytes, lanes)
            return self.memory.area, at
        shared = space == "shared"
        layout = self.shared_layout if shared else self.local_layout
        low, high = int(at.min()) - FIRST, int(at.max()) - FIRST + nbytes
        if low < 0 or high > layout.size or layout.count[high] - layout.count[low] != high - low:
            off = np.clip(at - FIRST, 0, layout.size - nbytes)
            fits = (off == at - FIRST) & layout.owned[off] & layout.owned[off + (nbytes - 1)]
            if not fits.all():
                self._outside(f"of every variable in {space} memory", address, fits, nbytes, lanes)
        base = self.shared_base if shared else self.local_base
        start = base[self.act] if lanes is self.lanes else base[lanes]
        return self.shared if shared else self.local, at + start

    def _outside(self, of: str, address: Array, good: Array, nbytes: int, lanes: Array) -> None:
        k = int(np.argmin(good))
        raise Fault(f"address {int(address[k]):#x} ({nbytes} bytes) is outside {of}", int(lanes[k]))

    def spaces(self, space: str, address: Array) -> list[tuple[str, Array | None, Array]]:
        """Parts of generic addresses by where they point: space, which of them (None: all),
        addresses in that space."""
        if space in ("global", "const"):
            return [("global", None, address)]
        if space != "generic":
            return [(space, None, address)]
        if address.min() >= BASE:
            return [("global", None, address)]
        far = address >= BASE
        local = ~far & (address >= LOCAL_WINDOW)
        shared = ~far & ~local & (address >= SHARED_WINDOW)
        nowhere = ~far & ~local & ~shared
        parts = (
            ("shared", shared, SHARED_WINDOW), ("local", local, LOCAL_WINDOW),
            ("global", far | nowhere, 0),
        )  # fmt: skip
        return [
            (name, np.flatnonzero(which), address[which] - np.uint64(start))
            for name, which, start in parts
            if which.any()
        ]


def _special(
    inner: Array, number: Array, grid: tuple[int, int, int], threads: tuple[int, int, int]
) -> dict[str, Array]:
    """The read-only registers of all lanes."""
    width = len(inner)
    lane = (inner % WARP).astype(np.uint32)

    def all_of(n: int) -> Array:
        return np.full(width, n, np.uint32)

    found = {
        "%laneid": lane, "%warpid": (inner // WARP).astype(np.uint32),
        "%nwarpid": all_of(-(-threads[0] * threads[1] * threads[2] // WARP)),
        "%smid": all_of(0), "%nsmid": all_of(1), "%gridid": all_of(1),
    }  # fmt: skip
    for name, counter, sizes in (("tid", inner, threads), ("ctaid", number, grid)):
        left = counter
        for axis, size in zip("xyz", sizes, strict=True):
            found[f"%{name}.{axis}"] = (left % size).astype(np.uint32)
            found[f"%n{name}.{axis}"] = all_of(size)
            left = left // size
        found[f"%{name}.w"], found[f"%n{name}.w"] = all_of(0), all_of(1)
    one = np.uint32(1)
    masks = {
        "eq": one << lane,
        "lt": (one << lane) - one,
        "le": (one << lane) - one + (one << lane),
    }
    masks["ge"] = ~masks["lt"]
    masks["gt"] = ~masks["le"]
    return found | {f"%lanemask_{k}": m for k, m in masks.items()}
