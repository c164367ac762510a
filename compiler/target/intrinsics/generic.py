"""Any target: the 4-way int8 dot product in plain IR."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
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


DOT4 = dot_product("dot4.generic", _LANES, _emit)
INTRINSICS = (DOT4,)
