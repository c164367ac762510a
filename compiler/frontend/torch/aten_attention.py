"""Converters of attention."""

from __future__ import annotations

from dataclasses import replace

from compiler.frontend.attention import Scores, attended
from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten
from compiler.ir.expr import tensor_type
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
