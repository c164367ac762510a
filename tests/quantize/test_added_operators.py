"""A window and a move that are registered at run time are quantized, computed in formats and
written as ONNX by their facts alone. (`test_contributing` adds a contraction, as a file.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import compiler
import datatypes
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.common import type_of
from compiler.op.facts import Moves, onnx_node
from compiler.op.library import all_ops
from compiler.op.opdef import REGISTERED, Fusion, OpDef, Quantized, register_op
from compiler.symbolic import Index
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

X = np.random.default_rng(0).normal(0, 1, (2, 8, 3, 12)).astype(np.float32)


@dataclass(frozen=True)
class WideAttrs:
    """Windows of so many columns, side by side."""

    pool_size: tuple[int, int] = (1, 3)


@dataclass(frozen=True)
class BlockAttrs:
    """Channels become blocks of so many rows and columns."""

    block: int = 2


def _pooled(a: WideAttrs, types: Sequence[TensorType]) -> TensorType:
    *lead, columns = types[0].static_shape
    return TensorType((*lead, columns // a.pool_size[1]), types[0].dtype)


def _pool(ar: Any, a: WideAttrs, x: Array) -> Array:
    parts = [x[..., k :: a.pool_size[1]] for k in range(a.pool_size[1])]
    best = parts[0]
    for part in parts[1:]:
        best = ar.maximum(best, part)
    return best


def _lower_pool(b: PrimBuilder, a: WideAttrs, x: Buffer) -> Buffer:
    t, out = _pooled(a, [type_of(x)]), b.buffer("pool", _pooled(a, [type_of(x)]).shape, x.dtype)
    loops = dict(zip("ncyx", t.static_shape, strict=True))
    width = a.pool_size[1]

    def body(n: Index, c: Index, y: Index, z: Index, k: Index) -> Any:
        return (n, c, y, z), x[n, c, y, z * width + k]

    def first(n: Index, c: Index, y: Index, z: Index) -> Any:
        return x[n, c, y, z * width]

    b.stage(out, loops, body, {"k": width}, "Max", first, name="max")
    return out


def _spread(a: BlockAttrs, types: Sequence[TensorType]) -> TensorType:
    n, c, h, w = types[0].static_shape
    return TensorType((n, c // a.block**2, h * a.block, w * a.block), types[0].dtype)


def _blocks(_: Any, a: BlockAttrs, x: Array) -> Array:
    n, _, h, w = x.shape
    parts = x.reshape(n, a.block, a.block, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, -1, h * a.block, w * a.block)


def _lower_blocks(b: PrimBuilder, a: BlockAttrs, x: Buffer) -> Buffer:
    t, k = _spread(a, [type_of(x)]), a.block
    count = t.static_shape[1]

    def element(n: Index, c: Index, y: Index, z: Index) -> Any:
        return x[n, (y % k * k + z % k) * count + c, y // k, z // k]

    return b.compute("blocks", t.shape, x.dtype, element)


ADDED = (
    OpDef(
        "nn.max_pool_wide", _pooled, _pool, _lower_pool, WideAttrs, fusion=Fusion.ANCHOR,
        quantized=Quantized.SAME, homogeneous=True,
        onnx=onnx_node("MaxPool", kernel_shape="pool_size", strides="pool_size"),
    ),
    OpDef(
        "depth_to_space", _spread, _blocks, _lower_blocks, BlockAttrs, quantized=Quantized.SAME,
        moves=Moves.SELECT, onnx=onnx_node("DepthToSpace", blocksize="block"),
    ),
)  # fmt: skip


@pytest.fixture
def added() -> Iterator[None]:
    all_ops()  # all others are registered by now
    for op in ADDED:
        register_op(op)
    yield
    for op in ADDED:
        REGISTERED.pop(op.name)


def net() -> IRModule:
    rng = np.random.default_rng(1)
    b = FunctionBuilder()
    w = b.const(rng.normal(0, 0.2, (8, 8, 1, 1)).astype(np.float32))
    x = b.call("nn.relu", b.call("nn.conv2d", b.param("x", X.shape), w))
    x = b.call("depth_to_space", b.call("nn.max_pool_wide", x))
    v = b.const(rng.normal(0, 0.2, (4, 2, 3, 3)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.conv2d", x, v))})


@pytest.mark.thorough
@pytest.mark.usefixtures("added")
def test_a_window_and_a_move_need_their_facts_only(tmp_path: Path) -> None:
    mod = net()
    want = compiler.evaluate(mod, X)
    np.testing.assert_allclose(compiler.build(mod)(X), want, rtol=1e-5, atol=1e-5)
    for mode in ("fma", "exact"):
        changed = datatypes.change_dtype(mod, "float32", "posit16_es1", accumulate=mode)
        np.testing.assert_array_equal(compiler.build(changed)(X), compiler.evaluate(changed, X))
    plan = quantize.calibrate(mod, [X], quantize.QConfig(equalize=True))
    decisions = [n.decision for n in plan.nodes.values()]
    assert decisions == ["integer", "folded", "integer", "integer", "integer"]
    integers = quantize.realize(mod, plan)
    got = compiler.build(integers)(X)
    np.testing.assert_array_equal(got, compiler.evaluate(integers, X))
    assert np.abs(got - want).max() < 0.05
    kinds = {n: t.kind for n, t in quantize.trace_plan(mod, plan, X).items()}
    assert set(kinds.values()) == {"integer", "accumulator"}
    quantize.export_onnx(mod, plan, tmp_path / "q.onnx")
    (other,) = onnxruntime.InferenceSession(str(tmp_path / "q.onnx")).run(None, {"x": X})
    np.testing.assert_allclose(other, got, rtol=1e-4, atol=1e-4)
