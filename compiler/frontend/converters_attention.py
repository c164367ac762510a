"""Converters of attention and of rotary embedding: ONNX's, and onnxruntime's own (com.microsoft).

What they write is in compiler.frontend.attention. Caches come in as tensors of any length, 0 too,
and go out with the new keys and values behind them. Caches that several calls share, and are
longer than what they hold, are not supported, nor are those of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compiler.frontend.attention import (
    Scores,
    angles,
    as_bool,
    attended,
    counted,
    merged_heads,
    rotated,
    split_heads,
)
from compiler.frontend.converters_microsoft import microsoft
from compiler.frontend.converters_nn import matrix_product
from compiler.frontend.indices import check_counted, check_positions
from compiler.frontend.node import ByDefinition, Node, converts
from compiler.frontend.run_time import checked, positions
from compiler.frontend.values import Imported, scalar
from compiler.ir.expr import Atom, tensor_type
from compiler.symbolic import Dim, Index, dim
from compiler.types.dtypes import BOOL


# ---- what they have in common --------------------------------------------------------------------
def _with_past(n: Node, given: tuple[int, int], made: tuple[int, int], k: Atom, v: Atom
               ) -> tuple[Atom, Atom, Dim]:  # fmt: skip
    """Keys and values behind those of the cache, inputs `given`, if there is one; outputs `made`
    are what comes of it. And how long the cache was."""
    if n.has(given[0]) != n.has(given[1]):
        raise n.unsupported("past keys or past values alone; give both")
    if not n.has(given[0]):
        return k, v, 0
    old = n.type(given[0])
    if old.rank != 4 or old.dtype != tensor_type(k).dtype:
        raise n.unsupported(
            f"past keys {old}; supported: [batch, heads, positions, size] of {tensor_type(k).dtype}"
        )
    both = []
    for i, o, new in zip(given, made, (k, v), strict=True):
        if n.wants(o):
            both.append(n.result(o, "concatenate", n.atom(i), new, axis=2))
        else:
            both.append(n.step("concatenate", n.atom(i), new, axis=2))
    return both[0], both[1], old.shape[2]


def _refused(n: Node, **inputs: int) -> None:
    """Refuse inputs, by name, that are given."""
    for name, i in inputs.items():
        if n.has(i):
            raise n.unsupported(f"its input {i} ({name})")


def _sum(n: Node, a: Atom | None, b: Atom | None) -> Atom | None:
    return n.step("add", a, b) if a is not None and b is not None else b if a is None else a


def _scale(n: Node) -> float | None:
    """The factor of scores; 0, as onnxruntime has it, is none given."""
    return float(n.attr("scale", 0.0)) or None


# ---- ONNX ----------------------------------------------------------------------------------------
@converts("Attention")
def attention(n: Node) -> Sequence[Imported]:
    """Of [batch, positions, heads * size] (with the numbers of heads) or [batch, heads, positions,
    size]. What is asked for seldom is written as the standard's definition has it: scores as a
    result, windows, a cache outside, a softmax of another dtype."""
    windows = [n.attr(a, -1) for a in ("left_window_size", "right_window_size")]
    if n.has(6) or n.wants(3) or n.attr("softmax_precision", 0) or windows != [-1, -1]:
        raise ByDefinition
    rank = n.rank_of(0, 3, 4)
    q, k, v = (n.atom(i) for i in range(3))
    if rank == 3:
        heads, own = int(n.need("q_num_heads")), int(n.need("kv_num_heads"))
        q, k, v = (split_heads(n, x, h) for x, h in ((q, heads), (k, own), (v, own)))
    k, v, past = _with_past(n, (4, 5), (1, 2), k, v)
    softcap = float(n.attr("softcap", 0.0))
    how = Scores(_scale(n), softcap, causal=past if n.expect("is_causal", 0, 0, 1) else None)
    if n.has(3):
        how = _masked(n, how, tensor_type(k).shape[2])
    y = attended(n, q, k, v, how)
    return [merged_heads(n, y, n.call) if rank == 3 else y, k, v]


def _masked(n: Node, how: Scores, keys: Dim) -> Scores:
    """With input 3: bool, whether a key is read, or floats that are added."""
    t = n.type(3)
    known = t.rank > 0 and isinstance(t.shape[-1], int) and isinstance(keys, int)
    if not known and t.rank > 0 and isinstance(t.shape[-1], int) != isinstance(keys, int):
        raise ByDefinition
    if known and t.shape[-1] not in (1, keys):
        raise ByDefinition  # shorter: padded there
    mask = n.atom(3)
    if t.dtype == BOOL:
        return replace(how, allowed=mask)
    zero = scalar(float("-inf"), t) if t.dtype.is_float else None
    if zero is None:
        raise ByDefinition
    return replace(how, bias=mask, allowed=n.step("not_equal", mask, zero))


@converts("RotaryEmbedding")
def rotary_embedding(n: Node) -> Imported:
    """Of [batch, heads, positions, size], or [batch, positions, heads * size] with the number of
    heads. With positions, the angles are rows of tables; without, they are given."""
    interleaved = bool(n.expect("interleaved", 0, 0, 1))
    cos, sin = n.atom(1), n.atom(2)
    if n.has(3):
        check_positions(n, 3, [tensor_type(cos).shape[0]])
        cos, sin = (angles(n, c, n.atom(3)) for c in (cos, sin))
    else:
        cos, sin = (n.step("expand_dims", c, axes=(1,)) for c in (cos, sin))
    turned = int(n.attr("rotary_embedding_dim", 0))
    half = tensor_type(cos).shape[-1]
    if turned and turned != 2 * half:
        raise n.unsupported(f"rotary_embedding_dim={turned} and {half} angles")
    if n.rank_of(0, 3, 4) == 4:
        return rotated(n, n.atom(0), cos, sin, interleaved, n.call)
    x = split_heads(n, n.atom(0), int(n.attr("num_heads", 0)))
    return merged_heads(n, rotated(n, x, cos, sin, interleaved, n.step), n.call)


# ---- onnxruntime ---------------------------------------------------------------------------------
@microsoft("RotaryEmbedding", 4, 4)
def microsoft_rotary_embedding(n: Node) -> Imported:
    """The same; positions [batch, positions], or [1], that of the first."""
    n.expect("is_packed_batching", 0, 0)
    interleaved, scale = bool(n.expect("interleaved", 0, 0, 1)), float(n.attr("scale", 1.0))
    rank, size = n.rank_of(0, 3, 4), n.attr("rotary_embedding_dim", 0)
    half = n.type(2).shape[-1]
    heads = int(n.attr("num_heads", 0))
    width = n.type(0).shape[-1]
    if rank == 3 and not heads:
        if size or not (isinstance(half, int) and isinstance(width, int) and half):
            raise n.unsupported(f"data {n.type(0)} and no num_heads")
        heads = width // (2 * half)
    x = n.atom(0) if rank == 4 else split_heads(n, n.atom(0), heads)
    at = n.atom(1)
    if n.type(1).rank < 2:
        row = counted(n, 0, tensor_type(x).shape[2])
        at = n.step("add", row, n.step("reshape", at, newshape=()))
    else:
        check_positions(n, 1, [n.type(2).shape[0]])
    cos, sin = (angles(n, n.atom(i), at) for i in (2, 3))
    y = rotated(n, x, cos, sin, interleaved, n.step if rank == 3 else n.call, scale)
    return merged_heads(n, y, n.call) if rank == 3 else y


@microsoft("MultiHeadAttention", 1, 10, outputs=4)
def multi_head_attention(n: Node) -> Sequence[Imported]:
    """Queries, keys and values as they come, packed in one tensor, or keys and values as those of
    another's cache; a padding mask adds `mask_filter_value` to scores."""
    _refused(n, past_sequence_length=8, cache_indirection=9)
    heads = int(n.need("num_heads"))
    q, k, v = _queries(n, heads)
    k, v, past = _with_past(n, (6, 7), (1, 2), k, v)
    keys = tensor_type(k).shape[2]
    bias = _padding(n, 4, keys) if n.has(4) else None
    bias = _sum(n, bias, n.atom(5) if n.has(5) else None)
    how = Scores(_scale(n), causal=past if n.expect("unidirectional", 0, 0, 1) else None, bias=bias)
    return [merged_heads(n, attended(n, q, k, v, how), n.call), k, v]


def _queries(n: Node, heads: int) -> list[Atom]:
    """Queries, keys and values of MultiHeadAttention, by heads, the bias added."""
    t = n.type(0)
    if t.rank == 5:
        _refused(n, key=1, value=2, bias=3)
        return _unpacked(n, n.atom(0), 3)
    if n.has(1) and n.type(1).rank == 5:
        _refused(n, value=2, bias=3)
        return [split_heads(n, n.atom(0), heads), *_unpacked(n, n.atom(1), 2)]
    given = [n.atom(i) for i in range(3)]
    if n.has(3):
        given = _biased(n, given)
    return [x if tensor_type(x).rank == 4 else split_heads(n, x, heads) for x in given]


def _unpacked(n: Node, x: Atom, count: int) -> list[Atom]:
    """The tensors of [batch, positions, heads, count, size], by heads."""
    parts = []
    for k in range(count):
        part = n.step("strided_slice", x, begin=(k,), end=(k + 1,), axes=(3,))
        part = n.step("squeeze", part, axis=(3,))
        parts.append(n.step("transpose", part, axes=(0, 2, 1, 3)))
    return parts


def _biased(n: Node, given: list[Atom]) -> list[Atom]:
    """Each of three plus its part of input 3."""
    out, start = [], 0
    for x in given:
        t = tensor_type(x)
        if t.rank == 4:  # of another's cache: no bias
            width = int(Index.of(t.shape[1]).const) * int(Index.of(t.shape[3]).const)
            out.append(x)
        else:
            last = t.shape[-1]
            if not isinstance(last, int):
                raise n.unsupported(f"data {t}; use shapes=...")
            width = last
            part = n.step("strided_slice", n.atom(3), begin=(start,), end=(start + width,),
                          axes=(0,))  # fmt: skip
            out.append(n.step("add", x, part))
        start += width
    return out


def _padding(n: Node, i: int, keys: Dim) -> Atom:
    """What a mask of integers, input `i`, adds to scores: [batch, keys] or [batch, queries, keys]
    of 1 and 0, or [batch], how many keys there are."""
    t, like = n.type(i), n.type(0)
    if t.rank == 1 and n.graph.is_equal(t.shape[0], like.shape[0]):
        ends = n.step("reshape", n.atom(i), newshape=(-1, 1, 1, 1))
        row = positions(n, keys)
        row = row if t.dtype == tensor_type(row).dtype else n.step("cast", row, dtype=str(t.dtype))
        seen = n.step("less", row, ends)
    elif t.rank in (2, 3):
        axes = (1, 2) if t.rank == 2 else (1,)
        seen = n.step("expand_dims", as_bool(n, n.atom(i)), axes=axes)
    else:
        raise n.unsupported(
            f"a mask {t}; supported: [batch, keys], [batch, queries, keys] and [batch]"
        )
    off = scalar(float(n.attr("mask_filter_value", -10000.0)), like)
    return n.step("where", seen, scalar(0, like), off)


@microsoft("Attention", 2, 7, outputs=2)
def microsoft_attention(n: Node) -> Sequence[Imported]:
    """Queries, keys and values are one product with known weights; the cache is one tensor [2,
    batch, heads, positions, size]."""
    _refused(n, past_sequence_length=6)
    n.expect("do_rotary", 0, 0)
    n.expect("past_present_share_buffer", 0, 0)
    heads, total = int(n.need("num_heads")), n.type(1).shape[-1]
    sizes = tuple(n.attr("qkv_hidden_sizes", ()))
    if not sizes and isinstance(total, int):
        sizes = (total // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != total:
        raise n.unsupported(f"weights {n.type(1)} and qkv_hidden_sizes={sizes}")
    both = matrix_product(n, n.atom(0), n.atom(1), n.step)
    if n.has(2):
        both = n.step("add", both, n.atom(2))
    parts, start = [], 0
    for size in sizes:
        part = n.step("strided_slice", both, begin=(start,), end=(start + size,), axes=(2,))
        parts.append(split_heads(n, part, heads))
        start += size
    q, k, v = parts
    past: Dim = 0
    if n.has(4):
        past = n.type(4).shape[3]
        k, v = (
            n.step("concatenate", n.step("squeeze", n.step(
                "strided_slice", n.atom(4), begin=(j,), end=(j + 1,), axes=(0,)), axis=(0,)),
                x, axis=2)
            for j, x in enumerate((k, v))
        )  # fmt: skip
    bias = _padding(n, 3, tensor_type(k).shape[2]) if n.has(3) else None
    bias = _sum(n, bias, n.atom(5) if n.has(5) else None)
    how = Scores(_scale(n), causal=past if n.expect("unidirectional", 0, 0, 1) else None, bias=bias)
    out: list[Imported] = [merged_heads(n, attended(n, q, k, v, how), n.call)]
    if n.wants(1):
        present = [n.step("expand_dims", x, axes=(0,)) for x in (k, v)]
        out.append(n.result(1, "concatenate", *present, axis=0))
    return out


_LATER = {
    "head_sink": 11, "k_scale": 12, "v_scale": 13, "q_norm_weight": 14, "k_norm_weight": 15,
}  # fmt: skip


@microsoft("GroupQueryAttention", 7, 16, outputs=4)
def group_query_attention(n: Node) -> Sequence[Imported]:
    """Causal attention of heads that share keys and values, rotated here if asked. All rows of the
    batch must be as long as the cache and what is new: the program refuses other lengths."""
    _refused(n, **_LATER)
    for name, value in (("smooth_softmax", 0), ("sliding_window_cache", 0), ("qk_output", 0),
                        ("k_quant_type", "NONE"), ("v_quant_type", "NONE")):  # fmt: skip
        n.expect(name, value, value)
    heads, own = int(n.need("num_heads")), int(n.need("kv_num_heads"))
    q, k, v = _grouped(n, heads, own)
    length = tensor_type(q).shape[2]
    past = n.type(3).shape[2] if n.has(3) else 0
    keys = dim(Index.of(past) + length)
    _lengths(n, keys)
    if n.expect("do_rotary", 0, 0, 1):
        at = n.atom(9) if n.has(9) else counted(n, past, length)
        if n.has(9):
            check_positions(n, 9, [n.type(7).shape[0]])
        else:
            check_counted(n, dim(Index.of(keys) - 1), n.type(7).shape[0])
        cos, sin = (angles(n, n.atom(i), at) for i in (7, 8))
        interleaved = bool(n.expect("rotary_interleaved", 0, 0, 1))
        q, k = (rotated(n, x, cos, sin, interleaved, n.step) for x in (q, k))
    k, v, past = _with_past(n, (3, 4), (1, 2), k, v)
    window = int(n.attr("local_window_size", -1))
    causal = past if n.expect("causal", 1, 0, 1) else None
    if causal is None and window > 0:
        raise n.unsupported(f"causal=0 and local_window_size={window}")
    bias = n.atom(10) if n.has(10) else None
    softcap = float(n.attr("softcap", 0.0))
    how = Scores(_scale(n), softcap, causal, max(window, 0), bias)
    return [merged_heads(n, attended(n, q, k, v, how), n.call), k, v]


def _grouped(n: Node, heads: int, own: int) -> list[Atom]:
    """Queries, keys and values by heads; side by side in input 0 if it is alone."""
    if n.has(1) != n.has(2):
        raise n.unsupported("keys or values alone; give both, or none")
    if n.has(1):
        return [split_heads(n, n.atom(i), h) for i, h in enumerate((heads, own, own))]
    whole = split_heads(n, n.atom(0), heads + 2 * own)
    parts, start = [], 0
    for count in (heads, own, own):
        parts.append(
            n.step("strided_slice", whole, begin=(start,), end=(start + count,), axes=(1,))
        )
        start += count
    return parts


def _lengths(n: Node, keys: Dim) -> None:
    """Have the program refuse lengths (inputs 5, each less one, and 6) other than `keys`."""
    total = n.step("cast", n.step("reshape", n.atom(6), newshape=()), dtype="int64")
    checked(n, total, keys, "total_sequence_length")
    each = n.step("cast", n.step("reshape", n.atom(5), newshape=(-1,)), dtype="int64")
    each = n.step("add", each, scalar(1, tensor_type(each)))
    for least in ("min", "max"):
        checked(n, n.step(least, each, axis=(0,)), keys, "seqlens_k_and_1")
