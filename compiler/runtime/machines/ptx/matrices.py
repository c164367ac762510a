"""Products of small matrices, whose elements are spread over the registers of a warp.

Lane l holds, with g = l / 4, t = l % 4 and r elements in a register, as element i of register j:

    of A     row g + 8 (j % 2), column 4 r (j / 2) + r t + i
             if it has 8 rows: row g, column 4 r j + r t + i
    of B     row 4 r j + r t + i, column g
    of sums  row g + 8 (j / 2), column 2 t + j % 2

Source: PTX ISA, "warp level matrix instructions".

Sums of floats: exact products are added in float64, with the old sum, and rounded once to the type
of the result. What a GPU does in between is not specified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.access import check
from compiler.runtime.machines.ptx.control import together
from compiler.runtime.machines.ptx.decode import PARKED, Decoder, Handler, Reader, opcode
from compiler.runtime.machines.ptx.floats import bfloat, encoder, rounded
from compiler.runtime.machines.ptx.program import Instruction
from compiler.runtime.machines.ptx.wave import SHARED_WINDOW, WARP, Fault, Wave

Array = npt.NDArray[Any]

ELEMENTS = {
    "s8": 8, "u8": 8, "s4": 4, "u4": 4, "e4m3": 8, "e5m2": 8, "f16": 16, "bf16": 16, "tf32": 32,
    "f64": 64,
}  # fmt: skip
"""Bits of the elements of factors."""
_SHAPES = {
    "s8": ("m8n8k16", "m16n8k16", "m16n8k32"), "s4": ("m8n8k32", "m16n8k32", "m16n8k64"),
    "e4m3": ("m16n8k32", "m16n8k16"), "f16": ("m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"), "tf32": ("m16n8k4", "m16n8k8"), "f64": ("m8n8k4",),
}  # fmt: skip
_SHAPES |= {"u8": _SHAPES["s8"], "u4": _SHAPES["s4"], "e5m2": _SHAPES["e4m3"]}


def values_of(raw: Array, kind: str) -> Array:
    """Elements of registers (n,), as float64 of shape (n, elements in one)."""
    raw = np.ascontiguousarray(raw)
    n = len(raw)
    if kind == "f64":
        return raw.view(np.float64).reshape(n, 1)
    if kind in ("s8", "u8"):
        return raw.view(np.int8 if kind == "s8" else np.uint8).reshape(n, 4).astype(np.float64)
    if kind in ("s4", "u4"):
        parts = raw[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
        return np.asarray(parts.astype(np.float64) - (16 * (parts > 7) if kind == "s4" else 0))
    if kind == "f16":
        return np.asarray(raw.view(np.float16).reshape(n, 2), np.float64)
    if kind == "bf16":
        return bfloat(raw.view(np.uint16)).reshape(n, 2).astype(np.float64)
    if kind == "tf32":  # the low bits of float32 do not count
        return (raw & np.uint32(0xFFFFE000)).view(np.float32).reshape(n, 1).astype(np.float64)
    import ml_dtypes

    dtype = ml_dtypes.float8_e4m3fn if kind == "e4m3" else ml_dtypes.float8_e5m2
    return np.asarray(raw.view(dtype).reshape(n, 4), np.float64)


def left_factor(registers: Sequence[Array], kind: str, rows: int) -> Array:
    """A of each warp (warps, rows, columns), float64."""
    # (warps, g, columns of the register)
    parts = [values_of(r, kind).reshape(len(r) // WARP, 8, -1) for r in registers]
    step = rows // 8
    columns = [np.concatenate(parts[k : k + step], 1) for k in range(0, len(parts), step)]
    return np.concatenate(columns, 2)


def right_factor(registers: Sequence[Array], kind: str) -> Array:
    """B of each warp (warps, rows, 8), float64."""
    parts = [values_of(r, kind).reshape(len(r) // WARP, 8, -1) for r in registers]
    return np.concatenate(parts, 2).transpose(0, 2, 1)


def sums(registers: Sequence[Array], rows: int) -> Array:
    """Sums of each warp (warps, rows, 8), one a register."""
    pairs = [
        np.stack([r.reshape(-1, 8, 4) for r in registers[k : k + 2]], 3).reshape(-1, 8, 8)
        for k in range(0, len(registers), 2)
    ]
    return np.concatenate(pairs, 1)


def spread_sums(c: Array) -> list[Array]:
    """The registers of sums."""
    out = []
    for k in range(0, c.shape[1], 8):
        pairs = c[:, k : k + 8].reshape(len(c), 8, 4, 2)
        out += [pairs[..., j].reshape(-1) for j in range(2)]
    return out


def add_integers(product: Array, c: Array, clip: bool) -> Array:
    """Sums of int32, which wrap or are clipped."""
    total = product.astype(np.int64) + c
    if clip:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return total.astype(np.int32)


def whole_warps(st: Wave) -> None:
    """Refuse warps that have not 32 threads.

    Raises:
        Fault: some lanes have no thread, or have ended.
    """
    if st.count % WARP or st.count != st.warps * WARP:
        raise Fault("all 32 lanes of a warp must come here", int(st.lanes[0]))


def warp_wide(run: Callable[[Wave], None]) -> Handler:
    """A handler of an instruction that all lanes of a warp execute together."""

    def handler(st: Wave) -> int | None:
        if not together(st, 0xFFFFFFFF):
            return PARKED
        whole_warps(st)
        run(st)
        return None

    return handler


@opcode("mma")
def _mma(d: Decoder, ins: Instruction) -> Handler:
    parts = [p for p in ins.parts[1:] if p not in ("sync", "aligned")]
    shape, *mods, to, ka, kb, kc = parts
    m = re.fullmatch(r"m(\d+)n8k(\d+)", shape)
    if m is None or mods[:2] != ["row", "col"] or ka not in _SHAPES or shape not in _SHAPES[ka]:
        d.unknown("the shape")
    d.only(mods[2:], ("satfinite",))
    rows, depth, bits = int(m[1]), int(m[2]), ELEMENTS[ka]
    whole = ka in ("s8", "u8", "s4", "u4")
    if kb not in ELEMENTS or ELEMENTS[kb] != bits or (not whole and ka[0] != kb[0]) or to != kc:
        d.unknown("the types")
    known = {"s32"} if whole else {"f64"} if ka == "f64" else {"f32", "f16"}
    if to not in known or (to == "f16" and ka in ("bf16", "tf32")):
        d.unknown("the types")
    word = "b64" if ka == "f64" else "b32"
    of_d, of_a, of_b, of_c = (d.items(x) for x in ins.operands)
    width = 8 * (8 if word == "b64" else 4)
    n_sums = rows * 8 // WARP // (2 if to == "f16" else 1)
    counts = (
        n_sums,
        rows * depth * bits // width // WARP,
        8 * depth * bits // width // WARP,
        n_sums,
    )
    if tuple(map(len, (of_d, of_a, of_b, of_c))) != counts:
        d.unknown("the number of registers")
    ra, rb = [d.read(x, word) for x in of_a], [d.read(x, word) for x in of_b]
    kind = {"s32": "s32", "f32": "f32", "f64": "f64", "f16": "b32"}[to]
    rc, writers = [d.read(x, kind) for x in of_c], [d.write(x, kind) for x in of_d]
    clip = "satfinite" in mods

    def run(st: Wave) -> None:
        a = left_factor([st.wide(r(st)) for r in ra], ka, rows)
        b = right_factor([st.wide(r(st)) for r in rb], kb)
        old = [st.wide(r(st)) for r in rc]
        if to == "f16":  # two sums a register
            halves = [np.ascontiguousarray(x).view(np.float16).reshape(-1, 2) for x in old]
            old = [h[:, j] for h in halves for j in range(2)]
        c = sums(old, rows)
        product = np.matmul(a, b)
        if whole:
            out = add_integers(product, c, clip)
        elif to == "f64":
            out = product + c
        else:
            out = encoder(to)(rounded(product + c.astype(np.float64), to, "rn"))
        new = spread_sums(out)
        if to == "f16":
            pairs = (np.stack(new[k : k + 2], 1) for k in range(0, len(new), 2))
            new = [np.ascontiguousarray(p).view(np.uint32).reshape(-1) for p in pairs]
        for w, v in zip(writers, new, strict=True):
            w(st, v)

    return warp_wide(run)


def _rows(d: Decoder, ins: Instruction) -> tuple[int, bool, int]:
    """How many matrices, whether they are transposed, where generic shared addresses begin."""
    mods = list(ins.parts[1:])
    d.only(mods, ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta",
                  "b16"))  # fmt: skip
    count = next((int(m[1:]) for m in mods if m in ("x1", "x2", "x4")), 0)
    if not count or "m8n8" not in mods or mods[-1] != "b16":
        d.unknown()
    generic = not any(m.startswith("shared") for m in mods)
    return count, "trans" in mods, SHARED_WINDOW if generic else 0


def _places(st: Wave, at: Reader, count: int, window: int, store: bool) -> Array:
    """Where the rows of `count` matrices are in shared memory: (warps, count, 8 rows)."""
    address = st.wide(at(st)).reshape(-1, WARP)[:, : 8 * count].reshape(-1)
    lanes = st.lanes.reshape(-1, WARP)[:, : 8 * count].reshape(-1)
    _, byte = st.located("shared", address - np.uint64(window), 16, lanes)
    if st.races is not None:
        check(st, (st.races.store if store else st.races.load)(byte, 16, lanes))
    return byte.reshape(-1, count, 8)


@opcode("ldmatrix")
def _ldmatrix(d: Decoder, ins: Instruction) -> Handler:
    count, turned, window = _rows(d, ins)
    to, source = ins.operands
    at, writers = d.address(source), [d.write(x, "b32") for x in d.items(to)]
    if len(writers) != count:
        d.unknown("the number of registers")

    def run(st: Wave) -> None:
        byte = _places(st, at, count, window, store=False)
        matrices = st.shared.view(np.uint16)[byte[..., None] // 2 + np.arange(8)]
        if turned:
            matrices = matrices.swapaxes(2, 3)
        words = np.ascontiguousarray(matrices).view(np.uint32)  # (warps, count, 8, 4)
        for k, w in enumerate(writers):
            w(st, words[:, k].reshape(-1))

    return warp_wide(run)


@opcode("stmatrix")
def _stmatrix(d: Decoder, ins: Instruction) -> Handler:
    count, turned, window = _rows(d, ins)
    target, source = ins.operands
    at, readers = d.address(target), [d.read(x, "b32") for x in d.items(source)]
    if len(readers) != count:
        d.unknown("the number of registers")

    def run(st: Wave) -> None:
        byte = _places(st, at, count, window, store=True)
        words = np.stack([st.wide(r(st)).reshape(-1, 8, 4) for r in readers], 1)
        matrices = np.ascontiguousarray(words).view(np.uint16)
        if turned:
            matrices = matrices.swapaxes(2, 3)
        st.shared.view(np.uint16)[byte[..., None] // 2 + np.arange(8)] = matrices

    return warp_wide(run)
