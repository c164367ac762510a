"""Any target: the 4-way int8 dot product in plain IR."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.target.emit_c import Operand
from compiler.tensor.intrinsic import dot_product

_LANES = 4


def _emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    n = _LANES * 4
    x = e.op(f"zext {a[0]} to <{n} x i32>", "i32", n)
    y = e.op(f"sext {b[0]} to <{n} x i32>", "i32", n)
    products = e.bin("mul", x, y)
    for k in range(4):
        c = e.bin("add", c, e.shuffle(products, products, list(range(k, n, 4))))
    return c


def _emit_c(c: Operand, a: Operand, b: Operand) -> str | None:
    steps = {"o": 1, "i": 0}, {"o": 0, "i": 1}, {"o": 4, "i": 1}
    if (c.steps, a.steps, b.steps) != steps:
        return None
    return f"dot4_i32({c.first}, {a.first}, {b.first});"


DOT4 = dot_product("dot4.generic", _LANES, {"llvm": _emit, "c": _emit_c})
INTRINSICS = (DOT4,)
