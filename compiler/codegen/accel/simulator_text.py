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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compiler.codegen.accel.instructions import (
    ACC,
    ADD,
    ALU,
    FIELDS,
    FINISH,
    GEMM,
    GREATEST,
    INPUT,
    LOAD,
    LOOPS,
    OUTPUT,
    SET,
    STORE,
    SUM,
    TAKE,
    WEIGHT,
)
from compiler.codegen.accel.writer import Writer

GIVEN = (
    "entries0", "entries1", "entries2", "entries3",  # of the four buffers
    "bytes0", "bytes1", "bytes2", "bytes3",  # of an entry, here
    "bits0", "bits1", "bits2", "bits3",  # of an entry, on the chip and in memory
    "memory", "bandwidth", "latency", "fill", "functional",
)  # fmt: skip
"""What a table says of the machine; `functional` 0: cycles alone are counted."""
COUNTED = (
    "error", "instruction", "detail", "cycles",
    "busy0", "busy1", "busy2", "token0", "token1", "token2", "bus0", "bus1", "bus2",
    "gemm", "alu", "loaded", "stored",
)  # fmt: skip
"""What is in the same table afterwards: errors (see ERRORS), cycles of the units at work, waiting
for tokens, waiting for the bus; steps of GEMM and ALU; bytes."""
MACHINE = {name: k for k, name in enumerate((*GIVEN, *COUNTED))}
DEADLOCK, OUTSIDE, UNKNOWN = 1, 2, 3
TRACE = 3
"""Numbers of an instruction's trace: begin, end, and when its tokens were there."""

# Queues of tokens: load -> compute, compute -> load, compute -> store, store -> compute.
_POPS = (((1, 1),), ((0, 0), (1, 3)), ((0, 2),))
_PUSHES = (((3, 0),), ((2, 1), (3, 2)), ((2, 3),))
"""For each unit: (bit of the tokens, queue)."""
_NO_NEIGHBOUR = (0b0101, 0b0000, 0b1010)
_BUFFERS = "ptr %memory, ptr %buffer0, ptr %buffer1, ptr %buffer2, ptr %buffer3"


@dataclass(frozen=True)
class Kernels:
    """The symbols of what computes: vector by block of unsigned and of signed data, what makes
    results, what takes bytes, compares and adds them (cores of formats have none), what adds two
    vectors of data (cores whose accumulators round have none); with how many tables each is
    called."""

    unsigned: str
    signed: str
    finish: str
    take: str = ""
    greatest: str = ""
    add: str = ""
    sum: str = ""
    gemm_tables: int = 0
    finish_tables: int = 0
    sum_tables: int = 0


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
    computing = [_gemm(kernels), _alu(kernels), _sum(kernels)]
    functions = [_load(), _save(), *computing, _simulate(symbol)]
    return "\n".join([*lines, *functions])


def _given(w: Writer, name: str) -> str:
    return w.get("%machine", MACHINE[name])


def _refuse(w: Writer, condition: str, error: int, detail: int) -> None:
    with w.when(condition):
        w.put("%machine", MACHINE["error"], error)
        w.put("%machine", MACHINE["detail"], detail)
        w.do("ret i64 -1")
        w.begin(w.fresh("never"))


def _outside_memory(w: Writer, rows: str, columns: str, stride: str, entry: str) -> str:
    """Whether rows of entries from an instruction's address on are not all in memory."""
    address = w.get("%ins", 4)
    last = w.add(w.mul(w.sub(rows, 1), stride), columns)
    end = w.add(address, w.mul(last, entry))
    return w.any([
        w.compare("slt", address, 0),
        w.compare("slt", stride, 0),
        w.compare("sgt", end, _given(w, "memory")),
    ])  # fmt: skip


def _transfer(w: Writer, entries: str, moved: str, bits: str, counter: str) -> None:
    """Count a transfer, put its cycles on the bus into %bus and return all of its cycles."""
    size = w.ceil_div(w.mul(moved, bits), 8)
    w.put_add("%machine", MACHINE[counter], size)
    on_bus = w.ceil_div(size, _given(w, "bandwidth"))
    w.put("%bus", 0, on_bus)
    w.do(f"ret i64 {w.add(w.max(on_bus, entries), _given(w, 'latency'))}")


def _copy(w: Writer, to: str, source: str, size: str) -> None:
    w.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {size}, i1 false)")


def _load() -> str:
    w = Writer()
    at, rows, columns, stride = (w.get("%ins", k) for k in (3, 5, 6, 7))
    top, bottom, left, right = (w.get("%ins", k) for k in (8, 9, 10, 11))
    wide = w.add(w.add(left, columns), right)
    entries = w.mul(w.add(w.add(top, rows), bottom), wide)
    size = w.table(3)  # of the buffer: entries, bytes and bits of an entry
    chosen = w.value("alloca ptr, align 8")
    buffer = w.get("%ins", 2)
    w.put(size, 0, -1)
    for k in (INPUT, WEIGHT, ACC):
        with w.when(w.compare("eq", buffer, k)):
            for j, name in enumerate(("entries", "bytes", "bits")):
                w.put(size, j, _given(w, f"{name}{k}"))
            w.do(f"store ptr %buffer{k}, ptr {chosen}, align 8")
            _refuse(w, w.compare("sgt", w.add(at, entries), w.get(size, 0)), OUTSIDE, k)
    _refuse(w, w.compare("slt", w.get(size, 0), 0), UNKNOWN, 0)
    negative = [w.compare("slt", v, 0) for v in (at, rows, columns, top, bottom, left, right)]
    _refuse(w, w.any(negative), UNKNOWN, 1)
    entry, moved = w.get(size, 1), w.mul(rows, columns)
    with w.when(w.compare("sgt", moved, 0)):
        _refuse(w, _outside_memory(w, rows, columns, stride, entry), OUTSIDE, 4)
    with w.when(w.compare("ne", _given(w, "functional"), 0)):
        base = w.byte(w.value(f"load ptr, ptr {chosen}, align 8"), w.mul(at, entry))
        with w.when(w.compare("ne", entries, moved)):
            filling = w.value(f"trunc i64 {w.get('%ins', 12)} to i8")
            whole = w.mul(entries, entry)
            w.do(f"call void @llvm.memset.p0.i64(ptr {base}, i8 {filling}, i64 {whole}, i1 false)")
        with w.loop(rows) as row:
            to = w.mul(w.add(w.mul(w.add(row, top), wide), left), entry)
            source = w.add(w.get("%ins", 4), w.mul(w.mul(row, stride), entry))
            _copy(w, w.byte(base, to), w.byte("%memory", source), w.mul(columns, entry))
    _transfer(w, entries, moved, w.get(size, 2), "loaded")
    return w.function(f"internal i64 @load(ptr %ins, ptr %machine, ptr %bus, {_BUFFERS}) nounwind")


def _save() -> str:
    w = Writer()
    at, rows, columns, stride = (w.get("%ins", k) for k in (3, 5, 6, 7))
    _refuse(w, w.any([w.compare("slt", v, 0) for v in (at, rows, columns)]), UNKNOWN, 1)
    entries, entry = w.mul(rows, columns), _given(w, f"bytes{OUTPUT}")
    beyond = w.compare("sgt", w.add(at, entries), _given(w, f"entries{OUTPUT}"))
    _refuse(w, beyond, OUTSIDE, OUTPUT)
    with w.when(w.compare("sgt", entries, 0)):
        _refuse(w, _outside_memory(w, rows, columns, stride, entry), OUTSIDE, 4)
    with w.when(w.compare("ne", _given(w, "functional"), 0)), w.loop(rows) as row:
        source = w.mul(w.add(at, w.mul(row, columns)), entry)
        to = w.add(w.get("%ins", 4), w.mul(w.mul(row, stride), entry))
        _copy(w, w.byte("%memory", to), w.byte("%buffer3", source), w.mul(columns, entry))
    _transfer(w, entries, entries, _given(w, f"bits{OUTPUT}"), "stored")
    return w.function(f"internal i64 @save(ptr %ins, ptr %machine, ptr %bus, {_BUFFERS}) nounwind")


def _steps(w: Writer, checked: Sequence[tuple[int, int, str] | tuple[int, int, str, str]]) -> str:
    """How many steps a computing instruction has, whose indices (number of the index, buffer, i1
    that says whether it is used, and how far beyond it is read, if it is) are all within their
    buffers."""
    extents = [w.get("%ins", 8 + k) for k in range(LOOPS)]
    _refuse(w, w.any([w.compare("slt", e, 1) for e in extents]), UNKNOWN, 2)
    for index, buffer, used, *beyond in checked:
        base = w.get("%ins", 3 + index)
        last = w.add(base, beyond[0]) if beyond else base
        bad = [w.compare("slt", base, 0)]
        for k, extent in enumerate(extents):
            stride = w.get("%ins", 14 + LOOPS * index + k)
            bad.append(w.compare("slt", stride, 0))
            last = w.add(last, w.mul(w.sub(extent, 1), stride))
        bad.append(w.compare("sge", last, _given(w, f"entries{buffer}")))
        _refuse(w, w.value(f"and i1 {used}, {w.any(bad)}"), OUTSIDE, buffer)
    total = extents[0]
    for extent in extents[1:]:
        total = w.mul(total, extent)
    return total


def _nest(
    w: Writer, buffers: Sequence[int], inner: Callable[[Sequence[str]], None], depth: int = 0
) -> None:
    """The loops of a computing instruction around `inner`, which is given the addresses of the
    three indices in these buffers."""

    def level(depth: int, addresses: list[str]) -> None:
        if depth == LOOPS:
            inner(addresses)
            return
        strides = [
            w.mul(w.get("%ins", 14 + LOOPS * j + depth), _given(w, f"bytes{b}"))
            for j, b in enumerate(buffers)
        ]
        with w.loop(w.get("%ins", 8 + depth)) as i:
            moved = [w.byte(a, w.mul(i, s)) for a, s in zip(addresses, strides, strict=True)]
            level(depth + 1, moved)

    level(
        depth,
        [
            w.byte(f"%buffer{b}", w.mul(w.get("%ins", 3 + j), _given(w, f"bytes{b}")))
            for j, b in enumerate(buffers)
        ],
    )


def _tables(w: Writer, first: int, count: int) -> str:
    """The arguments that are look-up tables."""
    found = [w.value(f"load ptr, ptr {w.at('%tables', first + k)}, align 8") for k in range(count)]
    return "".join(f", ptr {t}" for t in found)


def _gemm(kernels: Kernels) -> str:
    w = Writer()
    steps = _steps(w, [(0, ACC, "true"), (1, INPUT, "true"), (2, WEIGHT, "true")])
    w.put_add("%machine", MACHINE["gemm"], steps)
    signed = w.bit(w.get("%ins", 2), 0)
    called = w.value(f"select i1 {signed}, ptr @{kernels.signed}, ptr @{kernels.unsigned}")
    tables = _tables(w, 0, kernels.gemm_tables)

    def multiply(at: Sequence[str]) -> None:
        w.do(f"call void {called}(ptr {at[1]}, ptr {at[2]}, ptr {at[0]}{tables})")

    with w.when(w.compare("ne", _given(w, "functional"), 0)):
        _nest(w, (ACC, INPUT, WEIGHT), multiply)
    w.do(f"ret i64 {w.add(steps, _given(w, 'fill'))}")
    return w.function(f"internal i64 @gemm(ptr %ins, ptr %machine, ptr %tables, {_BUFFERS})")


def _alu(kernels: Kernels) -> str:
    w = Writer()
    what = w.get("%ins", 2)
    finishes, sets = w.compare("eq", what, FINISH), w.compare("eq", what, SET)
    takes = w.compare("eq", what, TAKE if kernels.take else -1)
    compares = w.compare("eq", what, GREATEST if kernels.greatest else -1)
    adds = w.compare("eq", what, ADD if kernels.add else -1)
    reads = w.any([compares, adds])
    makes, changes = w.any([finishes, takes]), w.any([sets, reads])
    _refuse(w, w.value(f"xor i1 {w.any([makes, changes])}, true"), UNKNOWN, 3)
    read = [(1, ACC, makes), (1, INPUT, reads), (2, ACC, "true")]
    steps = _steps(w, [(0, OUTPUT, makes), (0, ACC, changes), *read])
    w.put_add("%machine", MACHINE["alu"], steps)
    immediates = w.value("alloca [3 x i32], align 8")
    _unpack(w, immediates, 0, w.get("%ins", 6), 3)
    tables = _tables(w, kernels.gemm_tables, kernels.finish_tables)

    def finish(at: Sequence[str]) -> None:
        args = f"ptr {at[1]}, ptr {at[2]}, ptr {immediates}, ptr {at[0]}"
        w.do(f"call void @{kernels.finish}({args}{tables})")

    def take(at: Sequence[str]) -> None:
        w.do(f"call void @{kernels.take}(ptr {at[1]}, ptr {immediates}, ptr {at[0]})")

    def read_bytes(called: str, at: Sequence[str]) -> None:
        w.do(f"call void {called}(ptr {at[1]}, ptr {immediates}, ptr {at[0]})")

    with w.when(w.compare("ne", _given(w, "functional"), 0)):
        if kernels.greatest:
            called = w.value(f"select i1 {adds}, ptr @{kernels.add}, ptr @{kernels.greatest}")
            with w.when(reads):
                _nest(w, (ACC, INPUT, ACC), lambda at: read_bytes(called, at))
        with w.when(finishes):
            _nest(w, (OUTPUT, ACC, ACC), finish)
        if kernels.take:
            with w.when(takes):
                _nest(w, (OUTPUT, ACC, ACC), take)
        with w.when(sets):
            entry = _given(w, f"bytes{ACC}")
            _nest(w, (ACC, ACC, ACC), lambda at: _copy(w, at[0], at[2], entry))
    w.do(f"ret i64 {w.add(steps, _given(w, 'fill'))}")
    return w.function(f"internal i64 @alu(ptr %ins, ptr %machine, ptr %tables, {_BUFFERS})")


def _unpack(w: Writer, immediates: str, first: int, packed: str, count: int) -> None:
    """Put the halves of a number, from the lowest on, behind each other as i32."""
    for k in range(count):
        half = w.value(f"trunc i64 {w.value(f'lshr i64 {packed}, {16 * k}')} to i16")
        _put_immediate(w, immediates, first + k, w.value(f"sext i16 {half} to i32"))


def _put_immediate(w: Writer, immediates: str, k: int, value: str) -> None:
    place = w.value(f"getelementptr i32, ptr {immediates}, i64 {k}")
    w.do(f"store i32 {value}, ptr {place}, align 4")


def _sum(kernels: Kernels) -> str:
    w = Writer()
    if kernels.sum:
        apart = w.get("%ins", 7)
        _refuse(w, w.compare("slt", apart, 0), OUTSIDE, INPUT)
        data = [(1, INPUT, "true", apart), (2, ACC, "true", "1")]
        steps = w.mul(_steps(w, [(0, OUTPUT, "true"), *data]), 2)
        w.put_add("%machine", MACHINE["alu"], steps)
        immediates = w.value("alloca [7 x i32], align 8")
        _unpack(w, immediates, 0, w.get("%ins", 6), 3)
        operands = w.get("%ins", 2)
        _unpack(w, immediates, 3, operands, 2)
        for k in range(2):
            signed = w.bit(operands, 32 + k)
            _put_immediate(w, immediates, 5 + k, w.value(f"select i1 {signed}, i32 -128, i32 0"))
        tables = _tables(w, kernels.gemm_tables + kernels.finish_tables, kernels.sum_tables)
        between = w.mul(apart, _given(w, f"bytes{INPUT}"))

        def add(at: Sequence[str]) -> None:
            given = f"ptr {at[2]}, ptr {immediates}, ptr {at[0]}"
            y = w.byte(at[1], between)
            w.do(f"call void @{kernels.sum}(ptr {at[1]}, ptr {y}, {given}{tables})")

        with w.when(w.compare("ne", _given(w, "functional"), 0)):
            _nest(w, (OUTPUT, INPUT, ACC), add)
        w.do(f"ret i64 {w.add(steps, _given(w, 'fill'))}")
    else:
        w.put("%machine", MACHINE["error"], UNKNOWN)
        w.do("ret i64 -1")
    return w.function(f"internal i64 @sum(ptr %ins, ptr %machine, ptr %tables, {_BUFFERS})")


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
        f"ptr %stream, i64 %n, ptr %order, ptr %counts, ptr %machine, {_BUFFERS}, ptr %queues, "
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
    w.put("%machine", MACHINE["cycles"], w.max(_given(w, "cycles"), end))
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
