"""A plan in memory: what runs a region."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from compiler.engines.onednn.library import library, on_threads
from compiler.engines.onednn.objects import (
    SCRATCHPAD,
    Memory,
    Object,
    arguments,
    stream,
)
from compiler.engines.onednn.plan import Plan, Slot, aligned
from compiler.engines.onednn.translate import planned
from compiler.errors import MachineError
from compiler.ir.expr import Function
from compiler.tensor.packed_arrays import ALIGN
from compiler.types.dtypes import Array


def runner(f: Function, threads: int) -> Runner:
    """What runs a region on so many threads.

    Raises:
        Refused: oneDNN does not compute it; says why.
    """
    with on_threads(threads):
        return Runner(planned(f, certain=True), len(f.params), threads)


class Runner:
    """Runs a region's primitives on the arrays of a call. Several threads may do so at once: each
    has memory of its own for what is between the primitives.

    Attributes:
        bytes: of that memory.
        names: of the implementations that oneDNN chose, in order.
    """

    def __init__(self, plan: Plan, operands: int, threads: int):
        self._plan, self._threads, self._operands = plan, threads, operands
        self._offsets, self.bytes = _assigned(plan)
        self._scratch = max((s.primitive.scratchpad for s in plan.steps), default=0)
        self.names = [s.primitive.name for s in plan.steps]
        self._constants = _packed(plan)
        for step in plan.steps:
            _ = step.primitive.address  # code is generated now
        self._local = threading.local()

    def __call__(self, *arrays: Array) -> None:
        """Run on operands and results, arrays in C order."""
        state: _State | None = getattr(self._local, "state", None)
        if state is None:
            state = _State(self._plan, self._constants, self._offsets, self.bytes, self._scratch)
            self._local.state = state
        state.point(arrays, self._operands)
        with on_threads(self._threads):
            state.run()


class _State:
    """A thread's memory, and the primitives with the operands that lie in it."""

    def __init__(
        self, plan: Plan, constants: Mapping[Slot, Array], offsets: Mapping[Slot, int],
        size: int, scratch: int,
    ):  # fmt: skip
        self._arena, self._scratch = aligned(size), aligned(scratch)
        start = self._arena.ctypes.data
        lib = library()
        self._stream = Object(stream(), lib.handle.dnnl_stream_destroy)
        self._outside: list[tuple[Memory, bool, int]] = []
        calls, self._kept = [], []
        for step in plan.steps:
            memories: dict[int, Memory] = {}
            for number, v in step.operands.items():
                if v.slot in constants:
                    address = constants[v.slot].ctypes.data
                elif v.slot in offsets:
                    address = start + offsets[v.slot]
                else:
                    address = None
                memories[number] = m = Memory(v.desc, address)
                if address is None:
                    result = v.slot.given is None
                    index = v.slot.result if result else v.slot.given
                    assert index is not None
                    self._outside.append((m, result, index))
            if step.primitive.scratchpad:
                desc = step.primitive.scratchpad_desc()
                memories[SCRATCHPAD] = Memory(desc, self._scratch.ctypes.data)
            table = arguments(memories)
            self._kept.append((memories, table, step))
            calls.append((step.primitive.address, len(memories), ctypes.addressof(table)))
        self._calls = [
            (ctypes.c_void_p(a), ctypes.c_int(n), ctypes.c_void_p(t)) for a, n, t in calls
        ]

    def point(self, arrays: Sequence[Array], operands: int) -> None:
        """Let operands and results be in these arrays."""
        set_address = library().handle.dnnl_memory_set_data_handle
        addresses = [a.ctypes.data for a in arrays]
        for memory, result, index in self._outside:
            set_address(memory.address, addresses[index + operands * result])

    def run(self) -> None:
        """Run all primitives."""
        execute, where = library().handle.dnnl_primitive_execute, self._stream.address
        for (primitive, count, table), (_, _, step) in zip(self._calls, self._kept, strict=True):
            if status := execute(primitive, where, count, table):
                name = step.primitive.name
                raise MachineError(f"oneDNN's {name} failed as it ran, with status {status}")


def _packed(plan: Plan) -> dict[Slot, Array]:
    """What is in the slots of constants: parts of one block, which lies in large pages wherever the
    system has some, so that equal programs take equal times."""
    slots = {v.slot: v.slot.size for s in plan.steps for v in s.operands.values() if v.slot.array}
    block, at = aligned(sum(map(_rounded, slots.values()))), 0
    found = {}
    for slot, size in slots.items():
        assert slot.array is not None
        found[slot] = block[at : at + size]
        found[slot][:] = slot.array().reshape(-1).view(np.uint8)
        at += _rounded(size)
    return found


def _assigned(plan: Plan) -> tuple[dict[Slot, int], int]:
    """(offset of every slot of the region's own memory, bytes in all): slots share memory unless
    both hold something at one time. Large ones are placed first, each as low as it fits."""
    first: dict[Slot, int] = {}
    last: dict[Slot, int] = {}
    for k, step in enumerate(plan.steps):
        for v in step.operands.values():
            if v.slot.own and v.slot.result is None:
                first.setdefault(v.slot, k)
                last[v.slot] = k
    placed: list[tuple[Slot, int]] = []
    for slot in sorted(first, key=lambda s: (-s.size, first[s])):
        taken = sorted(
            (offset, offset + _rounded(other.size))
            for other, offset in placed
            if first[other] <= last[slot] and first[slot] <= last[other]
        )
        at = 0
        for start, end in taken:
            if at + slot.size <= start:
                break
            at = max(at, end)
        placed.append((slot, at))
    return dict(placed), max((at + _rounded(s.size) for s, at in placed), default=0)


def _rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
