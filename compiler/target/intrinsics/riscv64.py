"""RISC-V: products of bytes, one step at a time: vwmacc.vx multiplies a vector of weights, widened
to int16, by a number in a general register."""

from __future__ import annotations

from compiler.target.emit import Emitter, Val
from compiler.tensor.intrinsic import Emit, dot_product


def _multiply_add(lanes: int, data: str) -> Emit:
    extended = "zext" if data == "uint8" else "sext"

    def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
        number, width = e.scalars.get(a[0].name), f"<{lanes} x i32>"
        if number is None:  # each lane has its own
            x = e.op(f"{extended} {a[0]} to {width}", "i32", lanes)
        else:
            x = e.splat(e.op(f"{extended} {number} to i32", "i32"), lanes)
        return e.bin("add", c, e.bin("mul", x, e.op(f"sext {b[0]} to {width}", "i32", lanes)))

    return emit


INTRINSICS = tuple(
    dot_product(f"{name}.{data}", lanes, _multiply_add(lanes, data), 1, data, features=(feature,))
    for name, lanes, feature in (("vwmacc", 16, "v"), ("mul", 2, "d"))
    for data in ("uint8", "int8")
)
