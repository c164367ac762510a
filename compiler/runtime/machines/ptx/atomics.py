"""`atom` and `red`: of lanes at one address, one after the other, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.access import SPACES
from compiler.runtime.machines.ptx.decode import Decoder, Handler, dtype_of, opcode
from compiler.runtime.machines.ptx.floats import decoder, encoder
from compiler.runtime.machines.ptx.program import SIZES, Instruction
from compiler.runtime.machines.ptx.wave import Wave

Array = npt.NDArray[Any]
Change = Callable[[Array, Array, Array], Array]

_WORDS = (
    "relaxed", "acquire", "release", "acq_rel", "cta", "cluster", "gpu", "sys", "noftz",
    "L2::cache_hint",
)  # fmt: skip


def _bounded(step: int) -> Change:
    """`inc` and `dec`, which begin anew at their bound."""

    def up(old: Array, b: Array, _: Array) -> Array:
        return np.asarray(np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)))

    def down(old: Array, b: Array, _: Array) -> Array:
        return np.where((old == 0) | (old > b), b, old - old.dtype.type(1))

    return up if step > 0 else down


_CHANGES: dict[str, Change] = {
    "add": lambda old, b, c: old + b,
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "min": lambda old, b, c: np.minimum(old, b),
    "max": lambda old, b, c: np.maximum(old, b),
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
    "inc": _bounded(1),
    "dec": _bounded(-1),
}


@opcode("atom", "red")
def _atom(d: Decoder, ins: Instruction) -> Handler:
    name, *mods, kind = ins.parts
    space, op = "generic", ""
    for m in mods:
        base = m.partition("::")[0]
        if base in SPACES:
            space = base
        elif m in _CHANGES:
            op = m
        elif m not in _WORDS:
            d.unknown(f"modifier .{m}")
    d.kind(kind)
    floating = kind in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")
    if not op or (floating and op not in ("add", "min", "max")) or (
        floating and op != "add" and kind in ("f32", "f64")
    ):  # fmt: skip
        d.unknown("the operation")
    operands = list(ins.operands)
    write = d.write(operands.pop(0), kind) if name == "atom" else None
    at, rb = d.address(operands[0]), d.read(operands[1], kind)
    rc = d.read(operands[2], kind) if op == "cas" else None
    if len(operands) != (3 if op == "cas" else 2) + ("L2::cache_hint" in mods):
        d.unknown("the number of operands")
    change, size, dtype = _CHANGES[op], SIZES[kind], dtype_of(kind)
    decode, encode = (decoder(kind), encoder(kind)) if floating else (None, None)

    def new_of(old: Array, b: Array, c: Array) -> Array:
        if decode is None or encode is None or kind in ("f32", "f64"):
            return change(old, b, c)
        return encode(change(decode(old), decode(b), c))

    def run(st: Wave) -> None:
        address, b = st.wide(at(st)), st.wide(rb(st))
        c = st.wide(rc(st)) if rc is not None else b
        out: Array = np.empty(st.count, dtype)
        for where, which, part in st.spaces(space, address):
            who = np.arange(st.count) if which is None else which
            area, byte = st.located(where, part, size, st.lanes[who])
            view, left, index = area.view(dtype), np.arange(len(who)), byte // size
            while len(left):
                _, first = np.unique(index[left], return_index=True)
                now = left[first]
                old = view[index[now]]
                out[who[now]] = old
                view[index[now]] = new_of(old, b[who[now]], c[who[now]])
                keep = np.ones(len(left), np.bool_)
                keep[first] = False
                left = left[keep]
        if write is not None:
            write(st, out)

    return run
