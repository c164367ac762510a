"""What the units of a simulated accelerator do, as LLVM text: a function an opcode, which computes
or moves numbers, and returns the cycles that this takes, or -1 if it refuses the instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.codegen.accel.instructions import (
    ACC,
    ADD,
    FINISH,
    GREATEST,
    INPUT,
    LOOPS,
    OUTPUT,
    SET,
    TAKE,
    WEIGHT,
)
from compiler.codegen.accel.machine_table import ARGUMENTS, MACHINE, OUTSIDE, UNKNOWN, given
from compiler.codegen.accel.writer import Writer


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


def units_text(kernels: Kernels) -> list[str]:
    """The functions @load, @save, @gemm, @alu and @sum."""
    return [_load(), _save(), _gemm(kernels), _alu(kernels), _sum(kernels)]


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
        w.compare("sgt", end, given(w, "memory")),
    ])  # fmt: skip


def _transfer(w: Writer, entries: str, moved: str, bits: str, counter: str) -> None:
    """Count a transfer, put its cycles on the bus into %bus and return all of its cycles."""
    size = w.ceil_div(w.mul(moved, bits), 8)
    w.put_add("%machine", MACHINE[counter], size)
    on_bus = w.ceil_div(size, given(w, "bandwidth"))
    w.put("%bus", 0, on_bus)
    w.do(f"ret i64 {w.add(w.max(on_bus, entries), given(w, 'latency'))}")


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
                w.put(size, j, given(w, f"{name}{k}"))
            w.do(f"store ptr %buffer{k}, ptr {chosen}, align 8")
            _refuse(w, w.compare("sgt", w.add(at, entries), w.get(size, 0)), OUTSIDE, k)
    _refuse(w, w.compare("slt", w.get(size, 0), 0), UNKNOWN, 0)
    negative = [w.compare("slt", v, 0) for v in (at, rows, columns, top, bottom, left, right)]
    _refuse(w, w.any(negative), UNKNOWN, 1)
    entry, moved = w.get(size, 1), w.mul(rows, columns)
    with w.when(w.compare("sgt", moved, 0)):
        _refuse(w, _outside_memory(w, rows, columns, stride, entry), OUTSIDE, 4)
    with w.when(w.compare("ne", given(w, "functional"), 0)):
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
    return w.function(f"internal i64 @load(ptr %ins, ptr %machine, ptr %bus, {ARGUMENTS}) nounwind")


def _save() -> str:
    w = Writer()
    at, rows, columns, stride = (w.get("%ins", k) for k in (3, 5, 6, 7))
    _refuse(w, w.any([w.compare("slt", v, 0) for v in (at, rows, columns)]), UNKNOWN, 1)
    entries, entry = w.mul(rows, columns), given(w, f"bytes{OUTPUT}")
    beyond = w.compare("sgt", w.add(at, entries), given(w, f"entries{OUTPUT}"))
    _refuse(w, beyond, OUTSIDE, OUTPUT)
    with w.when(w.compare("sgt", entries, 0)):
        _refuse(w, _outside_memory(w, rows, columns, stride, entry), OUTSIDE, 4)
    with w.when(w.compare("ne", given(w, "functional"), 0)), w.loop(rows) as row:
        source = w.mul(w.add(at, w.mul(row, columns)), entry)
        to = w.add(w.get("%ins", 4), w.mul(w.mul(row, stride), entry))
        _copy(w, w.byte("%memory", to), w.byte("%buffer3", source), w.mul(columns, entry))
    _transfer(w, entries, entries, given(w, f"bits{OUTPUT}"), "stored")
    return w.function(f"internal i64 @save(ptr %ins, ptr %machine, ptr %bus, {ARGUMENTS}) nounwind")


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
        bad.append(w.compare("sge", last, given(w, f"entries{buffer}")))
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
            w.mul(w.get("%ins", 14 + LOOPS * j + depth), given(w, f"bytes{b}"))
            for j, b in enumerate(buffers)
        ]
        with w.loop(w.get("%ins", 8 + depth)) as i:
            moved = [w.byte(a, w.mul(i, s)) for a, s in zip(addresses, strides, strict=True)]
            level(depth + 1, moved)

    level(
        depth,
        [
            w.byte(f"%buffer{b}", w.mul(w.get("%ins", 3 + j), given(w, f"bytes{b}")))
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

    with w.when(w.compare("ne", given(w, "functional"), 0)):
        _nest(w, (ACC, INPUT, WEIGHT), multiply)
    w.do(f"ret i64 {w.add(steps, given(w, 'fill'))}")
    return w.function(f"internal i64 @gemm(ptr %ins, ptr %machine, ptr %tables, {ARGUMENTS})")


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

    with w.when(w.compare("ne", given(w, "functional"), 0)):
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
            entry = given(w, f"bytes{ACC}")
            _nest(w, (ACC, ACC, ACC), lambda at: _copy(w, at[0], at[2], entry))
    w.do(f"ret i64 {w.add(steps, given(w, 'fill'))}")
    return w.function(f"internal i64 @alu(ptr %ins, ptr %machine, ptr %tables, {ARGUMENTS})")


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
        between = w.mul(apart, given(w, f"bytes{INPUT}"))

        def add(at: Sequence[str]) -> None:
            given = f"ptr {at[2]}, ptr {immediates}, ptr {at[0]}"
            y = w.byte(at[1], between)
            w.do(f"call void @{kernels.sum}(ptr {at[1]}, ptr {y}, {given}{tables})")

        with w.when(w.compare("ne", given(w, "functional"), 0)):
            _nest(w, (OUTPUT, INPUT, ACC), add)
        w.do(f"ret i64 {w.add(steps, given(w, 'fill'))}")
    else:
        w.put("%machine", MACHINE["error"], UNKNOWN)
        w.do("ret i64 -1")
    return w.function(f"internal i64 @sum(ptr %ins, ptr %machine, ptr %tables, {ARGUMENTS})")
