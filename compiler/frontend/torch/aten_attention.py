"""Converters of attention."""

from __future__ import annotations

from dataclasses import replace

from compiler.frontend.attention import Scores, attended
from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.ir.expr import Atom, tensor_type
from compiler.types.dtypes import BOOL


@aten("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")
def scaled_dot_product_attention(n: TorchNode) -> Results:
    """Of [..., positions, size], with one or two axes before these; masks are bool (what is read)
    or numbers that are added."""
    if n.number("dropout_p"):
        raise n.unsupported(f"dropout_p={n.number('dropout_p')}; call module.eval() first")
    q, k, v = (n.x(name) for name in ("query", "key", "value"))
    flat = tensor_type(q).rank == 3
    if tensor_type(q).rank not in (3, 4):
        raise n.unsupported(f"queries {tensor_type(q)}")
    if flat:
        q, k, v = (n.step("expand_dims", x, axes=(0,)) for x in (q, k, v))
    scale, causal = n.number("scale"), 0 if n.arg("is_causal") else None
    how = Scores(None if scale is None else float(scale), causal=causal)
    if n.arg("attn_mask") is not None:
        mask = n.x("attn_mask")
        is_flags = tensor_type(mask).dtype == BOOL
        how = replace(how, allowed=mask) if is_flags else replace(how, bias=mask)
    y = attended(n, q, k, v, how)
    return [n.call("squeeze", y, axis=(0,)) if flat else y]


@aten("_transformer_encoder_layer_fwd")
def encoder_layer(n: TorchNode) -> Results:
    """What a TransformerEncoderLayer calls where nothing is trained: self-attention, then two dense
    layers, each added to what it was given, with a norm before it or behind the sum."""
    if n.arg("mask") is not None or tensor_type(n.x("src")).rank != 3:
        raise n.unsupported("a mask, or data without a batch; supported is src alone")
    x, before = n.x("src"), bool(n.arg("norm_first"))
    for k, part in ((1, _self_attention), (2, _dense_layers)):
        inner = part(n, _normed(n, k, x) if before else x)
        x = n.step("add", x, inner)
        x = x if before else _normed(n, k, x)
    return x


def _normed(n: TorchNode, k: int, x: Atom) -> Atom:
    given = (n.x(f"norm_{what}_{k}") for what in ("weight", "bias"))
    eps = float(n.number("eps"))
    return n.made(n.spelled_step("LayerNormalization", x, *given, axis=2, epsilon=eps))


def _self_attention(n: TorchNode, x: Atom) -> Atom:
    """Queries, keys and values of all heads are one product."""
    heads, (batch, tokens, width) = int(n.number("num_heads")), tensor_type(x).shape
    both = n.step("nn.dense", x, n.x("qkv_weight"), n.x("qkv_bias"))
    size = tensor_type(n.x("proj_weight")).static_shape[1] // heads
    apart = n.step("reshape", both, newshape=(batch, tokens, 3 * heads, size))
    turned = n.step("transpose", apart, axes=(0, 2, 1, 3))
    q, k, v = (
        n.step("strided_slice", turned, begin=(i * heads,), end=((i + 1) * heads,), axes=(1,))
        for i in range(3)
    )
    y = n.step("transpose", attended(n, q, k, v, Scores(None)), axes=(0, 2, 1, 3))
    together = n.step("reshape", y, newshape=(batch, tokens, width))
    return n.step("nn.dense", together, n.x("proj_weight"), n.x("proj_bias"))


def _dense_layers(n: TorchNode, x: Atom) -> Atom:
    wide = n.step("nn.dense", x, n.x("ffn_weight_1"), n.x("ffn_bias_1"))
    acted = n.step("nn.gelu", wide) if n.arg("use_gelu") else n.step("nn.relu", wide)
    return n.step("nn.dense", acted, n.x("ffn_weight_2"), n.x("ffn_bias_2"))
