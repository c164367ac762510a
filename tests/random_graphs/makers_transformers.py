"""Draws operators that onnxruntime writes parts of transformers as."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_graphs.drawing import Drawing, draws
from random_graphs.makers_nn import FLOAT32
from random_graphs.makers_quantized import OWN
from random_graphs.numbers_drawn import draw

INT32 = np.dtype(np.int32)
SKIPS = (OWN + "SkipLayerNormalization", OWN + "SkipSimplifiedLayerNormalization")
Sizes = tuple[int, ...]


def rows(g: Drawing, shape: Sizes) -> str:
    """Finite numbers of ordinary size: what is told apart here are forms, not magnitudes."""
    return g.input(g.rng.normal(0, 1, shape).astype(np.float32))


def kept(g: Drawing, *shape: int) -> str:
    """A stored weight of that kind."""
    return g.stored(g.rng.normal(0, 1, shape).astype(np.float32))


@draws(*(OWN + name for name in ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")))
def gelu(g: Drawing, op: str) -> None:
    x = g.value(FLOAT32, (1, 2, 3))
    biased = op.endswith("BiasGelu") or (op.endswith("FastGelu") and g.chance())
    bias = [g.given(g.of(x).shape[-1:], FLOAT32, 0.8)] if biased else []
    alpha = {"alpha": g.any([1.0, 1.5])} if op.endswith("QuickGelu") else {}
    g.node(op, [x, *bias], **alpha)


@draws(OWN + "SimplifiedLayerNormalization", *SKIPS)
def norm(g: Drawing, op: str) -> None:
    shape = (g.int(1, 2), g.int(1, 3), g.int(1, 6))
    given, simple = [rows(g, shape)], "Simplified" in op
    if op in SKIPS:
        given.append(rows(g, shape))
    given.append(kept(g, shape[-1]))
    if not simple and g.chance():
        given.append(kept(g, shape[-1]))
    name = op if op in SKIPS else "SimplifiedLayerNormalization"  # which has no domain there
    g.node(name, given, epsilon=g.any([1e-5, 1e-2]))


@draws(OWN + "EmbedLayerNormalization")
def embedding(g: Drawing, op: str) -> None:
    n, steps, size = g.int(1, 2), g.int(1, 4), g.int(1, 5)
    ids = [g.input(g.rng.integers(0, many, (n, steps)).astype(np.int32)) for many in (6, 2)]
    segments = g.chance()
    tables = [kept(g, 6, size), kept(g, 7, size), *([kept(g, 2, size)] if segments else [""])]
    g.node(op, [ids[0], ids[1] if segments else "", *tables, kept(g, size), kept(g, size)],
           outputs=2, epsilon=1e-5)  # fmt: skip


@draws(OWN + "RotaryEmbedding")
def rotary(g: Drawing, op: str) -> None:
    n, heads, steps, inner = g.int(1, 2), g.int(1, 2), g.int(1, 4), 8
    x = rows(g, (n, heads, steps, inner))
    at = g.input(g.rng.integers(0, 6, (n, steps)))
    tables = [kept(g, 6, inner // 2) for _ in range(2)]
    g.node(op, [x, at, *tables], interleaved=g.any([0, 1]))


@draws(OWN + "Attention", OWN + "MultiHeadAttention")
def attention(g: Drawing, op: str) -> None:
    n, heads, steps, inner = g.int(1, 2), g.int(1, 2), g.int(1, 4), g.int(1, 3)
    hidden, attrs = heads * inner, {"num_heads": heads, "unidirectional": g.any([0, 1])}
    if op.endswith("MultiHeadAttention"):
        g.node(op, [rows(g, (n, steps, hidden)) for _ in range(3)], **attrs)
        return
    x = rows(g, (n, steps, g.int(1, 4)))
    w = kept(g, g.of(x).shape[-1], 3 * hidden)
    g.node(op, [x, w, kept(g, 3 * hidden)], **attrs)


@draws(OWN + "GroupQueryAttention")
def grouped(g: Drawing, op: str) -> None:
    n, own, group, steps, past, inner = g.int(1, 2), g.int(1, 2), g.int(1, 2), 1, g.int(1, 4), 16
    heads = own * group
    qkv = [rows(g, (n, steps, many * inner)) for many in (heads, own, own)]
    cache = [rows(g, (n, own, past, inner)) for _ in range(2)]
    total = past + steps
    lengths = g.stored(np.full(n, total - 1, np.int32))
    g.node(op, [*qkv, *cache, lengths, g.stored(np.asarray(total, np.int32))], outputs=3,
           num_heads=heads, kv_num_heads=own)  # fmt: skip


@draws(OWN + "GatherBlockQuantized")
def packed_rows(g: Drawing, op: str) -> None:
    bits, block, many = g.any([4, 8]), 16, g.int(1, 2)
    codes = draw(g.rng, (5, many * block * bits // 8), np.dtype(np.uint8), "wide")
    scales = g.stored(g.rng.uniform(0.01, 0.2, (5, many)).astype(np.float32))
    at = g.input(g.rng.integers(0, 5, (g.int(1, 3),)))
    attrs: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": block}
    g.node(op, [g.stored(codes), at, scales], bits=bits, **attrs)
