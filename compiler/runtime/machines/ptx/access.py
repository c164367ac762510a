"""Loads, stores, moves and conversions of addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.decode import Decoder, Handler, Reader, Writer, dtype_of, opcode
from compiler.runtime.machines.ptx.program import (
    SIZES,
    Address,
    Instruction,
    Operand,
    Symbol,
    Vector,
)
from compiler.runtime.machines.ptx.wave import LOCAL_WINDOW, SHARED_WINDOW, Fault, Wave

Array = npt.NDArray[Any]

SPACES = ("global", "shared", "local", "const", "param")
_ORDERS = ("volatile", "relaxed", "acquire", "release", "weak", "mmio")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_HINTS = ("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt")
_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}


def cache_hint(part: str) -> bool:
    """Whether a part of an opcode is about caches only."""
    return part in _HINTS or part.startswith(("L1::", "L2::"))


def check(st: Wave, found: tuple[str, int] | None) -> None:
    """Raise what `Races` found."""
    if found is not None:
        raise Fault(f"race in shared memory: {found[0]}", found[1])


def gather(st: Wave, space: str, address: Array, dtype: Any, n: int) -> list[Array]:
    """`n` elements one behind the other from each active lane's address on."""
    size = np.dtype(dtype).itemsize
    parts = st.spaces(space, address)
    out = [np.empty(st.count, dtype) for _ in range(n)] if len(parts) > 1 else []
    for where, which, at in parts:
        lanes = st.lanes if which is None else st.lanes[which]
        area, byte = st.located(where, at, size * n, lanes)
        if where == "shared" and st.races is not None:
            check(st, st.races.load(byte, size * n, lanes))
        view, first = area.view(dtype), byte >> (size.bit_length() - 1)
        for k in range(n):
            got = view[first + k if k else first]
            if len(parts) == 1 and which is None:
                out.append(got)
            elif which is None:
                out[k][:] = got
            else:
                if k == len(out):
                    out.append(np.empty(st.count, dtype))
                out[k][which] = got
    return out


def scatter(st: Wave, space: str, address: Array, values: list[Array]) -> None:
    """Store elements one behind the other from each active lane's address on."""
    dtype, n = values[0].dtype, len(values)
    size = dtype.itemsize
    for where, which, at in st.spaces(space, address):
        lanes = st.lanes if which is None else st.lanes[which]
        area, byte = st.located(where, at, size * n, lanes)
        if where == "shared" and st.races is not None:
            check(st, st.races.store(byte, size * n, lanes))
        view, first = area.view(dtype.type), byte >> (size.bit_length() - 1)
        for k in range(n):
            view[first + k] = values[k] if which is None else values[k][which]


def _form(d: Decoder, ins: Instruction) -> tuple[str, int, str]:
    """State space, number of elements and type of a load or store."""
    _, *mods, kind = ins.parts
    space, n = "generic", 1
    for m in mods:
        base = m.partition("::")[0]
        if base in SPACES:
            space = base
        elif m in ("v2", "v4", "v8"):
            n = int(m[1:])
        elif m not in (*_ORDERS, *_SCOPES) and not cache_hint(m):
            d.unknown(f"modifier .{m}")
    return space, n, d.kind(kind)


def _raw(kind: str) -> str:
    """The type with as many bits: loads and stores do not look at values, unless they extend."""
    return kind if kind[0] in "us" else f"b{8 * SIZES[kind]}"


@opcode("ld", "ldu")
def _load(d: Decoder, ins: Instruction) -> Handler:
    space, n, kind = _form(d, ins)
    kind = _raw(kind)
    to, source = ins.operands[0], ins.operands[1]
    writers = [d.write(x, kind) for x in d.items(to)]
    if len(writers) != n:
        d.unknown(f"{len(writers)} registers for {n} values")
    if space == "param":
        return _load_param(d, source, writers, kind)
    at, dtype = d.address(source), dtype_of(kind)

    def run(st: Wave) -> None:
        values = gather(st, space, st.wide(at(st)), dtype, n)
        for w, v in zip(writers, values, strict=True):
            w(st, v)

    return run


@opcode("st")
def _store(d: Decoder, ins: Instruction) -> Handler:
    space, n, kind = _form(d, ins)
    kind = _raw(kind)
    target, source = ins.operands[0], ins.operands[1]
    readers = [d.read(x, kind) for x in d.items(source)]
    if len(readers) != n:
        d.unknown(f"{len(readers)} registers for {n} values")
    if space == "param":
        return _store_param(d, target, readers, kind)
    at = d.address(target)

    def run(st: Wave) -> None:
        scatter(st, space, st.wide(at(st)), [st.wide(r(st)) for r in readers])

    return run


def _param(d: Decoder, operand: Operand) -> tuple[str, int]:
    """Name and offset of a parameter."""
    if not isinstance(operand, Address) or not isinstance(operand.base, Symbol):
        d.unknown("a parameter by its name is expected")
    return operand.base.name, operand.base.offset + operand.offset


def _load_param(d: Decoder, source: Operand, writers: list[Writer], kind: str) -> Handler:
    name, offset = _param(d, source)
    size, dtype = SIZES[kind], dtype_of(kind)

    def run(st: Wave) -> None:
        data = st.frame.params.get(name)
        if data is None or offset + size * len(writers) > data.shape[1]:
            raise Fault(f"there is no parameter {name}+{offset}")
        for k, w in enumerate(writers):
            each = data[:, offset + size * k : offset + size * (k + 1)]
            each = each if len(data) == 1 else each[st.act]
            w(st, np.ascontiguousarray(each).view(dtype).reshape(-1))

    return run


def _store_param(d: Decoder, target: Operand, readers: list[Reader], kind: str) -> Handler:
    name, offset = _param(d, target)
    size = SIZES[kind]

    def run(st: Wave) -> None:
        data = st.frame.params.get(name)
        if data is None or offset + size * len(readers) > data.shape[1]:
            raise Fault(f"there is no parameter {name}+{offset}")
        for k, r in enumerate(readers):
            values = np.ascontiguousarray(st.wide(r(st))).view(np.uint8).reshape(-1, size)
            data[st.act, offset + size * k : offset + size * (k + 1)] = values

    return run


@opcode("mov")
def _mov(d: Decoder, ins: Instruction) -> Handler:
    _, kind = ins.parts
    to, a = ins.operands
    d.kind(kind)
    if isinstance(to, Vector) or isinstance(a, Vector):
        kind = f"b{8 * SIZES[kind]}"
    write, read = d.write(to, kind), d.read(a, kind)
    if isinstance(to, Vector):
        return lambda st: write(st, st.wide(read(st)))
    return lambda st: write(st, read(st))


@opcode("cvta")
def _cvta(d: Decoder, ins: Instruction) -> Handler:
    _, *way, space, kind = ins.parts
    space = space.partition("::")[0]
    if space not in SPACES or way not in ([], ["to"]):
        d.unknown()
    if space == "param":
        d.unknown("addresses of parameters are not supported")
    start = _WINDOWS.get(space, 0)
    step = np.uint64((-start if way else start) & 2**64 - 1)
    to, a = ins.operands
    write, read = d.write(to, d.kind(kind)), d.read(a, kind)
    return lambda st: write(st, read(st) + step)


@opcode("isspacep")
def _isspace(d: Decoder, ins: Instruction) -> Handler:
    space = ins.parts[1].partition("::")[0]
    if space not in ("global", "shared", "local"):
        d.unknown(f"modifier .{space}")
    to, a = ins.operands
    write, read = d.write(to, "pred"), d.read(a, "u64")

    def run(st: Wave) -> None:
        address = st.wide(read(st))
        out = np.zeros(st.count, np.bool_)
        for where, which, _ in st.spaces("generic", address):
            out[slice(None) if which is None else which] = where == space
        write(st, out)

    return run


@opcode(
    "prefetch",
    "prefetchu",
    "fence",
    "membar",
    "nanosleep",
    "discard",
    "applypriority",
    "griddepcontrol",
    "setmaxnreg",
)
def _nothing(d: Decoder, ins: Instruction) -> Handler:
    """What concerns caches, order between threads, time or the number of registers only."""
    return lambda st: None
