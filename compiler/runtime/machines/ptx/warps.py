"""Instructions of whole warps: lanes see each other's registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.control import together
from compiler.runtime.machines.ptx.decode import PARKED, Decoder, Handler, Reader, dtype_of, opcode
from compiler.runtime.machines.ptx.program import Instruction, Operand, Pair
from compiler.runtime.machines.ptx.wave import WARP, Fault, Wave

Array = npt.NDArray[Any]


class Warps:
    """The active lanes as rows of 32."""

    def __init__(self, st: Wave):
        warp = st.lanes // WARP
        self.row, self.lane = warp - warp[0], st.lanes % WARP
        self.rows = int(self.row[-1]) + 1
        self.active = self.spread(np.ones(st.count, np.bool_))

    def spread(self, values: Array) -> Array:
        """Values of the active lanes, in rows; of other lanes 0."""
        out: Array = np.zeros((self.rows, WARP), values.dtype)
        out[self.row, self.lane] = values
        return out

    def members(self, mask: Array) -> Array:
        """For each active lane, which lanes of its warp are in its mask and active."""
        bits = mask[:, None] >> np.arange(WARP, dtype=np.uint32) & 1
        return np.asarray((bits != 0) & self.active[self.row])


def _synchronous(mask: Reader, run: Callable[[Wave, Warps, Array], None]) -> Handler:
    """A handler that waits for all lanes of the mask."""

    def handler(st: Wave) -> int | None:
        lanes = mask(st)
        if not together(st, lanes):
            return PARKED
        run(st, Warps(st), np.broadcast_to(lanes, st.count))
        return None

    return handler


def _both(to: Operand) -> tuple[Operand, Operand | None]:
    return (to.first, to.second) if isinstance(to, Pair) else (to, None)


@opcode("shfl")
def _shfl(d: Decoder, ins: Instruction) -> Handler:
    _, sync, mode, kind = ins.parts
    if sync != "sync" or kind != "b32" or mode not in ("up", "down", "bfly", "idx"):
        d.unknown()
    to, a, b, c, mask = ins.operands
    first, second = _both(to)
    write, ra = d.write(first, "b32"), d.read(a, "b32")
    predicate = d.write(second, "pred") if second is not None else None
    rb, rc = d.read(b, "u32"), d.read(c, "u32")

    def run(st: Wave, w: Warps, mask: Array) -> None:
        lane = w.lane.astype(np.int64)
        by, clamp = (rb(st) & 31).astype(np.int64), rc(st).astype(np.int64)
        segment = clamp >> 8 & 31
        low = lane & segment
        high = low | (clamp & 31 & ~segment)
        if mode == "up":
            j = lane - by
            inside = j >= high
        else:
            j = {"down": lane + by, "bfly": lane ^ by, "idx": low | (by & ~segment)}[mode]
            inside = j <= high
        j = np.where(inside, j, lane)
        bad = ~w.active[w.row, j] | (mask >> j.astype(np.uint32) & 1 == 0)
        if bad.any():
            k = int(bad.argmax())
            raise Fault(f"lane {int(j[k])}, which it reads, is not active", int(st.lanes[k]))
        values = w.spread(st.wide(ra(st)))
        write(st, values[w.row, j])
        if predicate is not None:
            predicate(st, inside)

    return _synchronous(d.read(mask, "u32"), run)


@opcode("vote")
def _vote(d: Decoder, ins: Instruction) -> Handler:
    _, sync, mode, kind = ins.parts
    if sync != "sync" or (kind, mode) not in (
        ("pred", "all"), ("pred", "any"), ("pred", "uni"), ("b32", "ballot"),
    ):  # fmt: skip
        d.unknown()
    to, a, mask = ins.operands
    write, ra = d.write(to, kind), d.read(a, "pred")

    def run(st: Wave, w: Warps, mask: Array) -> None:
        p = w.spread(st.wide(ra(st)))[w.row]
        members = w.members(mask)
        if mode == "ballot":
            powers = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
            write(st, np.where(p & members, powers, np.uint32(0)).sum(1, dtype=np.uint32))
            return
        every, some = (p | ~members).all(1), (p & members).any(1)
        write(st, {"all": every, "any": some, "uni": every | ~some}[mode])

    return _synchronous(d.read(mask, "u32"), run)


@opcode("activemask")
def _activemask(d: Decoder, ins: Instruction) -> Handler:
    (to,) = ins.operands
    write = d.write(to, "b32")

    def run(st: Wave) -> None:
        w = Warps(st)
        powers = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        write(st, np.where(w.active, powers, np.uint32(0)).sum(1, dtype=np.uint32)[w.row])

    return run


@opcode("match")
def _match(d: Decoder, ins: Instruction) -> Handler:
    _, mode, sync, kind = ins.parts
    if sync != "sync" or mode not in ("any", "all") or kind not in ("b32", "b64"):
        d.unknown()
    to, a, mask = ins.operands
    first, second = _both(to)
    write, ra = d.write(first, "b32"), d.read(a, kind)
    predicate = d.write(second, "pred") if second is not None else None

    def run(st: Wave, w: Warps, mask: Array) -> None:
        values = st.wide(ra(st))
        same = w.members(mask)
        equal = same & (w.spread(values)[w.row] == values[:, None])
        powers = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        out = np.where(equal, powers, np.uint32(0)).sum(1, dtype=np.uint32)
        if mode == "all":
            every = (equal == same).all(1)
            out = np.where(every, out, np.uint32(0))
            if predicate is not None:
                predicate(st, every)
        write(st, out)

    return _synchronous(d.read(mask, "u32"), run)


_REDUCTIONS: dict[str, tuple[Any, int]] = {
    "add": (np.add, 0), "and": (np.bitwise_and, -1), "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0), "min": (np.minimum, 1), "max": (np.maximum, 0),
}  # fmt: skip


@opcode("redux")
def _redux(d: Decoder, ins: Instruction) -> Handler:
    _, sync, op, kind = ins.parts
    if sync != "sync" or op not in _REDUCTIONS or kind not in ("u32", "s32", "b32"):
        d.unknown()
    f, neutral = _REDUCTIONS[op]
    dtype = dtype_of(kind)
    if op in ("min", "max"):
        neutral = int(np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min)
    empty = np.array(neutral & 2**32 - 1, np.uint32).view(dtype)
    to, a, mask = ins.operands
    write, ra = d.write(to, kind), d.read(a, kind)

    def run(st: Wave, w: Warps, mask: Array) -> None:
        values = w.spread(st.wide(ra(st)))[w.row]
        write(st, f.reduce(np.where(w.members(mask), values, empty), axis=1, dtype=dtype))

    return _synchronous(d.read(mask, "u32"), run)


@opcode("elect")
def _elect(d: Decoder, ins: Instruction) -> Handler:
    """One lane of the mask: the first."""
    to, mask = ins.operands
    first, second = _both(to)
    if ins.parts != ("elect", "sync") or second is None:
        d.unknown()
    write, predicate = d.write(first, "b32"), d.write(second, "pred")

    def run(st: Wave, w: Warps, mask: Array) -> None:
        leader = w.members(mask).argmax(1)
        write(st, leader.astype(np.uint32))
        predicate(st, leader == w.lane)

    return _synchronous(d.read(mask, "u32"), run)
