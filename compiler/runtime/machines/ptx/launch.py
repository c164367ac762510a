"""Kernels of PTX run here, on numpy arrays of all lanes.

Lanes have their own program counters; of the lanes of a group those with the least one run, so that
ways that parted at a branch meet again behind it. Without a seed the group is all warps of some
blocks, which go in step. With one it is a warp, which runs until it waits at a barrier or ends; who
comes next is drawn: results that depend on it are those of races.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.errors import MachineError, unknown
from compiler.runtime.machines.ptx import (
    access,
    atomics,
    bits,
    comparisons,
    control,
    conversions,
    copies,
    floats,
    integers,
    matrices,
    warpgroups,
    warps,
)
from compiler.runtime.machines.ptx.decode import HANDLERS, MOVED, Decoder, Handler, Unknown
from compiler.runtime.machines.ptx.memory import Memory
from compiler.runtime.machines.ptx.program import (
    SIZES,
    Function,
    Kernel,
    Param,
    PtxModule,
    Variable,
)
from compiler.runtime.machines.ptx.wave import (
    WARP,
    Fault,
    Frame,
    Layout,
    Statistics,
    Wave,
    laid_out,
)

Array = npt.NDArray[Any]

INSTRUCTION_FILES = (
    access, atomics, bits, comparisons, control, conversions, copies, floats, integers, matrices,
    warpgroups, warps,
)  # fmt: skip
"""Modules that register instructions."""
_LANES = 8192
"""Lanes that run at the same time, at most, if a block has no more."""
_BYTES = 256 << 20
"""Bytes of registers and of local memory at a time, likewise."""
_DEPTH = 64
_STATIC = 48 << 10
_SHARED = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 87: 163 << 10, 89: 99 << 10, 90: 227 << 10}
"""Bytes of shared memory that a block may have in all, by chip (CUDA programming guide, "compute
capabilities"); static memory: 48 KiB on all of them."""
BUDGET = 20_000_000
"""Instructions that the interpreter executes in one launch, each for many warps."""


@dataclass
class _Code:
    """A function, decoded."""

    function: Function
    run: list[Handler]


class _Group:
    """Lanes by the instruction they go on with."""

    def __init__(self) -> None:
        self.ready: dict[int, Array] = {}
        self.parked: dict[int, Array] = {}

    def put(self, pc: int, lanes: Array) -> None:
        """Let lanes go on at an instruction."""
        there = self.ready.get(pc)
        self.ready[pc] = lanes if there is None else np.sort(np.concatenate([there, lanes]))

    def park(self, pc: int, lanes: Array) -> None:
        """Let lanes wait at an instruction until others of the group come there."""
        there = self.parked.get(pc)
        self.parked[pc] = lanes if there is None else np.sort(np.concatenate([there, lanes]))

    def again(self) -> None:
        """Let those who wait try again, as others of their warps may have ended."""
        self.ready, self.parked = self.parked, {}

    def first(self) -> tuple[int, Array]:
        """The least instruction, and those who are there."""
        pc = min(self.ready)
        lanes = self.ready.pop(pc)
        if pc in self.parked:
            lanes = np.sort(np.concatenate([lanes, self.parked.pop(pc)]))
        return pc, lanes


def launch(
    module: PtxModule,
    name: str,
    *,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: Sequence[Any],
    memory: Memory,
    shared: int = 0,
    seed: int | None = None,
    races: bool = False,
    budget: int = BUDGET,
) -> Statistics:
    """Run a kernel.

    Args:
        module: where it is.
        name: of it.
        grid: blocks in x, y, z.
        block: threads of each in x, y, z.
        args: an integer or a float for each parameter; bytes for one that is an array.
        memory: global memory.
        shared: bytes of dynamic shared memory.
        seed: warps run one after another, in an order drawn with it.
        races: whether two warps that use one byte of shared memory, one of which stores, with no
            barrier between, are an error.
        budget: instructions that are executed, after which the kernel is taken to be endless.

    Raises:
        MachineError: there is no such kernel, it has an instruction that is not known, or fails:
            an address is nobody's, a barrier is missed, ...; says in which line and thread.
    """
    if name not in module.kernels:
        raise MachineError(unknown("kernel", name, module.kernels))
    kernel = module.kernels[name]
    _check_shape(module, kernel, grid, block, shared)
    if len(args) != len(kernel.params):
        raise MachineError(
            f"kernel {name!r} takes {len(kernel.params)} arguments, and {len(args)} are given"
        )
    params = {p.name: _argument(name, p, a) for p, a in zip(kernel.params, args, strict=True)}
    machine = _Machine(module, kernel, memory, shared, budget)
    count, total = grid[0] * grid[1] * grid[2], Statistics()
    order = np.arange(count)
    random = None if seed is None else np.random.default_rng(seed)
    if random is not None:
        random.shuffle(order)
    at_once = machine.blocks_at_once(block[0] * block[1] * block[2])
    with np.errstate(all="ignore"):
        for start in range(0, count, at_once):
            wave = Wave(
                order[start : start + at_once], grid, block, memory, machine.shared, machine.local,
                races, shared,
            )  # fmt: skip
            wave.statistics = total
            machine.wave(wave, params, random)
    machine.count(total)
    return total


def _check_shape(
    module: PtxModule,
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
) -> None:
    """Raise what a driver refuses to launch."""
    if min(*grid, *block) < 1 or grid[0] >= 1 << 31 or max(grid[1:]) >= 1 << 16:
        raise MachineError(f"kernel {kernel.name!r}: no grid has {grid} blocks of {block} threads")
    threads = block[0] * block[1] * block[2]
    if threads > 1024 or block[2] > 64:
        raise MachineError(f"kernel {kernel.name!r}: no block has {block} threads")
    bound, exact = kernel.maxntid, kernel.reqntid
    if bound is not None and threads > bound[0] * bound[1] * bound[2]:
        raise MachineError(f"kernel {kernel.name!r} is for blocks of up to {bound}, not {block}")
    if exact is not None and block != exact:
        raise MachineError(f"kernel {kernel.name!r} is for blocks of {exact} threads, not {block}")
    digits = "".join(c for c in module.target if c.isdigit())
    limit = _SHARED.get(int(digits or 0), _STATIC)
    if kernel.shared > _STATIC or kernel.shared + shared > limit or shared < 0:
        raise MachineError(
            f"kernel {kernel.name!r} has {kernel.shared} bytes of static and {shared} of dynamic "
            f"shared memory: {module.target} has {_STATIC} and {limit} in all"
        )


def _argument(kernel: str, p: Param, value: Any) -> Array:
    """The bytes of a parameter."""
    try:
        if isinstance(value, bytes | bytearray):
            content = bytes(value)
            if len(content) != p.bytes:
                raise ValueError
        elif isinstance(value, float | np.floating) or p.type in ("f16", "f32", "f64"):
            content = struct.pack({2: "<e", 4: "<f", 8: "<d"}[p.bytes], value)
        else:
            number = int(value)
            if not -(1 << 8 * p.bytes - 1) <= number < 1 << 8 * p.bytes:
                raise ValueError
            content = (number & (1 << 8 * p.bytes) - 1).to_bytes(p.bytes, "little")
    except (ValueError, KeyError, TypeError, OverflowError, struct.error):
        raise MachineError(
            f"kernel {kernel!r}: {value!r} is no value of parameter {p.name}, {p.bytes} bytes"
        ) from None
    return np.frombuffer(content, np.uint8).reshape(1, -1)


class _Machine:
    """One launch."""

    def __init__(self, module: PtxModule, kernel: Kernel, memory: Memory, shared: int, budget: int):
        self.module, self.kernel, self.budget = module, kernel, budget
        functions = [kernel, *module.functions.values()]
        own = [
            Variable(f"{f.name}|{v.name}", v.space, v.type, v.size, v.align)
            for f in functions
            for v in f.variables.values()
        ]
        common = [v for v in module.variables.values() if v.space == "shared"]
        self.shared = laid_out([*common, *(v for v in own if v.space == "shared")], shared)
        self.local: Layout = laid_out([v for v in own if v.space == "local"])
        symbols = {
            **memory.addresses_of(module),
            **{v.name: self.shared.at[v.name] for v in common},
        }
        key = kernel.name, tuple(symbols.items())
        if key not in module.decoded:
            module.decoded[key] = {
                f.name: _Code(f, self._decode(f, symbols)) for f in functions
            }  # fmt: skip
        self.codes: dict[str, _Code] = module.decoded[key]
        self.issued = {f.name: np.zeros((2, len(f.code) + 1), np.int64) for f in functions}

    def _decode(self, f: Function, symbols: dict[str, int]) -> list[Handler]:
        """Handlers of all instructions."""
        at = {**self.shared.at, **self.local.at}
        mine = {
            v: at[f"{f.name}|{v}"] for v, x in f.variables.items() if x.space in ("shared", "local")
        }
        d = Decoder(f, self.module, {**symbols, **mine})
        out: list[Handler] = []
        for d.number, ins in enumerate(f.code):
            name = ins.parts[0]
            try:
                if name not in HANDLERS:
                    raise Unknown
                handler = HANDLERS[name](d, ins)
            except (Unknown, ValueError, IndexError) as e:
                why = f" ({e})" if isinstance(e, Unknown) and str(e) else ""
                raise MachineError(
                    f"unknown instruction {ins.opcode!r}{why} in line {ins.line} of the PTX, in "
                    f"{f.name!r}"
                ) from None
            if ins.guard is not None:
                handler = control.guarded(handler, ins.guard, d.number, name in ("bra", "brx"))
            out.append(handler)
        return out

    def blocks_at_once(self, threads: int) -> int:
        """How many blocks make a wave."""
        padded = -(-threads // WARP) * WARP
        bits = self.kernel.registers
        each = sum(n * max(b, 8) // 8 for b, n in bits.items()) + self.local.size + 200
        per_block = each * padded + self.shared.size
        return max(1, min(_LANES // padded, _BYTES // per_block))

    def wave(self, st: Wave, params: dict[str, Array], random: Any) -> None:
        """Run some blocks to their ends."""
        frame = Frame(self.kernel, st.width)
        frame.params.update(params)
        st.enter(frame)
        st.call = lambda name, results, given: self.called(st, name, results, given)
        code = self.codes[self.kernel.name]
        lanes = np.flatnonzero(st.exists)
        groups: list[_Group]
        if random is None:
            groups = [_Group()]
            place: Callable[[int, Array], None] = groups[0].put
        else:
            groups = [_Group() for _ in range(st.width // WARP)]

            def place(pc: int, lanes: Array) -> None:
                for w in np.unique(lanes // WARP):
                    groups[w].put(pc, lanes[lanes // WARP == w])

        place(0, lanes)
        waited = (0, 0)
        while True:
            while able := [g for g in groups if g.ready]:
                group = able[0] if random is None else able[int(random.integers(len(able)))]
                self.go(st, code, group, place)
            parked = sum(len(x) for g in groups for x in g.parked.values())
            if not parked or (parked, int(st.live.sum())) == waited:
                break
            waited = parked, int(st.live.sum())
            for g in groups:
                g.again()
        self._all_ended(st, code, groups)

    def go(self, st: Wave, code: _Code, group: _Group, place: Callable[[int, Array], None]) -> None:
        """Run a group until its lanes have ended or wait."""
        run, end, statistics = code.run, len(code.run), st.statistics
        issues, threads = self.issued[code.function.name]
        parked, ready, left = group.parked, group.ready, self.budget - statistics.steps
        while ready:
            pc, lanes = group.first()
            st.activate(lanes)
            stop = min(ready, default=end)
            try:
                while True:
                    if pc >= end:
                        raise Fault("the code has no end", int(st.lanes[0]))
                    left -= 1
                    if left < 0:
                        raise Fault(
                            f"the kernel does not end within {self.budget} instructions",
                            int(st.lanes[0]),
                        )
                    issues[pc] += st.warps
                    threads[pc] += st.count
                    to = run[pc](st)
                    if to is None:
                        pc += 1
                    elif to >= 0:
                        pc = to
                    elif to == MOVED:
                        break
                    else:
                        group.park(pc, st.lanes)
                        break
                    if pc >= stop or (parked and pc in parked):
                        group.put(pc, st.lanes)
                        break
            except Fault as e:
                statistics.steps = self.budget - left
                raise self._failed(st, code, pc, e) from None
            statistics.steps = self.budget - left
            moved, st.moved = st.moved, []
            for to, those in moved:
                place(to, those)

    def called(self, st: Wave, name: str, results: Sequence[str], given: Sequence[str]) -> None:
        """Run a function for the active lanes."""
        code, outer = self.codes[name], st.frame
        if st.nested >= _DEPTH:
            raise Fault(f"calls are {_DEPTH} deep: recursion is not supported")
        frame = Frame(code.function, st.width)
        for p, x in zip(code.function.params, given, strict=True):
            frame.params[p.name] = outer.params[x]
        for r in code.function.results:
            frame.params[r.name] = np.zeros((st.width, r.bytes), np.uint8)
        lanes, moved, st.moved = st.lanes, st.moved, []
        st.enter(frame)
        st.nested += 1
        group = _Group()
        group.put(0, lanes)
        self.go(st, code, group, group.put)
        st.nested -= 1
        if group.parked:
            self._all_ended(st, code, [group])
        st.enter(outer)
        st.moved = moved
        st.activate(lanes)
        for r, x in zip(code.function.results, results, strict=True):
            outer.params[x][st.act] = frame.params[r.name][st.act]

    def _failed(self, st: Wave, code: _Code, pc: int, e: Fault) -> MachineError:
        where = code.function
        ins = where.code[min(pc, len(where.code) - 1)]
        who = "" if e.lane is None else f", {st.thread_name(e.lane)}"
        inside = "" if where is self.kernel else f" (in {where.name!r})"
        return MachineError(
            f"kernel {self.kernel.name!r}{inside}, {ins.opcode} in line {ins.line} of the "
            f"PTX{who}: {e}"
        )

    def _all_ended(self, st: Wave, code: _Code, groups: list[_Group]) -> None:
        """Raise if lanes wait for others in vain."""
        for group in groups:
            for pc, lanes in group.parked.items():
                what = Fault("other lanes of the warp do not come here", int(lanes[0]))
                raise self._failed(st, code, pc, what)
        waiting = np.flatnonzero(st.barriers.next >= 0)
        if len(waiting):
            lane = int(waiting[0])
            n = int(np.count_nonzero(st.block[waiting] == st.block[lane]))
            what = Fault(
                f"{n} of the block's {st.per_block} threads wait at this barrier, which others do "
                "not come to",
                lane,
            )
            raise self._failed(st, code, int(st.barriers.next[lane]) - 1, what)

    def count(self, statistics: Statistics) -> None:
        """Note what was executed, by opcode."""
        for name, (issues, threads) in self.issued.items():
            for pc, ins in enumerate(self.codes[name].function.code):
                if issues[pc]:
                    key = ins.opcode
                    for counts, n in (
                        (statistics.instructions, issues),
                        (statistics.threads, threads),
                    ):
                        counts[key] = counts.get(key, 0) + int(n[pc])


__all__ = ["BUDGET", "SIZES", "launch"]
