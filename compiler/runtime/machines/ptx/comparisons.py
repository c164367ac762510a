"""Comparisons, of integers and floats, and what picks by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx import floats
from compiler.runtime.machines.ptx.decode import Decoder, Handler, dtype_of, opcode
from compiler.runtime.machines.ptx.integers import is_integer, ternary
from compiler.runtime.machines.ptx.program import Instruction, Negated, Pair, Symbol
from compiler.runtime.machines.ptx.wave import Wave

Array = npt.NDArray[Any]

_ORDERS: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def comparison(d: Decoder, name: str, kind: str, ftz: bool) -> Callable[[Array, Array], Array]:
    """What compares values of a type."""
    if name in _UNSIGNED and kind[0] in "ub" and is_integer(kind):
        name = _UNSIGNED[name]
    if is_integer(kind):
        if name not in _ORDERS:
            d.unknown(f"comparison .{name}")
        order: Callable[[Array, Array], Array] = _ORDERS[name]
        return order
    decode = floats.decoder(kind, ftz)
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(decode(a)) | np.isnan(decode(b))) == (name == "nan")
    base, other = (name[:-1], True) if name[-1] == "u" and len(name) == 3 else (name, False)
    if base not in _ORDERS:
        d.unknown(f"comparison .{name}")
    f = _ORDERS[base]

    def compare(a: Array, b: Array) -> Array:
        x, y = decode(a), decode(b)
        out = f(x, y)
        if other:
            out = out | np.isnan(x) | np.isnan(y)
        elif base == "ne":  # ordered: of numbers only
            out = out & ~np.isnan(x) & ~np.isnan(y)
        return np.asarray(out)

    return compare


@opcode("setp", "set")
def _setp(d: Decoder, ins: Instruction) -> Handler:
    name, order, *mods = ins.parts
    kind = d.kind(mods.pop())
    to_kind = "pred" if name == "setp" else d.kind(mods.pop())
    ftz = "ftz" in mods
    joins = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    join: Any = next((joins[m] for m in mods if m in joins), None)
    d.only(mods, ("ftz", *joins))
    if kind in ("f16x2", "bf16x2"):
        d.unknown(f"type .{kind}")
    compare = comparison(d, order, kind, ftz)
    to, a, b, *rest = ins.operands
    if (join is None) != (not rest):
        d.unknown()
    ra, rb = d.read(a, kind), d.read(b, kind)
    rc = d.read(rest[0], "pred") if rest else None
    first = to.first if isinstance(to, Pair) else to
    write = d.write(first, to_kind)
    other = d.write(to.second, "pred") if isinstance(to, Pair) else None

    def value(p: Array) -> Array:
        if to_kind == "pred":
            return p
        if to_kind in ("f32", "f16", "bf16"):
            return floats.encoder(to_kind)(p.astype(np.float32))
        return np.asarray(np.where(p, ~dtype_of(to_kind)(0), dtype_of(to_kind)(0)))

    def run(st: Wave) -> None:
        p = compare(ra(st), rb(st))
        q = ~p
        if rc is not None:
            c = rc(st)
            p, q = join(p, c), join(q, c)
        write(st, value(p))
        if other is not None:
            other(st, q)

    return run


@opcode("selp")
def _selp(d: Decoder, ins: Instruction) -> Handler:
    _, kind = ins.parts
    if isinstance(ins.operands[3], Symbol | Negated):
        d.unknown("a predicate is expected")
    return ternary(d, ins, f"{d.kind(kind)} {kind} {kind} pred", lambda a, b, c: np.where(c, a, b))


@opcode("slct")
def _slct(d: Decoder, ins: Instruction) -> Handler:
    _, *mods, kind, by = ins.parts
    d.only(mods, ("ftz",))
    return ternary(
        d, ins, f"{d.kind(kind)} {kind} {kind} {d.kind(by)}", lambda a, b, c: np.where(c >= 0, a, b)
    )
