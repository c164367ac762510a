"""Simulated accelerators: instruction streams are run, and their cycles counted, by compiled code
(see `compiler.codegen.accel.simulator_text`)."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.stochastic import random_dtype
from compiler.codegen.accel import kernels
from compiler.codegen.accel.instructions import (
    ACC,
    BUFFERS,
    LOAD,
    STORE,
    UNITS,
    decoded,
)
from compiler.codegen.accel.machine_table import DEADLOCK, GIVEN, MACHINE, OUTSIDE, TRACE
from compiler.codegen.accel.simulator_text import simulator_text
from compiler.codegen.accel.units_text import Kernels
from compiler.errors import MachineError, UnsupportedError
from compiler.op.accumulate import sums
from compiler.passes.pipeline import run
from compiler.runtime.loader import loader_of
from compiler.runtime.nests import Nest
from compiler.target.accelerator import Design
from compiler.target.registry import Target
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import Array, DType, custom
from compiler.types.names import digest


@dataclass(frozen=True)
class Report:
    """What a stream cost.

    Attributes:
        cycles: until the last instruction ended.
        busy: cycles that each unit (load, compute, store) was at work.
        waiting: cycles that each waited for tokens.
        bus: cycles that each then waited for the bus.
        gemm: cycles that multiplied.
        alu: cycles that made results, or set accumulators.
        loaded, stored: bytes from and to memory.
        trace: int64 [instructions, 3]: begin, end, and when the tokens were there.
    """

    cycles: int
    busy: tuple[int, int, int]
    waiting: tuple[int, int, int]
    bus: tuple[int, int, int]
    gemm: int
    alu: int
    loaded: int
    stored: int
    trace: Array

    @property
    def utilization(self) -> float:
        """Part of the cycles in which the multipliers work."""
        return self.gemm / self.cycles if self.cycles else 0.0


class Simulator:
    """The machine of one design, compiled once a process."""

    def __init__(self, design: Design):
        target = Target.parse("llvm")
        if not design.integer:
            dtype = kernels.data_dtype(design, False)
            if not dtype.is_custom or dtype.bits > 8:
                raise UnsupportedError(
                    f"target {design}: a core computes in int8 or in a registered format of up to "
                    f"8 bits, not in {design.format}"
                )
            if random_dtype(dtype) is not None:
                raise UnsupportedError(
                    f"target {design}: {design.format} rounds stochastically, by the place of a "
                    "number in its tensor, which a core does not know"
                )
            if design.accumulator == "exact":
                sums("exact", dtype, design.block)  # or raises LoweringError
            elif not _products_fit(dtype):
                raise UnsupportedError(
                    f"target {design}: products of {design.format} go beyond float32's exponents"
                )
        self.design = design
        unsigned, of_products = _kernel(kernels.multiply(design, False), target)
        signed, _ = _kernel(kernels.multiply(design, design.integer), target)
        finish, of_results = _kernel(kernels.finish(design), target)
        take = greatest = add = total = ""
        of_sums: list[Array] = []
        if design.integer:
            of_bytes = (kernels.take, kernels.greatest, kernels.add)
            take, greatest, add = (_kernel(f(design), target)[0] for f in of_bytes)
        if design.adds_tensors:
            total, of_sums = _kernel(kernels.add_tensors(design), target)
        tables = (of_products, of_results, of_sums)
        self._tables = [a for some in tables for a in some]
        self._table = np.array([a.ctypes.data for a in self._tables] or [0], np.uint64)
        symbols = Kernels(unsigned, signed, finish, take, greatest, add, total, *map(len, tables))
        named = f"accel_{digest(repr(symbols))}"
        text = simulator_text(symbols, named)
        from compiler.codegen.backend import Code

        at = loader_of(target).compiled(Code((named,), text), target)
        address = ctypes.c_void_p
        self._call = ctypes.CFUNCTYPE(None, address, ctypes.c_int64, *[address] * 11)(at)
        held = kernels.held_dtype(design).nbytes
        self.entry_bytes = (design.block, design.block**2, design.block * held, design.block)
        """Bytes of an entry of each buffer here, and in the memory of `run`."""
        self.entries = (design.inputs, design.weights, design.accs, design.accs)

    def run(self, stream: Array, memory: Array | None, functional: bool = True) -> Report:
        """Run a stream (see `encoded`) on a memory of bytes, which it changes; without `functional`
        no number is computed or moved, and memory may be None.

        Raises:
            MachineError: units wait for each other, or an instruction reads or writes outside a
                buffer or memory; names the instruction.
        """
        stream = np.ascontiguousarray(stream, np.int64)
        n, d = len(stream), self.design
        units = np.where(
            stream[:, 0] == LOAD, stream[:, 2] == ACC, np.where(stream[:, 0] == STORE, 2, 1)
        )
        order, counts = np.zeros((3, max(n, 1)), np.int64), np.zeros(3, np.int64)
        for u in range(3):
            mine = np.flatnonzero(units == u)
            order[u, : len(mine)], counts[u] = mine, len(mine)
        if functional and memory is None:
            raise MachineError("an accelerator that computes needs memory")
        size = memory.nbytes if memory is not None else 1 << 62
        bits = (8 * d.input_bytes, 8 * d.weight_bytes, 8 * d.acc_bytes, 8 * d.input_bytes)
        limits = (size, d.bandwidth, d.latency, d.fill, int(functional))
        given = (*self.entries, *self.entry_bytes, *bits, *limits)
        machine = np.zeros(len(MACHINE), np.int64)
        machine[: len(GIVEN)] = given
        buffers = [
            np.zeros(count * entry if functional else 1, np.uint8)
            for count, entry in zip(self.entries, self.entry_bytes, strict=True)
        ]
        queues, trace = np.zeros((4, max(n, 1)), np.int64), np.zeros((max(n, 1), TRACE), np.int64)
        held = memory if memory is not None else buffers[0]
        arrays = [machine, held, *buffers, queues, trace, self._table]
        self._call(
            stream.ctypes.data, n, order.ctypes.data, counts.ctypes.data,
            *(a.ctypes.data for a in arrays),
        )  # fmt: skip
        found = {name: int(machine[k]) for name, k in MACHINE.items()}
        if found["error"]:
            self._fail(found, stream)
        three = {
            name: tuple(found[f"{name}{u}"] for u in range(3)) for name in ("busy", "token", "bus")
        }
        return Report(
            found["cycles"], three["busy"], three["token"], three["bus"],  # type: ignore[arg-type]
            found["gemm"], found["alu"], found["loaded"], found["stored"], trace[:n],
        )  # fmt: skip

    def _fail(self, found: dict[str, int], stream: Array) -> None:
        k, detail = found["instruction"], found["detail"]
        try:
            what = str(decoded(stream[k : k + 1])[0])
        except (IndexError, TypeError, ValueError):
            what = f"opcode {stream[k, 0]}"
        where = f"accelerator, instruction {k} ({what})"
        if found["error"] == DEADLOCK:
            raise MachineError(
                f"{where}: the {UNITS[detail]} unit waits for a token that no unit gives any more"
            )
        if found["error"] == OUTSIDE:
            place = "memory" if detail == len(BUFFERS) else f"the {BUFFERS[detail]} buffer"
            room = "" if detail == len(BUFFERS) else f" of {self.entries[detail]} entries"
            raise MachineError(f"{where} goes beyond {place}{room}")
        raise MachineError(f"{where} is no instruction of this accelerator")


@functools.lru_cache(maxsize=64)
def simulator(design: Design) -> Simulator:
    """The machine of a design.

    Raises:
        UnsupportedError: its number format is unknown, has more than 8 bits, or rounds
            stochastically.
        LoweringError: exact sums in its format need more bits than accumulators have.
    """
    return Simulator(design)


def _products_fit(dtype: DType) -> bool:
    """Whether float32 holds the product of any two numbers of a format."""
    values = np.abs(custom(dtype.name).decode(np.arange(1 << dtype.bits, dtype=np.uint8), dtype))
    sizes = values[np.isfinite(values) & (values > 0)]
    return bool(sizes.min() ** 2 >= 2.0**-126 and sizes.max() ** 2 < 2.0**127)


def _kernel(func: PrimFunc, target: Target) -> tuple[str, list[Array]]:
    """The symbol of a compiled loop nest, and the tables that it is called with."""
    nest = run(Nest(func, target, arranged=True), "schedule", "custom datatypes in loops")
    from compiler.target.intrinsics.emission import program_text

    nest.func.name = f"accel_{digest(program_text(nest.func), *target.machine)}"
    code = run(nest, "code")
    loader_of(target).compiled(code, target)
    tables = [np.ascontiguousarray(b.data) for b in nest.tables if b.data is not None]
    return code.symbols[0], tables
