"""Weights of packed integers in blocks, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from contrib import agrees, contrib, normal
from onnx import TensorProto, helper

import compiler
from compiler.errors import UnsupportedError
from compiler.types.dtypes import Array

_rng = np.random.default_rng(0)


def packed(*shape: int) -> Array:
    return _rng.integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("zeros", [False, True])
def test_rows_may_be_of_any_block(zeros: bool) -> None:
    """Against the definition; with zero points, onnxruntime's kernel takes others than those of the
    row's block."""
    n, k, block = 8, 64, 16
    order = _rng.permutation(np.arange(k) // block).astype(np.int32)
    w, z = packed(n, k // block, block // 2), packed(n, k // block // 2)
    operands = {
        "x": normal(1, 3, k), "w": w, "s": np.abs(normal(2, n * k // block)) / 10,
        "z": z.reshape(-1) if zeros else None, "order": order,
    }  # fmt: skip
    stored = [name for name in ("w", "s", "z", "order") if operands[name] is not None]
    proto, arrays = contrib("MatMulNBits", operands, weights=stored, K=k, N=n, bits=4,
                            block_size=block)  # fmt: skip
    if not zeros:
        agrees(False, proto, arrays)
    q, of = (np.stack([a & 15, a >> 4], -1).reshape(n, -1).astype(np.float32) for a in (w, z))
    zero = of[:, order] if zeros else np.float32(8)
    scale = np.asarray(operands["s"]).reshape(n, -1)[:, order]
    got = compiler.evaluate(compiler.from_onnx(proto), arrays)
    np.testing.assert_allclose(got, arrays["x"] @ ((q - zero) * scale).T, rtol=1e-4, atol=1e-4)


def test_an_order_beyond_the_blocks_is_refused() -> None:
    operands = {"x": normal(1, 3, 32), "w": packed(8, 2, 8), "s": normal(2, 16), "z": None,
                "order": np.full(32, 2, np.int32)}  # fmt: skip
    proto, _ = contrib("MatMulNBits", operands, weights=["w", "s", "order"], K=32, N=8, bits=4,
                       block_size=16)  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"'the_node'.*g_idx of 32 numbers up to 2"):
        compiler.from_onnx(proto)


def table(bits: int, zeros: bool, **more: Any) -> Any:
    rows, size, block = 6, 64, 16
    operands = {
        "w": packed(rows, size * bits // 8), "at": np.array([[5, 0, 3], [1, 1, 2]], np.int64),
        "s": np.abs(normal(3, rows, size // block)) / 10,
        "z": packed(rows, -(-size // block * bits // 8)) if zeros else None,
    }  # fmt: skip
    if not zeros:
        del operands["z"]
    attrs = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1, **more}
    return contrib("GatherBlockQuantized", operands, weights=[k for k in operands if k != "at"],
                   **attrs)  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_a_table(bits: int, zeros: bool) -> None:
    mod = agrees(bits == 4, *table(bits, zeros))
    stored = [a for b in mod.main.bindings if isinstance(b.value, compiler.Call)
              for a in b.value.args if isinstance(a, compiler.Constant)]  # fmt: skip
    assert max(a.data.nbytes for a in stored) <= 6 * 64


@pytest.mark.parametrize("code", [TensorProto.INT4, TensorProto.UINT4])
def test_a_table_of_four_bits(code: int) -> None:
    proto, arrays = table(4, True)
    for t in proto.graph.initializer:
        if t.name in ("w", "z"):
            old = onnx.numpy_helper.to_array(t)
            t.CopyFrom(helper.make_tensor(t.name, code, [6, old.shape[1] * 2], old.tobytes(), True))
    proto.opset_import[0].version, proto.ir_version = 21, 10
    agrees(False, proto, arrays)


def test_other_axes_are_refused() -> None:
    proto, _ = table(8, False, quantize_axis=0)
    with pytest.raises(UnsupportedError, match=r"quantize_axis=0 of .*the first and the last"):
        compiler.from_onnx(proto)
