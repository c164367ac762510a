"""A decoder without positions, small: embedding, attention and gated layers between root mean
square norms, scores of the next token."""

from __future__ import annotations

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.symbolic import Var as Size
from compiler.types.dtypes import Array

VOCABULARY, HEADS, LENGTH = 50, 2, 12


def decoder(
    width: int = 32, inner: int = 64, outlier: float = 1.0, seed: int = 0, layers: int = 2
) -> IRModule:
    """Tokens [n, 12] -> scores [n, 12, 50]. Three channels of the residual stream are `outlier`
    times as large as the others; what reads them weighs them like any other."""
    rng = np.random.default_rng(seed)
    sizes = np.ones(width)
    sizes[[1, width // 3, width - 2]] = outlier
    b = FunctionBuilder()

    def const(*shape: int, scale: Array | float = 1.0) -> Array:
        return b.const((rng.normal(0, shape[-1] ** -0.5, shape) * scale).astype(np.float32))

    def norm(x: Var, name: str) -> Var:
        gain = rng.uniform(0.5, 1.5, width).astype(np.float32)
        return b.call("nn.rms_norm", x, b.const(gain), name=name)

    def dense(x: Var, outputs: int, inputs: int, scale: Array | float, name: str) -> Var:
        return b.call("nn.dense", x, const(outputs, inputs, scale=scale), name=name)

    def heads(x: Var) -> Var:
        split = b.call("reshape", x, newshape=(0, 0, HEADS, width // HEADS))
        return b.call("transpose", split, axes=(0, 2, 1, 3))

    def written(x: Var, inputs: int, name: str) -> Var:
        """A layer that writes to the stream."""
        return dense(x, width, inputs, sizes[:, None], name)

    tokens = b.param("tokens", (Size("n"), LENGTH), "int64")
    table = (rng.normal(0, 1, (VOCABULARY, width)) * sizes).astype(np.float32)
    x = b.call("take", b.const(table), tokens, axis=0, name="embedding")
    later = np.where(np.triu(np.ones((LENGTH, LENGTH)), 1) > 0, -1e9, 0).astype(np.float32)
    for k in range(layers):
        y = norm(x, f"before_attention{k}")
        q, key, v = (heads(dense(y, width, width, 1.0, f"{n}{k}")) for n in "qkv")
        scores = b.call("nn.matmul", q, b.call("transpose", key, axes=(0, 1, 3, 2)))
        seen = b.call("nn.softmax", b.call("add", scores, b.const(later)), axis=-1)
        mixed = b.call("transpose", b.call("nn.matmul", seen, v), axes=(0, 2, 1, 3))
        flat = b.call("reshape", mixed, newshape=(0, 0, width))
        x = b.call("add", x, written(flat, width, f"out{k}"), name=f"attended{k}")
        y = norm(x, f"before_gates{k}")
        gate, up = (dense(y, inner, width, 1.0, f"{n}{k}") for n in ("gate", "up"))
        gated = b.call("multiply", b.call("sigmoid", gate), up, name=f"gated{k}")
        x = b.call("add", x, written(gated, inner, f"down{k}"), name=f"stream{k}")
    scores = dense(norm(x, "last"), VOCABULARY, width, 1.0, "scores")
    return IRModule({"main": b.finish(scores)})


def texts(count: int, seed: int) -> Array:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (count, LENGTH))
