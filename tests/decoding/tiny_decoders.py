"""Decoders of one or two layers, as exporters write them: rotary embedding left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.symbolic import Var as Size

VOCABULARY, HIDDEN, WIDTH = 24, 16, 8


def past_names(layers: int) -> list[str]:
    return [f"past_key_values.{n}.{kind}" for n in range(layers) for kind in ("key", "value")]


def tiny(layers: int = 1, heads: int = 2, kv_heads: int = 1, mask: bool = False) -> IRModule:
    """Causal attention with grouped queries over [batch, kv heads, past + new, width]."""
    rng = np.random.default_rng(heads * 10 + kv_heads)

    def weights(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))

    b = FunctionBuilder()
    n, t, p = Size("batch"), Size("sequence"), Size("past")
    ids = b.param("input_ids", (n, t), "int64")
    past = [b.param(name, (n, kv_heads, p, WIDTH)) for name in past_names(layers)]
    given = b.param("attention_mask", (n, p + t), "int64") if mask else None
    x = b.call("take", b.const(weights(VOCABULARY, HIDDEN)), ids, axis=0)
    before = b.call("take", b.call("shape_of", past[0]), b.const(np.array([2])), axis=0)
    rows = b.call("add", b.call("arange", size=t), before)
    later = b.call("greater", b.call("arange", size=p + t), b.call("expand_dims", rows, axes=(1,)))
    hidden = b.call("where", later, b.const(np.float32(-1e9)), b.const(np.float32(0)))
    if given is not None:
        off = b.call("equal", given, b.const(np.int64(0)))
        off = b.call("reshape", off, newshape=(n, 1, 1, p + t))
        more = b.call("where", off, b.const(np.float32(-1e9)), b.const(np.float32(0)))
        hidden = b.call("add", more, hidden)
    presents = []
    for layer in range(layers):

        def by_head(v: Var, count: int) -> Var:
            v = b.call("nn.dense", v, b.const(weights(count * WIDTH, HIDDEN)))
            v = b.call("reshape", v, newshape=(n, t, count, WIDTH))
            return b.call("transpose", v, axes=(0, 2, 1, 3))

        def repeated(v: Var) -> Var:
            if heads == kv_heads:
                return v
            shape = (n, kv_heads, heads // kv_heads, p + t, WIDTH)
            v = b.call("broadcast_to", b.call("expand_dims", v, axes=(2,)), shape=shape)
            return b.call("reshape", v, newshape=(n, heads, p + t, WIDTH))

        q = by_head(x, heads)
        k = b.call("concatenate", past[2 * layer], by_head(x, kv_heads), axis=2)
        v = b.call("concatenate", past[2 * layer + 1], by_head(x, kv_heads), axis=2)
        presents += [k, v]
        keys = b.call("transpose", repeated(k), axes=(0, 1, 3, 2))
        scores = b.call("nn.matmul", q, keys)
        scores = b.call("multiply", scores, b.const(np.float32(WIDTH**-0.5)))
        scores = b.call("nn.softmax", b.call("add", scores, hidden), axis=-1)
        out = b.call("transpose", b.call("nn.matmul", scores, repeated(v)), axes=(0, 2, 1, 3))
        out = b.call("reshape", out, newshape=(n, t, heads * WIDTH))
        x = b.call("add", x, b.call("nn.dense", out, b.const(weights(HIDDEN, heads * WIDTH))))
    logits = b.call("nn.dense", x, b.const(weights(VOCABULARY, HIDDEN)))
    names = ["logits", *(s.replace("past_key_values", "present") for s in past_names(layers))]
    return IRModule({"main": b.finish(logits, *presents)}, {"outputs": names})
