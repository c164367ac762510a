"""Asynchronous copies into shared memory. Their bytes appear as late as is allowed: when the thread
that issued them waits for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.access import cache_hint, check
from compiler.runtime.machines.ptx.decode import Decoder, Handler, opcode
from compiler.runtime.machines.ptx.program import Immediate, Instruction, Register
from compiler.runtime.machines.ptx.wave import Fault, Pending, Wave

Array = npt.NDArray[Any]


@opcode("cp")
def _cp(d: Decoder, ins: Instruction) -> Handler:
    if ins.parts[1] != "async":
        d.unknown()
    what = ins.parts[2]
    if what == "commit_group":
        return _commit
    if what == "wait_all":
        return lambda st: _arrive(st, -1)
    if what == "wait_group":
        (n,) = ins.operands
        if not isinstance(n, Immediate):
            d.unknown("a number is expected")
        left = int(n.value)
        return lambda st: _arrive(st, left)
    return _copy(d, ins)


def _commit(st: Wave) -> None:
    """What was issued so far and not yet committed is a group."""
    st.groups[st.lanes] += 1


def _arrive(st: Wave, left: int) -> None:
    """Bytes of all groups but the last `left` of the active threads appear; -1: also of copies that
    are in no group."""
    if not st.pending:
        return
    waits = np.zeros(st.width, np.bool_)
    waits[st.lanes] = True
    still = []
    for p in st.pending:
        done = waits[p.lanes]
        if left >= 0:
            done &= p.groups < st.groups[p.lanes] - left
        if not done.any():
            still.append(p)
            continue
        at, size = p.at[done], p.content.shape[1]
        where = at[:, None] + np.arange(size)
        if st.races is not None:
            st.races.arriving[where] = False
            check(st, st.races.store(at, size, p.lanes[done]))
        st.shared.data[where] = p.content[done]
        if not done.all():
            rest = ~done
            still.append(Pending(p.lanes[rest], p.groups[rest], p.at[rest], p.content[rest]))
    st.pending = still


def _copy(d: Decoder, ins: Instruction) -> Handler:
    """`cp.async.cg.shared.global [to], [from], 16{, bytes that are read; the others are 0}`."""
    mods = [m for m in ins.parts[2:] if not m.startswith(("L1::", "L2::"))]
    if len(mods) != 3 or mods[0] not in ("ca", "cg") or mods[2] != "global":
        d.unknown()
    if mods[1] not in ("shared", "shared::cta") or not all(map(cache_hint, ins.parts[5:])):
        d.unknown()
    target, source, amount, *rest = ins.operands
    if any(m == "L2::cache_hint" for m in ins.parts):
        rest = rest[:-1]
    size = int(amount.value) if isinstance(amount, Immediate) else 0
    if size not in ((16,) if mods[0] == "cg" else (4, 8, 16)) or len(rest) > 1:
        d.unknown("the number of bytes")
    to, of = d.address(target), d.address(source)
    ignored = read = None
    if rest:
        if isinstance(rest[0], Register) and rest[0].bits == 1:
            ignored = d.read(rest[0], "pred")
        else:
            read = d.read(rest[0], "u32")

    def run(st: Wave) -> None:
        _, at = st.located("shared", st.wide(to(st)), size, st.lanes)
        address = st.wide(of(st))
        count = np.full(st.count, size, np.int64)
        if ignored is not None:
            count[st.wide(ignored(st))] = 0
        if read is not None:
            count = st.wide(read(st)).astype(np.int64)
            if int(count.max()) > size:
                raise Fault(f"more than {size} bytes are to be read", int(st.lanes[count.argmax()]))
        content = np.zeros((st.count, size), np.uint8)
        for n in np.unique(count[count > 0]):
            some = count == n
            area, byte = st.located("global", address[some], int(n), st.lanes[some], align=size)
            content[some, :n] = area.data[byte[:, None] + np.arange(n)]
        if st.races is not None:
            check(st, st.races.store(at, size, st.lanes))
            st.races.arriving[at[:, None] + np.arange(size)] = True
        st.pending.append(Pending(st.lanes.copy(), st.groups[st.lanes], at, content))

    return run
