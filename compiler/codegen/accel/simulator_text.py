"""The simulator of an accelerator as LLVM text: what does the instructions of a stream, and counts
their cycles.

The instruction that begins earliest is next. One begins when its unit is free, the tokens that it
takes have been given, and, for transfers, the bus is free; its effects are those of its beginning,
so that a stream whose tokens do not order a reader against a writer gives other numbers, as it
might on a machine. Loads and stores take the bus one after the other, each as long as its bytes
need; one ends `latency` cycles after that, or when the buffer has been written, an entry a cycle.
What computes takes a cycle a step, and `fill` cycles.
"""

from __future__ import annotations

from typing import NamedTuple

from compiler.codegen.accel.instructions import ALU, FIELDS, GEMM, LOAD, STORE, SUM
from compiler.codegen.accel.machine_table import (
    ARGUMENTS,
    DEADLOCK,
    MACHINE,
    TRACE,
    UNKNOWN,
    given,
)
from compiler.codegen.accel.units_text import Kernels, units_text
from compiler.codegen.accel.writer import Writer

# Queues of tokens: load -> compute, compute -> load, compute -> store, store -> compute.
_POPS = (((1, 1),), ((0, 0), (1, 3)), ((0, 2),))
_PUSHES = (((3, 0),), ((2, 1), (3, 2)), ((2, 3),))
"""For each unit: (bit of the tokens, queue)."""
_NO_NEIGHBOUR = (0b0101, 0b0000, 0b1010)


def simulator_text(kernels: Kernels, symbol: str) -> str:
    """A function of the stream, per unit the numbers of its instructions and how many these are,
    the machine, memory, the four buffers, space for the queues of tokens, the trace, and the
    kernels' tables."""
    declared = {
        kernels.unsigned: ["ptr"] * (3 + kernels.gemm_tables),
        kernels.signed: ["ptr"] * (3 + kernels.gemm_tables),
        kernels.finish: ["ptr"] * (4 + kernels.finish_tables),
    }
    if kernels.take:
        declared[kernels.take] = ["ptr"] * 3
    if kernels.greatest:
        declared[kernels.greatest] = declared[kernels.add] = ["ptr"] * 3
    if kernels.sum:
        declared[kernels.sum] = ["ptr"] * (5 + kernels.sum_tables)
    lines = [f"declare void @{name}({', '.join(args)})" for name, args in declared.items()]
    lines += [
        "declare i64 @llvm.smax.i64(i64, i64)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    ]
    return "\n".join([*lines, *units_text(kernels), _simulate(symbol)])


_NEVER = (1 << 62) - 1
_NO_OPCODE = -2


class _State(NamedTuple):
    """Tables of the simulation: of each unit the number of instructions done, when it is free, when
    its next one can begin and when that has its tokens; of each queue the tokens taken and given;
    when the bus is free, and results of the functions above."""

    head: str
    free: str
    start: str
    given: str
    first: str
    last: str
    bus: str
    on_bus: str
    best: str
    unit: str
    took: str


def _simulate(symbol: str) -> str:
    w = Writer()
    s = _State(*(w.table(n) for n in (3, 3, 3, 3, 4, 4, 1, 1, 1, 1, 1)))
    w.label("next")
    w.put(s.best, 0, _NEVER)
    w.put(s.unit, 0, -1)
    for u in range(3):
        with w.when(w.compare("slt", w.get(s.head, u), w.get("%counts", u))):
            _candidate(w, u, s)
    chosen = w.get(s.unit, 0)
    with w.when(w.compare("slt", chosen, 0)):
        for u in range(3):
            with w.when(w.compare("slt", w.get(s.head, u), w.get("%counts", u))):
                _stop(w, _number(w, u, s), DEADLOCK, u)
        w.do("ret void")
        w.begin(w.fresh("never"))
    for u in range(3):
        with w.when(w.compare("eq", chosen, u)):
            _begun(w, u, s)
    w.do("br label %next")
    arguments = (
        f"ptr %stream, i64 %n, ptr %order, ptr %counts, ptr %machine, {ARGUMENTS}, ptr %queues, "
        "ptr %trace, ptr %tables"
    )
    return w.function(f"void @{symbol}({arguments}) nounwind")


def _stop(w: Writer, number: str, error: int | None = None, detail: int = 0) -> None:
    """End the simulation at an instruction; `error` None: what it says is there."""
    w.put("%machine", MACHINE["instruction"], number)
    if error is not None:
        w.put("%machine", MACHINE["error"], error)
        w.put("%machine", MACHINE["detail"], detail)
    w.do("ret void")
    w.begin(w.fresh("never"))


def _number(w: Writer, u: int, s: _State) -> str:
    """The number in the stream of the next instruction of a unit."""
    return w.get("%order", w.add(w.mul("%n", u), w.get(s.head, u)))


def _instruction(w: Writer, number: str) -> str:
    return w.at("%stream", w.mul(number, FIELDS))


def _slot(w: Writer, queue: int, position: str) -> str:
    return w.add(w.mul("%n", queue), position)


def _candidate(w: Writer, u: int, s: _State) -> None:
    """Find out when the next instruction of unit `u` can begin, and keep that if it is first."""
    number = _number(w, u, s)
    ins = _instruction(w, number)
    tokens = w.get(ins, 1)
    wrong = w.value(f"and i64 {tokens}, {_NO_NEIGHBOUR[u]}")
    with w.when(w.compare("ne", wrong, 0)):
        _stop(w, number, UNKNOWN, 4)
    w.put(s.given, u, w.get(s.free, u))
    for bit, queue in _POPS[u]:
        with w.when(w.bit(tokens, bit)):
            there = w.compare("slt", w.get(s.first, queue), w.get(s.last, queue))
            with w.when(there):
                token = w.get("%queues", _slot(w, queue, w.get(s.first, queue)))
                w.put(s.given, u, w.max(w.get(s.given, u), token))
            with w.when(w.value(f"xor i1 {there}, true")):
                w.put(s.given, u, _NEVER)
    w.put(s.start, u, w.get(s.given, u))
    with w.when(w.any([w.compare("eq", w.get(ins, 0), k) for k in (LOAD, STORE)])):
        w.put(s.start, u, w.max(w.get(s.start, u), w.get(s.bus, 0)))
    with w.when(w.compare("slt", w.get(s.start, u), w.get(s.best, 0))):
        w.put(s.best, 0, w.get(s.start, u))
        w.put(s.unit, 0, u)


def _begun(w: Writer, u: int, s: _State) -> None:
    """Do the next instruction of unit `u`."""
    number = _number(w, u, s)
    ins = _instruction(w, number)
    tokens, operation, begin = w.get(ins, 1), w.get(ins, 0), w.get(s.start, u)
    places = ", ".join(["ptr %memory", *(f"ptr %buffer{k}" for k in range(4))])
    calls = {
        LOAD: f"@load(ptr {ins}, ptr %machine, ptr {s.on_bus}, {places})",
        GEMM: f"@gemm(ptr {ins}, ptr %machine, ptr %tables, {places})",
        ALU: f"@alu(ptr {ins}, ptr %machine, ptr %tables, {places})",
        SUM: f"@sum(ptr {ins}, ptr %machine, ptr %tables, {places})",
        STORE: f"@save(ptr {ins}, ptr %machine, ptr {s.on_bus}, {places})",
    }
    w.put(s.on_bus, 0, 0)
    w.put(s.took, 0, _NO_OPCODE)
    for opcode in ((LOAD,), (LOAD, GEMM, ALU, SUM), (STORE,))[u]:
        with w.when(w.compare("eq", operation, opcode)):
            w.put(s.took, 0, w.value(f"call i64 {calls[opcode]}"))
    cycles = w.get(s.took, 0)
    with w.when(w.compare("eq", cycles, _NO_OPCODE)):
        _stop(w, number, UNKNOWN)
    with w.when(w.compare("slt", cycles, 0)):
        _stop(w, number)
    end = w.add(begin, cycles)
    w.put_add("%machine", MACHINE[f"busy{u}"], cycles)
    waited = w.sub(w.get(s.given, u), w.get(s.free, u))
    w.put_add("%machine", MACHINE[f"token{u}"], waited)
    w.put_add("%machine", MACHINE[f"bus{u}"], w.sub(begin, w.get(s.given, u)))
    with w.when(w.compare("sgt", w.get(s.on_bus, 0), 0)):
        w.put(s.bus, 0, w.add(begin, w.get(s.on_bus, 0)))
    w.put(s.free, u, end)
    w.put("%machine", MACHINE["cycles"], w.max(given(w, "cycles"), end))
    w.put_add(s.head, u, 1)
    for bit, queue in _POPS[u]:
        with w.when(w.bit(tokens, bit)):
            w.put_add(s.first, queue, 1)
    for bit, queue in _PUSHES[u]:
        with w.when(w.bit(tokens, bit)):
            w.put("%queues", _slot(w, queue, w.get(s.last, queue)), end)
            w.put_add(s.last, queue, 1)
    line = w.mul(number, TRACE)
    for k, value in enumerate((begin, end, w.get(s.given, u))):
        w.put("%trace", w.add(line, k), value)
