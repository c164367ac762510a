"""`wgmma`: products of four warps, whose factors are in shared memory.

Each warp computes its 16 rows. Products are late as copies are: factors in shared memory are read,
and sums written, when a warp waits for their group. Factors are by rows of K ("K-major"), in blocks
of 8 rows of 16 bytes, plain or in one of the three orders of swizzling. Source: PTX ISA,
"asynchronous warpgroup level matrix instructions".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.runtime.machines.ptx.access import check
from compiler.runtime.machines.ptx.decode import Decoder, Handler, opcode
from compiler.runtime.machines.ptx.floats import encoder, rounded
from compiler.runtime.machines.ptx.matrices import (
    ELEMENTS,
    add_integers,
    left_factor,
    values_of,
    warp_wide,
)
from compiler.runtime.machines.ptx.program import Immediate, Instruction, Vector
from compiler.runtime.machines.ptx.wave import WARP, Wave

Array = npt.NDArray[Any]

_DEPTHS = {"s8": 32, "u8": 32, "e4m3": 32, "e5m2": 32, "f16": 16, "bf16": 16, "tf32": 8}
_SWIZZLES = {0: 0, 1: 7, 2: 3, 3: 1}
"""Of the field of descriptors: which bits of the row go into those of the 16 bytes."""
_ROW = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes from one row of a block to the next."""


@dataclass
class Product:
    """Products that were issued and not waited for.

    Attributes:
        lanes: of whole warps; groups: the number of the group, of each warp.
        run: adds the products of warps, by their numbers among these.
    """

    lanes: Array
    groups: Array
    run: Callable[[Wave, Array], None]


def factor(st: Wave, descriptor: Array, rows: Array, kind: str, lanes: Array) -> Array:
    """A factor of each warp (warps, rows, depth), float64, of which `rows` (warps, n) are read.

    Raises:
        Fault: some of its bytes are nobody's.
    """
    field = descriptor.astype(np.int64)
    start, lead, stride = ((field >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    mode = field >> 62 & 3
    out = []
    for k in range(len(descriptor)):
        how = int(mode[k])
        r, chunk = rows[k][:, None], np.arange(2)
        at = start[k] + (r >> 3) * stride[k] + (r & 7) * _ROW[how]
        at = at + chunk * (16 if how else lead[k])
        at = at ^ (at >> 7 & _SWIZZLES[how]) << 4
        flat = at.reshape(-1)
        who = np.full(len(flat), lanes[k])
        _, byte = st.located("shared", flat.view(np.uint64), 16, who)
        if st.races is not None:
            check(st, st.races.load(byte, 16, who))
        out.append(st.shared.data[byte[:, None] + np.arange(16)].reshape(len(rows[k]), 32))
    raw = np.ascontiguousarray(np.stack(out)).view(np.uint32)
    return values_of(raw.reshape(-1), kind).reshape(len(descriptor), rows.shape[1], -1)


@opcode("wgmma")
def _wgmma(d: Decoder, ins: Instruction) -> Handler:
    what = ins.parts[1]
    if ins.parts[2:4] != ("sync", "aligned"):
        d.unknown()
    if what == "fence":
        return warp_wide(lambda st: None)
    if what == "commit_group":
        return warp_wide(_commit)
    if what == "wait_group" and isinstance(ins.operands[0], Immediate):
        left = int(ins.operands[0].value)
        return warp_wide(lambda st: _wait(st, left))
    if what != "mma_async":
        d.unknown()
    return _product(d, ins)


def _commit(st: Wave) -> None:
    st.product_groups[st.lanes] += 1


def _wait(st: Wave, left: int) -> None:
    """Products of all groups but the last `left` of the active warps are done."""
    waits = np.zeros(st.width, np.bool_)
    waits[st.lanes] = True
    still = []
    for p in st.products:
        first = p.lanes[::WARP]
        done = waits[first] & (p.groups < st.product_groups[first] - left)
        if done.any():
            p.run(st, np.flatnonzero(done))
        if not done.all():
            rest = np.flatnonzero(~done)
            old = p.run

            def later(st: Wave, which: Array, rest: Array = rest, old: Any = old) -> None:
                old(st, rest[which])

            lanes = p.lanes.reshape(-1, WARP)[rest].reshape(-1)
            still.append(Product(lanes, p.groups[rest], later))
    st.products = still


def _product(d: Decoder, ins: Instruction) -> Handler:
    shape, *mods, to, ka, kb = ins.parts[4:]
    m = re.fullmatch(r"m64n(\d+)k(\d+)", shape)
    d.only(mods, ("satfinite",))
    if m is None or ka not in _DEPTHS or kb not in _DEPTHS or int(m[2]) != _DEPTHS[ka]:
        d.unknown("the shape")
    n, whole = int(m[1]), ka in ("s8", "u8")
    if (ka != kb and ELEMENTS[ka] != 8) or (kb in ("s8", "u8")) != whole or n % 8 or n > 256:
        d.unknown("the types")
    if to not in (("s32",) if whole else ("f32", "f16")):
        d.unknown("the types")
    sums, of_a, of_b, scale, *signs = ins.operands
    negative: list[int] = []
    turned: list[int] = []
    for k, x in enumerate(signs):
        if not isinstance(x, Immediate):
            d.unknown("a number is expected")
        (negative if k < 2 else turned).append(int(x.value))
    if any(turned) or any(v not in (1, -1) for v in negative):
        d.unknown("factors that are transposed are not supported")
    sign = float(np.prod(negative)) if negative else 1.0
    registers = d.items(sums)
    if len(registers) != n // (4 if to == "f16" else 2):
        d.unknown("the number of registers")
    kind = {"s32": "s32", "f32": "f32", "f16": "b32"}[to]
    old, new = [d.read(x, kind) for x in registers], [d.write(x, kind) for x in registers]
    rb = d.read(of_b, "u64")
    parts = [d.read(x, "b32") for x in of_a.items] if isinstance(of_a, Vector) else None
    ra = None if parts is not None else d.read(of_a, "u64")
    keep = d.read(scale, "pred") if not isinstance(scale, Immediate) else None
    kept = isinstance(scale, Immediate) and bool(scale.value)
    clip = "satfinite" in mods

    def run(st: Wave) -> None:
        frame, lanes = st.frame, st.lanes.copy()
        warp = lanes[::WARP] // WARP - st.block[lanes[::WARP]] * (st.padded // WARP)
        right = st.wide(rb(st))[::WARP].copy()
        left = st.wide(ra(st))[::WARP].copy() if ra is not None else None
        held = left_factor([st.wide(r(st)) for r in parts], ka, 16) if parts is not None else None
        add = st.wide(keep(st))[::WARP].copy() if keep is not None else np.full(len(right), kept)

        def done(st: Wave, which: Array) -> None:
            mine = lanes.reshape(-1, WARP)[which].reshape(-1)
            rows = (16 * (warp[which] % 4))[:, None] + np.arange(16)
            if held is not None:
                a = held[which]
            else:
                assert left is not None
                a = factor(st, left[which], rows, ka, mine[::WARP])
            columns = np.broadcast_to(np.arange(n), (len(which), n))
            b = factor(st, right[which], columns, kb, mine[::WARP])
            _add(st, frame, mine, np.matmul(a, b.swapaxes(1, 2)) * sign, add[which])

        st.products.append(Product(lanes, st.product_groups[lanes[::WARP]], done))

    def _add(st: Wave, frame: Any, mine: Array, product: Array, add: Array) -> None:
        """Sums of warps in their registers."""
        outer, lanes = st.frame, st.lanes
        st.enter(frame)
        st.activate(mine)
        pairs = product.reshape(len(add), 2, 8, n // 8, 4, 2)  # row, block of columns, column
        spread = pairs.transpose(3, 1, 5, 0, 2, 4).reshape(n // 2, -1)
        use = np.repeat(add, WARP)
        if to == "f16":
            for k, (r, w) in enumerate(zip(old, new, strict=True)):
                before = np.ascontiguousarray(r(st)).view(np.float16).reshape(-1, 2)
                total = spread[2 * k : 2 * k + 2].T + np.where(use[:, None], before, 0)
                half = encoder("f16")(rounded(total.astype(np.float64), "f16", "rn"))
                w(st, np.ascontiguousarray(half).view(np.uint32).reshape(-1))
        else:
            for k, (r, w) in enumerate(zip(old, new, strict=True)):
                before = np.where(use, r(st), 0)
                if whole:
                    w(st, add_integers(spread[k], before, clip))
                else:
                    w(st, encoder("f32")((spread[k] + before).astype(np.float32)))
        st.enter(outer)
        st.activate(lanes)

    return warp_wide(run)
