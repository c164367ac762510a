"""Branches, calls, ends and barriers."""

from __future__ import annotations

import numpy as np

from compiler.runtime.machines.ptx.decode import MOVED, PARKED, Decoder, Handler, Unknown, opcode
from compiler.runtime.machines.ptx.program import (
    Address,
    Arguments,
    Immediate,
    Instruction,
    Register,
    Symbol,
)
from compiler.runtime.machines.ptx.wave import WARP, Fault, Wave


def guarded(handler: Handler, guard: tuple[Register, bool], number: int, branch: bool) -> Handler:
    """A handler for those active lanes whose predicate holds; the others go on."""
    i, negated = guard[0].index, guard[1]

    def run(st: Wave) -> int | None:
        p = st.views["b1"][i][st.act]
        if negated:
            p = ~p
        n = int(np.count_nonzero(p))
        if n == 0:
            return None
        if n == st.count:
            return handler(st)
        lanes, act, count, warps = st.lanes, st.act, st.count, st.warps
        some, rest = lanes[p], lanes[~p]
        if branch:
            both = np.intersect1d(some // WARP, rest // WARP)
            st.statistics.divergent += len(both)
        st.activate(some)
        to = handler(st)
        if to == PARKED:
            st.put(number, some)
        elif to is not None and to >= 0:
            st.put(to, some)
        if to is None:
            st.lanes, st.act, st.count, st.warps = lanes, act, count, warps
            return None
        st.put(number + 1, rest)
        return MOVED

    return run


@opcode("bra")
def _bra(d: Decoder, ins: Instruction) -> Handler:
    (target,) = ins.operands
    if not isinstance(target, Symbol) or target.name not in d.function.labels:
        d.unknown("there is no such label")
    to = d.function.labels[target.name]
    return lambda st: to


@opcode("brx")
def _brx(d: Decoder, ins: Instruction) -> Handler:
    index, table = ins.operands
    if not isinstance(table, Symbol) or table.name not in d.function.tables:
        d.unknown("there is no such list of labels")
    targets = [d.function.labels[name] for name in d.function.tables[table.name]]
    read = d.read(index, "u32")

    def run(st: Wave) -> int:
        k = st.wide(read(st))
        if int(k.max()) >= len(targets):
            raise Fault(f"branch {int(k.max())} of {len(targets)}", int(st.lanes[int(k.argmax())]))
        found = np.unique(k)
        if len(found) == 1:
            return targets[int(found[0])]
        for each in found:
            st.put(targets[int(each)], st.lanes[k == each])
        return MOVED

    return run


@opcode("ret", "exit")
def _ret(d: Decoder, ins: Instruction) -> Handler:
    leaves = ins.parts[0] == "exit"
    d.only(ins.parts[1:], ("uni",))

    def run(st: Wave) -> int:
        if leaves or not st.nested:
            st.live[st.lanes] = False
        return MOVED

    return run


@opcode("trap", "brkpt")
def _trap(d: Decoder, ins: Instruction) -> Handler:
    def run(st: Wave) -> None:
        raise Fault("the kernel stops itself", int(st.lanes[0]))

    return run


@opcode("call")
def _call(d: Decoder, ins: Instruction) -> Handler:
    operands = list(ins.operands)
    results = operands.pop(0) if isinstance(operands[0], Arguments) else Arguments(())
    name = operands.pop(0)
    given = operands.pop(0) if operands else Arguments(())
    if not isinstance(name, Symbol) or operands or not isinstance(given, Arguments):
        d.unknown("only functions are called, by their names")
    if name.name not in d.module.functions:
        d.unknown(f"the text has no body of function {name.name!r}")
    callee = d.module.functions[name.name]
    names = []
    for each in (results, given):
        assert isinstance(each, Arguments)
        for x in each.items:
            if not isinstance(x, Symbol):
                d.unknown("only parameters are passed")
        names.append([x.name for x in each.items if isinstance(x, Symbol)])
    if len(names[0]) != len(callee.results) or len(names[1]) != len(callee.params):
        d.unknown(f"function {name.name!r} takes other parameters")
    number = d.number

    def run(st: Wave) -> int | None:
        before = st.lanes
        st.call(callee.name, names[0], names[1])
        left = before[st.live[before]]
        if len(left) == len(before):
            return None
        st.put(number + 1, left)
        return MOVED

    return run


def together(st: Wave, needed: int | np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> bool:
    """Whether all threads that a warp-wide instruction needs are active: `needed` has a bit for
    each lane of the warp, of each active lane or one for all."""
    if st.count == st.width:
        return True
    mask = np.broadcast_to(np.asarray(needed, np.uint32), st.count)
    own = mask >> (st.lanes % WARP).astype(np.uint32) & 1
    if not own.all():
        raise Fault("a thread is not in its own mask", int(st.lanes[int(own.argmin())]))
    warps = st.width // WARP
    want = np.zeros(warps, np.uint32)
    want[st.lanes // WARP] = mask
    bits = (want[:, None] >> np.arange(WARP, dtype=np.uint32) & 1).astype(np.bool_).reshape(-1)
    missing = bits & st.live
    missing[st.lanes] = False
    return not missing.any()


@opcode("bar", "barrier")
def _barrier(d: Decoder, ins: Instruction) -> Handler:
    parts = [p for p in ins.parts[1:] if p not in ("cta", "aligned")]
    number = d.number
    if parts == ["warp", "sync"]:
        mask = d.read(ins.operands[0], "u32")
        return lambda st: None if together(st, mask(st)) else PARKED
    if parts not in (["sync"], ["arrive"]):
        d.unknown()
    wait = parts == ["sync"]
    fixed: list[int] = []
    for x in ins.operands:
        if not isinstance(x, Immediate):
            d.unknown("the number of a barrier is expected")
        fixed.append(int(x.value))
    if not fixed or not 0 <= fixed[0] < 16 or (not wait and len(fixed) != 2):
        d.unknown("there are 16 barriers")
    ident, needed = fixed[0], fixed[1] if len(fixed) > 1 else None
    aligned = "aligned" in ins.parts or ins.parts[0] == "bar"

    def run(st: Wave) -> int | None:
        if aligned and not together(st, 0xFFFFFFFF):
            return PARKED
        return None if st.barriers.arrive(ident, needed, number, wait) else MOVED

    return run


__all__ = ["Address", "Unknown", "guarded", "together"]
