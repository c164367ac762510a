"""Bytecode as Python functions, one an instruction, made once: what an instruction names is looked
up then, and nothing of it is asked for again when it runs (J. R. Bell, Threaded code, 1973).

A call under way has a list: its registers, and behind them the dimensions that it knows. What runs
from one jump to the next is a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from compiler.boundary.data import Datum
from compiler.boundary.shapes import bind_dims, match_shape, stack_rows
from compiler.errors import InputError, OutOfMemoryError
from compiler.interpret.iterations import endless, most_iterations
from compiler.symbolic import Var as Dim
from compiler.vm.bytecode import (
    Allocate,
    Append,
    Bind,
    BindSizes,
    Close,
    Field,
    Forget,
    GetField,
    GetTag,
    Instruction,
    Invoke,
    InvokeClosure,
    Jump,
    Load,
    Move,
    Pack,
    Return,
    Rows,
    Run,
    Stack,
    Start,
    Turn,
    Unless,
    UnlessTag,
    VMFunction,
)
from compiler.vm.image import Image

Registers = list[Any]
Step = Callable[[Registers], None]
Pick = Callable[[Registers], tuple[Any, ...]]


class Call(NamedTuple):
    """How a block ends that calls a function.

    Attributes:
        enter: the function, and its registers.
        out: where its result goes.
        then: the block that goes on.
    """

    enter: Callable[[Registers], tuple[Entry, Registers]]
    out: int
    then: int


class Block(NamedTuple):
    """Instructions without a jump, and then: the block that follows, a call, or the results."""

    steps: tuple[Step, ...]
    jump: Callable[[Registers], int] | None = None
    call: Call | None = None
    results: Pick | None = None


class Entry:
    """A function to be entered; its blocks are made when it first is."""

    def __init__(self, code: Code, function: VMFunction):
        self.code, self.function = code, function
        self.empty = (None,) * (function.registers - len(function.params))
        self.blocks: list[Block] = []

    def ready(self) -> list[Block]:
        """Its blocks."""
        if not self.blocks:
            self.blocks += _blocks(self)
        return self.blocks


@dataclass(frozen=True, slots=True)
class Closure:
    """A function whose first operands are given."""

    entry: Entry
    captured: tuple[Any, ...]
    dims: dict[Dim, int]


class Code:
    """The functions of an image, for one thread: what runs in it uses the same tables again.

    Attributes:
        most_turns: how often a loop may run.
    """

    def __init__(self, image: Image):
        self.image = image
        self.entries = [Entry(self, f) for f in image.functions]
        self.most_turns = most_iterations()


# ---- blocks --------------------------------------------------------------------------------------
def _blocks(entry: Entry) -> list[Block]:
    code = entry.function.code
    starts = {0}
    for k, i in enumerate(code):
        if isinstance(i, Jump | Unless | UnlessTag):
            starts |= {i.to, k + 1}
        elif isinstance(i, Invoke | InvokeClosure | Return):
            starts.add(k + 1)
    begins = sorted(s for s in starts if s < len(code))
    number = {at: k for k, at in enumerate(begins)}
    ends = [*begins[1:], len(code)]
    return [_block(entry, code[a:b], b, number) for a, b in zip(begins, ends, strict=True)]


def _block(
    entry: Entry, code: Sequence[Instruction], after: int, number: Mapping[int, int]
) -> Block:
    """One block; `after`: where the next one begins, `number`: of blocks that begin somewhere."""
    *inner, last = code
    if isinstance(last, Return):
        return Block(_steps(entry, inner), results=_picked(last.results))
    then = number.get(after, -1)
    if isinstance(last, Invoke):
        target = entry.code.entries[last.function]
        call = Call(_entered(target, _picked(last.args)), last.out, then)
        return Block(_steps(entry, inner), call=call)
    if isinstance(last, InvokeClosure):
        call = Call(_entered_closure(last.closure, _picked(last.args)), last.out, then)
        return Block(_steps(entry, inner), call=call)
    if isinstance(last, Jump):
        return Block(_steps(entry, inner), _always(number[last.to]))
    if isinstance(last, Unless):
        return Block(_steps(entry, inner), _unless(last.flag, then, number[last.to]))
    if isinstance(last, UnlessTag):
        table, other = _by_tag(entry.function.code, after - 1, number)
        return Block(_steps(entry, inner), _tagged(last.tag, table, other))
    return Block(_steps(entry, code), _always(then))


def _by_tag(
    code: Sequence[Instruction], at: int, number: Mapping[int, int]
) -> tuple[dict[str, int], int]:
    """Where values of each constructor go on that are asked for their tag at `at` and where that
    leads to, and where all others do."""
    found: dict[str, int] = {}
    first = code[at]
    while (
        isinstance(i := code[at], UnlessTag)
        and isinstance(first, UnlessTag)
        and (i.tag == first.tag)
    ):
        found.setdefault(i.constructor, number[at + 1])
        at = i.to
    return found, number[at]


def _steps(entry: Entry, code: Sequence[Instruction]) -> tuple[Step, ...]:
    return tuple(_STEPS[type(i)](i, entry) for i in code)


def _picked(registers: Sequence[int]) -> Pick:
    """What registers hold."""
    if len(registers) > 1:
        return itemgetter(*registers)
    if not registers:
        return lambda r: ()
    (k,) = registers
    return lambda r: (r[k],)


def _entered(target: Entry, args: Pick) -> Callable[[Registers], tuple[Entry, Registers]]:
    empty = target.empty
    return lambda r: (target, [*args(r), *empty, {}])


def _entered_closure(k: int, args: Pick) -> Callable[[Registers], tuple[Entry, Registers]]:
    def enter(r: Registers) -> tuple[Entry, Registers]:
        f: Closure = r[k]
        return f.entry, [*f.captured, *args(r), *f.entry.empty, dict(f.dims)]

    return enter


def _always(to: int) -> Callable[[Registers], int]:
    return lambda r: to


def _unless(flag: int, then: int, otherwise: int) -> Callable[[Registers], int]:
    return lambda r: then if r[flag] else otherwise


def _tagged(tag: int, table: dict[str, int], other: int) -> Callable[[Registers], int]:
    return lambda r: table.get(r[tag], other)


# ---- instructions --------------------------------------------------------------------------------
def _run(i: Run, entry: Entry) -> Step:
    region, args = entry.code.image.regions[i.region], _picked(i.args)
    quick, outs, name = region.prepared(), i.outs, entry.function.name

    def general(r: Registers) -> None:
        dims = r[-1]
        unknown = [str(d) for d in region.program.dims if d not in dims]
        if unknown:
            raise InputError(f"{name}: the size of dimension {', '.join(unknown)} is not known")
        try:
            made = region.run(args(r), dims)
        except (MemoryError, ValueError) as e:  # numpy says the latter of sizes beyond all memory
            given = ", ".join(f"{d} = {dims[d]}" for d in region.program.dims)
            raise OutOfMemoryError(f"{name}: no memory for sizes of {given}: {e}") from None
        for k, value in zip(outs, made, strict=False):
            r[k] = value

    if quick is None:
        return general
    prepared = quick

    def one(r: Registers) -> None:
        (r[out],) = prepared(args(r))

    def several(r: Registers) -> None:
        for k, value in zip(outs, prepared(args(r)), strict=False):
            r[k] = value

    if len(outs) == len(region.outputs) == 1:
        (out,) = outs
        return one
    return several


def _load(i: Load, entry: Entry) -> Step:
    out, value = i.out, entry.code.image.constants[i.constant]

    def step(r: Registers) -> None:
        r[out] = value

    return step


def _move(i: Move, entry: Entry) -> Step:
    outs, sources = i.outs, _picked(i.sources)
    if len(outs) == 1:
        (out,), (source,) = i.outs, i.sources

        def one(r: Registers) -> None:
            r[out] = r[source]

        return one

    def step(r: Registers) -> None:
        for k, value in zip(outs, sources(r), strict=True):
            r[k] = value

    return step


def _pack(i: Pack, entry: Entry) -> Step:
    out, fields = i.out, _picked(i.fields)

    def step(r: Registers) -> None:
        r[out] = fields(r)

    return step


def _field(i: Field, entry: Entry) -> Step:
    out, source, index = i.out, i.source, i.index

    def step(r: Registers) -> None:
        r[out] = r[source][index]

    return step


def _allocate(i: Allocate, entry: Entry) -> Step:
    out, constructor, fields = i.out, i.constructor, _picked(i.fields)

    def step(r: Registers) -> None:
        r[out] = Datum(constructor, fields(r))

    return step


def _get_tag(i: GetTag, entry: Entry) -> Step:
    out, source = i.out, i.source

    def step(r: Registers) -> None:
        r[out] = r[source].constructor

    return step


def _get_field(i: GetField, entry: Entry) -> Step:
    out, source, index = i.out, i.source, i.index

    def step(r: Registers) -> None:
        r[out] = r[source].fields[index]

    return step


def _start(i: Start, entry: Entry) -> Step:
    turns = i.turns

    def step(r: Registers) -> None:
        r[turns] = 0

    return step


def _turn(i: Turn, entry: Entry) -> Step:
    turns, code = i.turns, entry.code

    def step(r: Registers) -> None:
        if r[turns] >= code.most_turns:
            raise endless(i.name, i.origins, code.most_turns)
        r[turns] += 1

    return step


def _close(i: Close, entry: Entry) -> Step:
    out, target, captured = i.out, entry.code.entries[i.function], _picked(i.captured)
    local = i.local

    def step(r: Registers) -> None:
        r[out] = Closure(target, captured(r), dict(r[-1]) if local else {})

    return step


def _bind(i: Bind, entry: Entry) -> Step:
    source, t, what = i.source, i.type, i.what

    def step(r: Registers) -> None:
        bind_dims(t, r[source], r[-1], what)

    return step


def _bind_sizes(i: BindSizes, entry: Entry) -> Step:
    source, shape, what, claim = i.source, i.shape, i.what, i.claim

    def step(r: Registers) -> None:
        match_shape(shape, r[source], r[-1], what, claim)

    return step


def _forget(i: Forget, entry: Entry) -> Step:
    dims = [Dim(name) for name in i.dims]

    def step(r: Registers) -> None:
        for d in dims:
            r[-1].pop(d, None)

    return step


def _rows(i: Rows, entry: Entry) -> Step:
    out = i.out

    def step(r: Registers) -> None:
        r[out] = []

    return step


def _append(i: Append, entry: Entry) -> Step:
    rows, source = i.rows, i.source

    def step(r: Registers) -> None:
        r[rows].append(r[source])

    return step


def _stack(i: Stack, entry: Entry) -> Step:
    out, rows, row = i.out, i.rows, i.row

    def step(r: Registers) -> None:
        r[out] = stack_rows(r[rows], row, r[-1])

    return step


_STEPS: dict[type, Callable[[Any, Entry], Step]] = {
    Run: _run,
    Load: _load,
    Move: _move,
    Pack: _pack,
    Field: _field,
    Allocate: _allocate,
    GetTag: _get_tag,
    GetField: _get_field,
    Start: _start,
    Turn: _turn,
    Close: _close,
    Bind: _bind,
    BindSizes: _bind_sizes,
    Forget: _forget,
    Rows: _rows,
    Append: _append,
    Stack: _stack,
}
