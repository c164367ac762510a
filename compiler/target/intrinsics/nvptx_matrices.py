"""NVPTX: products of small matrices by the threads of a warp together (mma.sync), of compute
capability 7.5 and newer.

To the loop nest a thread adds up its own eight sums: of rows r, r + 8 and columns 2 c, 2 c + 1,
2 c + 8, 2 c + 9 of a tile of 16 by 16, where r = lane // 4 and c = lane % 4, over 32 bytes of both
operands, which lie in shared memory, the steps of the sum side by side. Code of GPUs loads both
once for the whole warp, each lane one row of 16 bytes (ldmatrix), and multiplies them by two or
eight instructions.

Source: PTX ISA, "warp level matrix instructions".
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.symbolic import Index, Var
from compiler.target.emit import Emitter, Val
from compiler.tensor.expr import Buffer
from compiler.tensor.intrinsic import Emit, Intrinsic, Lane, LaneAddress
from compiler.tensor.stmt import Store
from compiler.types.dtypes import INT8, INT32, UINT8, DType

SIDE, ROWS, HALF = 16, 8, 16
"""Rows (and columns) of the tile; rows of a matrix that lanes load; bytes of one of its rows."""
OF_THREAD = {"m": 2, "n": 4, "k": 2 * HALF}
"""Rows, columns and bytes of the sum that a thread multiplies."""
FEATURE = "mma"
"""What chips have that have such instructions, unless it is switched off."""
_NEAR = "ptr addrspace(3)"


def _row(lane: Index) -> Lane:
    """What the lane loads of the data: matrices of rows 0 and 8 on, then of the second half."""
    row = lane % SIDE
    return Lane(row % ROWS * 4, {"m": row // ROWS, "n": Index(), "k": lane // SIDE * HALF})


def _column(lane: Index) -> Lane:
    """The same of the other operand: both halves of columns 0 on, then of columns 8 on."""
    column = lane % ROWS
    n = lane // SIDE * 2 + column % 2
    return Lane(column // 2, {"m": Index(), "n": n, "k": lane // ROWS % 2 * HALF})


def _matrices(e: Emitter, address: Val) -> list[Val]:
    """Four matrices of 8 rows of 16 bytes, of which lane 8 q + r gives the address of row r of
    matrix q: register q of lane 4 r + c is the c-th word of that row."""
    fn = "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3"
    near = e.op(f"addrspacecast {address} to {_NEAR}", _NEAR)
    return _call(e, fn, [near], 4, " convergent")


def _call(e: Emitter, fn: str, args: Sequence[Val], count: int, attr: str = "") -> list[Val]:
    """The registers that an instruction gives, as many as `count`."""
    t = f"{{ {', '.join(['i32'] * count)} }}"
    made = e.call(fn, t, 1, args, attr)
    return [e.op(f"extractvalue {made}, {k}", "i32") for k in range(count)]


def _whole(kinds: str) -> Emit:
    """By instructions of 16 rows, 8 columns and 32 bytes."""

    def emit(e: Emitter, sums: list[Val], at: LaneAddress) -> list[Val]:
        a, b = _matrices(e, at("a", _row)), _matrices(e, at("b", _column))
        out = list(sums)
        for n in range(2):
            mine = [4 * row + 2 * n + k for row in range(2) for k in range(2)]
            words = [*a, *b[2 * n : 2 * n + 2], *(out[x] for x in mine)]
            made = _call(e, f"llvm.nvvm.mma.m16n8k32.row.col.{kinds}", words, 4)
            for x, v in zip(mine, made, strict=True):
                out[x] = v
        return out

    return emit


def _parts(kinds: str) -> Emit:
    """By instructions of 8 rows, 8 columns and 16 bytes."""

    def emit(e: Emitter, sums: list[Val], at: LaneAddress) -> list[Val]:
        a, b = _matrices(e, at("a", _row)), _matrices(e, at("b", _column))
        out = list(sums)
        for half in range(2):
            for row in range(2):
                for n in range(2):
                    first = 4 * row + 2 * n
                    words = [a[2 * half + row], b[2 * n + half], *out[first : first + 2]]
                    made = _call(e, f"llvm.nvvm.mma.m8n8k16.row.col.{kinds}", words, 2)
                    out[first : first + 2] = made
        return out

    return emit


def _product(shape: str, data: DType, weight: DType, chip: str) -> Intrinsic:
    m, n, k = OF_THREAD.values()
    c = Buffer("c", (Index.of(m), Index.of(n)), INT32)
    a, b = (Buffer(x, (Index.of(rows), Index.of(k)), t)
            for x, rows, t in (("a", m, data), ("b", n, weight)))  # fmt: skip

    def semantics(i: Var, j: Var, step: Var) -> Store:
        value = a[i, step].astype(INT32) * b[j, step].astype(INT32)
        return Store("", c, (i, j), value, update="Add")

    names = ["s8" if t == INT8 else "u8" for t in (data, weight)]
    kinds = ".".join(dict.fromkeys(names))
    write = _whole(kinds) if shape == "m16n8k32" else _parts(kinds)
    lanes = {"a": ("k",), "b": ("k",)}
    return Intrinsic(f"mma.{shape}.{'.'.join(names)}", OF_THREAD, lanes, semantics, {"ptx": write},
                     features=(chip, FEATURE))  # fmt: skip


INTRINSICS = tuple(
    _product(shape, data, weight, chip)
    for shape, chip in (("m16n8k32", "sm_80"), ("m8n8k16", "sm_75"))
    for data in (INT8, UINT8)
    for weight in (INT8, UINT8)
)
