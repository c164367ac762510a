"""Instructions on registers that hold matrices (see `Intrinsic.rows`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from compiler.codegen.llvm.accesses import fetch_ahead
from compiler.codegen.llvm.addresses import Addresses
from compiler.codegen.llvm.scope import Scope
from compiler.errors import LoweringError
from compiler.target.cpus import LINE
from compiler.target.emit import LLVM_BYTES, Val, memory_type
from compiler.tensor.expr import Buffer, Expr, Load
from compiler.tensor.intrinsic import Emit, Rows
from compiler.tensor.stmt import Intrin

_Key = tuple[Buffer, int, tuple[int, ...]]


def write_matrix(
    scope: Scope, addresses: Addresses, s: Intrin, emit: Emit, ahead: Mapping[Buffer, int]
) -> None:
    """Write one such instruction, and before it what fetches later rows of the operands for which
    `ahead` has so many bytes.

    Raises:
        LoweringError: an operand does not lie as the instruction takes it.
    """
    it, st = s.intrin, s.store
    assert it.rows is not None
    if scope.lanes:
        raise LoweringError(f"{it.name} cannot be in lanes of {scope.lanes[0][0]}")
    out = it.pattern.buffer.name
    given: list[Any] = []
    for name in it.lanes:
        e = s.leaves[name]
        if not isinstance(e, Load):
            raise LoweringError(f"{it.name} takes elements as they are, not {e!r}")
        if name not in it.rows:
            given.append(_held(scope, *_key(scope, addresses, s, e.buffer, e, it.lanes[name])))
            continue
        rows, apart = _rows(scope, addresses, s, name, e)
        given.append(rows)
        if e.buffer in ahead:
            loops = [it.loops[n] for n in it.lanes[name] if n != it.rows[name]]
            wide = math.prod(loops) * LLVM_BYTES[memory_type(e.buffer.dtype)]
            for k in range(it.loops[it.rows[name]]):
                for line in range(0, wide, LINE):
                    fetch_ahead(scope.e, rows.address, k * apart + line, ahead[e.buffer])
    where = Load(st.buffer, st.idx)
    if out in it.rows:
        emit(scope.e, _rows(scope, addresses, s, out, where)[0], *given)
        return
    own = tuple(n for n, v in it.vars.items() if any(i == v for i in it.pattern.idx))
    key = _key(scope, addresses, s, st.buffer, where, own)
    result: Any = emit(scope.e, _held(scope, *key) if st.update else None, *given)
    scope.regs.pop(key, None)
    scope.regs[key] = result


def _rows(scope: Scope, addresses: Addresses, s: Intrin, name: str, at: Expr) -> tuple[Rows, int]:
    """Where an operand's rows lie, whose elements must be neighbours, and how many bytes apart."""
    it = s.intrin
    assert isinstance(at, Load)
    assert it.rows is not None
    row = it.rows[name]
    inner = it.out_lanes if name == it.pattern.buffer.name else it.lanes[name]
    flat = addresses.flat_of(at.buffer, at.idx).joined()
    step = 1
    for loop in reversed([n for n in inner if n != row]):
        if flat.terms.get(s.vars[loop]) != step:
            raise LoweringError(f"{it.name}: the rows of {at.buffer.name} have gaps along {loop}")
        step *= it.loops[loop]
    e, size = scope.e, LLVM_BYTES[memory_type(at.buffer.dtype)]
    scope.env.update(dict.fromkeys(s.vars.values(), 0))
    address = addresses.address(at.buffer, flat)
    if address.pointer is None:
        raise LoweringError(f"{it.name} takes {at.buffer.name} from memory, not from a register")
    apart = flat.terms.get(s.vars[row], 0) * size
    return Rows(e.at(address.pointer, address.const * size), e.const(apart, "i64")), apart


def _key(
    scope: Scope, addresses: Addresses, s: Intrin, b: Buffer, at: Expr, loops: tuple[str, ...]
) -> _Key:
    """What the register is known by that holds an operand."""
    assert isinstance(at, Load)
    if b.scope != "register":
        raise LoweringError(f"{s.intrin.name} takes {b.name} from a register, not from memory")
    scope.env.update(dict.fromkeys(s.vars.values(), 0))
    scope.lanes = [(s.vars[n], s.intrin.loops[n]) for n in loops]
    where = addresses.address(b, addresses.flat_of(b, at.idx))
    scope.lanes = []
    assert len(where.offsets) == math.prod(s.intrin.loops[n] for n in loops)
    return b, where.const, where.offsets


def _held(scope: Scope, *key: Any) -> Val:
    if key not in scope.regs:
        raise LoweringError(f"register {key[0].name}+{key[1]} read before it is written")
    return scope.regs[key]
