"""A processor nobody has built: its 8-way dot product runs a quantized network's convolutions.

The instruction adds eight products of bytes to each of 16 int32 lanes. It is declared by what it
computes (`dot_product`) and by what is emitted for it; here that is plain LLVM code, where real
hardware would have a call of its intrinsic. A layout rule fills input channels up to eights, so
that it fits, and a schedule rule says which tiles it runs in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import compiler
import quantize
from compiler.scheduling import Schedule
from compiler.scheduling.apply import apply_tile
from compiler.scheduling.default import rule_tile
from compiler.target.emit import Emitter, Val
from compiler.tensor.expr import Buffer
from compiler.types.tensor_types import TensorType
from experiments import zoo
from experiments.data import datasets


def emit(e: Emitter, c: Val, a: list[Val], b: list[Val]) -> Val:
    """c + the sums of eight neighbouring products."""
    x = e.op(f"zext {a[0]} to <128 x i32>", "i32", 128)
    y = e.op(f"sext {b[0]} to <128 x i32>", "i32", 128)
    products = e.bin("mul", x, y)
    for k in range(8):
        c = e.bin("add", c, e.shuffle(products, products, range(k, 128, 8)))
    return c


DOT8 = compiler.dot_product("dot8", 16, emit, steps=8)


def in_eights(
    attrs: Any, types: Sequence[TensorType], lanes: int, target: compiler.Target
) -> compiler.OpLayout | None:
    """Blocks of 16 channels, input channels by eights, for integer convolutions without groups."""
    whole = attrs.groups == 1 and types[0].dtype.is_integer
    return compiler.OpLayout(16, 16, steps=8) if whole else None


def tiled(s: Schedule, stage: str, target: compiler.Target, constants: Collection[Buffer]) -> bool:
    """Dot products in tiles of 16 channels times 4 pixels, whatever the default tile is."""
    tile = rule_tile(s, stage, target, constants)
    if tile is None or tile.dot is not DOT8:
        return False
    spatial = tuple((axis, min(4, width)) for axis, width in tile.spatial[-1:])
    apply_tile(s, stage, replace(tile, blocks=1, spatial=spatial), fma=False)
    return True


if __name__ == "__main__":
    digits = datasets.load("mnist1k")
    network = compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx")
    integer = quantize.quantize(network, [digits.calibration[:100]])
    usual = compiler.build(integer)

    compiler.register_intrinsic(DOT8)
    compiler.register_alter_op_layout("nn.conv2d", in_eights)
    compiler.register_schedule_rule(tiled, op="nn.conv2d")
    unusual = compiler.build(integer)

    print(unusual.as_text().count("dot8<"), "dot products of eights in the printed kernels")
    assert (usual(digits.x[:20]) == unusual(digits.x[:20])).all()
