"""What LLVM code an intrinsic becomes, and the text that tells programs with intrinsics apart."""

from __future__ import annotations

import hashlib
import math
from typing import Any
from weakref import WeakKeyDictionary

from compiler.target.emit import Emitter, Val, llvm_type
from compiler.tensor.expr import loads
from compiler.tensor.intrinsic import Intrinsic, Rows
from compiler.tensor.naming import buffers
from compiler.tensor.printer import primfunc_text
from compiler.tensor.stmt import Intrin, PrimFunc, walk_stmts
from compiler.types.dtypes import DType

_texts: WeakKeyDictionary[Intrinsic, str] = WeakKeyDictionary()


def emitted(intrinsic: Intrinsic) -> str:
    """LLVM text for placeholder operands, or the loops if there is none: what tells intrinsics of
    one name apart."""
    if intrinsic not in _texts:
        _texts[intrinsic] = _emitted(intrinsic)
    return _texts[intrinsic]


def _emitted(it: Intrinsic) -> str:
    e, emit = Emitter(), it.emitter("llvm")
    if emit is None:
        return f"{it.pattern.buffer!r}{it.pattern.idx} {it.pattern.update} {it.pattern.value!r}"

    def values(name: str, dtype: DType, lanes: tuple[str, ...]) -> list[Val]:
        n = math.prod(it.loops[x] for x in lanes)
        rows = math.prod(it.loops.values()) // n
        return [Val(f"%{name}{k}", llvm_type(dtype), n) for k in range(rows)]

    if it.rows is not None:
        out = emit(e, *_operands(it))
        return "\n".join([*e.decls.values(), *e.lines, str(out)])
    dtypes = {x.buffer.name: x.dtype for x in loads(it.pattern.value)}
    acc = values("acc", it.pattern.buffer.dtype, it.out_lanes)[:1]
    given = [values(n, dtypes[n], lanes) for n, lanes in it.lanes.items()]
    out = emit(e, acc[0] if it.pattern.update else None, *given)
    return "\n".join([*e.decls.values(), *e.lines, str(out), str(it.order)])


def _operands(it: Intrinsic) -> list[Any]:
    """Placeholders for what `emit` is given of an instruction on matrices."""
    assert it.rows is not None
    names = [it.pattern.buffer.name, *it.lanes]
    rows = {n: Rows(Val(f"%{n}", "ptr"), Val(f"%{n}.step", "i64")) for n in it.rows}
    first = it.pattern.update or names[0] in rows
    given = [rows.get(n) or Val(f"%{n}", "x86_amx") for n in names]
    return [given[0] if first else None, *given[1:]]


def program_text(f: PrimFunc) -> str:
    """The text of `f`, the contents of its tables and the instructions of its intrinsics."""
    parts = [primfunc_text(f, attrs=False)]
    for b in buffers(f):
        if b.data is not None:
            content = hashlib.sha256(b.data.tobytes()).hexdigest()
            parts.append(f"{b.name}: {b.data.dtype}{b.data.shape} {content}")
    used = {s.intrin for s, _, _ in walk_stmts(f.body) if isinstance(s, Intrin)}
    return "\n".join([*parts, *sorted(map(emitted, used))])
