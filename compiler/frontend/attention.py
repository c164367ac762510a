"""Attention as operators: what converters of attention in its several spellings share.

All write the same sequence: scores = Q K^T; times the scale; bounded by softcap * tanh(x / softcap)
if asked; plus what masks; softmax; times V. Keys and values that several heads read are repeated.
Q, K and V are [batch, heads, positions, size]. Masks are sums with the lowest finite number, which
every number format has, not with -infinity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.frontend.element_types import bounds
from compiler.frontend.node import Node
from compiler.frontend.run_time import number, positions
from compiler.frontend.values import scalar
from compiler.frontend.windows import Emit
from compiler.ir.expr import Atom, tensor_type
from compiler.symbolic import Dim, Index, dim
from compiler.types.dtypes import BOOL
from compiler.types.tensor_types import TensorType


@dataclass(frozen=True)
class Scores:
    """How scores become weights.

    Attributes:
        scale: factor of the scores; None: 1 / sqrt(size of a head).
        softcap: bound of the scores; 0: none.
        causal: None, or how many keys come before the first query: it reads one more than these.
        window: how many keys a query reads at most, itself included; 0: all.
        bias: added to the scores (broadcasts).
        allowed: bool, which keys a query may read (broadcasts); a query that may read none gets 0.
    """

    scale: float | None = None
    softcap: float = 0.0
    causal: Dim | None = None
    window: int = 0
    bias: Atom | None = None
    allowed: Atom | None = None


def split_heads(n: Node, x: Atom, heads: int) -> Atom:
    """[batch, positions, heads * size] as [batch, heads, positions, size].

    Raises:
        UnsupportedError: that does not divide.
    """
    t = tensor_type(x)
    width = t.shape[-1]
    if t.rank != 3 or not isinstance(width, int) or heads < 1 or width % heads:
        raise n.unsupported(f"data {t} of {heads} heads")
    apart = n.step("reshape", x, newshape=(*t.shape[:2], heads, width // heads))
    return n.step("transpose", apart, axes=(0, 2, 1, 3))


def merged_heads(n: Node, x: Atom, emit: Emit) -> Atom:
    """[batch, heads, positions, size] as [batch, positions, heads * size]; `emit` makes it."""
    batch, heads, length, size = tensor_type(x).shape
    turned = n.step("transpose", x, axes=(0, 2, 1, 3))
    return emit("reshape", turned, newshape=(batch, length, dim(Index.of(heads) * size)))


def repeated(n: Node, x: Atom, heads: int) -> Atom:
    """Keys or values of fewer heads, each for as many neighbouring heads of `heads`.

    Raises:
        UnsupportedError: that does not divide.
    """
    batch, own, length, size = tensor_type(x).shape
    if own == heads:
        return x
    if not isinstance(own, int) or own < 1 or heads % own:
        raise n.unsupported(f"{heads} heads of queries and {own} of keys and values")
    x = n.step("expand_dims", x, axes=(2,))
    x = n.step("broadcast_to", x, shape=(batch, own, heads // own, length, size))
    return n.step("reshape", x, newshape=(batch, heads, length, size))


def attended(n: Node, q: Atom, k: Atom, v: Atom, how: Scores) -> Atom:
    """What queries read: [batch, heads, queries, size of a value]."""
    heads = tensor_type(q).shape[1]
    if not isinstance(heads, int):
        raise n.unsupported(f"{heads} heads; use shapes=...")
    k, v = repeated(n, k, heads), repeated(n, v, heads)
    scores = n.step("nn.matmul", q, n.step("transpose", k, axes=(0, 1, 3, 2)))
    t = tensor_type(scores)
    size = tensor_type(q).shape[-1]
    scale = how.scale
    if scale is None:
        if not isinstance(size, int):
            raise n.unsupported(f"heads of {size} elements; use shapes=...")
        scale = 1 / math.sqrt(size)
    if scale != 1:
        scores = n.step("multiply", scores, scalar(scale, t))
    if how.softcap:
        bounded = n.step("tanh", n.step("divide", scores, scalar(how.softcap, t)))
        scores = n.step("multiply", bounded, scalar(how.softcap, t))
    seen = _seen(n, t, how)
    mask = how.bias if seen is None else _added(n, t, seen, how.bias)
    if mask is not None:
        scores = n.step("add", scores, mask)
    y = n.step("nn.matmul", n.step("nn.softmax", scores, axis=-1), v)
    if how.allowed is None or seen is None:
        return y
    flags = mask if how.bias is None and mask is not None else _added(n, t, seen, None)
    best = n.step("max", flags, axis=(tensor_type(flags).rank - 1,), keepdims=True)
    nothing = n.step("less", best, scalar(0, t))
    return n.step("where", nothing, scalar(0, t), y)


def lowest(t: TensorType) -> float:
    """The lowest finite number of a dtype of ONNX's."""
    return bounds(t.dtype)[0]


def _seen(n: Node, t: TensorType, how: Scores) -> Atom | None:
    """Which keys queries read, of scores of type `t`; None: all."""
    allowed = [how.allowed] if how.allowed is not None else []
    if how.causal is not None:
        allowed.append(causal(n, t.shape[2], t.shape[3], how.causal, how.window))
    if not allowed:
        return None
    return allowed[0] if len(allowed) == 1 else n.step("logical_and", *allowed)


def _added(n: Node, t: TensorType, seen: Atom, bias: Atom | None) -> Atom:
    """What is added to scores of type `t`: `bias`, and for what is not seen the lowest number."""
    given = scalar(0, t) if bias is None else bias
    return n.step("where", seen, given, scalar(lowest(t), t))


def causal(n: Node, queries: Dim, keys: Dim, before: Dim, window: int = 0) -> Atom:
    """bool [queries, keys]: whether a key is that of the query (which `before` keys come before),
    or an earlier one, of the last `window` if that is given."""
    rows = positions(n, queries)
    if before != 0:
        rows = n.step("add", rows, number(n, before))
    rows = n.step("expand_dims", rows, axes=(1,))
    columns = n.step("expand_dims", positions(n, keys), axes=(0,))
    seen = n.step("less_equal", columns, rows)
    if not window:
        return seen
    least = n.step("subtract", rows, number(n, window))
    return n.step("logical_and", seen, n.step("greater", columns, least))


def as_bool(n: Node, x: Atom) -> Atom:
    """Whether elements are not 0."""
    t = tensor_type(x)
    return x if t.dtype == BOOL else n.step("not_equal", x, scalar(0, t))


# ---- positions as rotations ----------------------------------------------------------------------
def rotated(
    n: Node, x: Atom, cos: Atom, sin: Atom, interleaved: bool, emit: Emit, scale: float = 1.0
) -> Atom:
    """Pairs of elements of the last axis turned by angles, of which `cos` and `sin` (half of that
    axis; they broadcast) are given: of x[i] and x[i + half], or, interleaved, of x[2i] and
    x[2i + 1]. What is beyond twice that axis stays as it is.

    (Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021, section 3.4.)
    """
    t = tensor_type(x)
    size, half = t.shape[-1], tensor_type(cos).shape[-1]
    if not isinstance(size, int) or not isinstance(half, int) or 2 * half > size:
        raise n.unsupported(f"angles {tensor_type(cos)} for data {t}")
    last = t.rank - 1
    turned = n.step("strided_slice", x, begin=(0,), end=(2 * half,), axes=(last,))
    turned = turned if 2 * half < size else x
    if interleaved:
        whole = _turned_pairs(n, turned, cos, sin, half)
    else:
        both = (n.step("concatenate", a, a, axis=tensor_type(a).rank - 1) for a in (cos, sin))
        whole = n.step("nn.rotary", turned, *both)
    if 2 * half < size:
        rest = n.step("strided_slice", x, begin=(2 * half,), end=(size,), axes=(last,))
        whole = n.step("concatenate", whole, rest, axis=last)
    return emit("multiply", whole, scalar(scale, t)) if scale != 1 else whole


def _turned_pairs(n: Node, x: Atom, cos: Atom, sin: Atom, half: int) -> Atom:
    """Elements 2i and 2i + 1 of the last axis turned by angle i."""
    shape, last = tensor_type(x).shape, tensor_type(x).rank - 1
    pairs = n.step("reshape", x, newshape=(*shape[:-1], half, 2))
    a, b = (
        n.step("squeeze", n.step("strided_slice", pairs, begin=(k,), end=(k + 1,),
                                 axes=(last + 1,)), axis=(last + 1,))
        for k in (0, 1)
    )  # fmt: skip
    first = n.step("subtract", n.step("multiply", a, cos), n.step("multiply", b, sin))
    second = n.step("add", n.step("multiply", b, cos), n.step("multiply", a, sin))
    apart = (n.step("expand_dims", p, axes=(last + 1,)) for p in (first, second))
    return n.step("reshape", n.step("concatenate", *apart, axis=last + 1), newshape=shape)


def angles(n: Node, cache: Atom, at: Atom) -> Atom:
    """Rows [batch, positions, half] of a table [most positions, half], for every head: [batch, 1,
    positions, half]."""
    rows = n.step("take", cache, at, axis=0)
    return n.step("expand_dims", rows, axes=(1,))


def counted(n: Node, start: Dim | Atom, count: Dim) -> Atom:
    """start, start + 1 ... : `count` positions in a row [1, count]."""
    row = positions(n, count)
    if not isinstance(start, int) or start != 0:
        first = number(n, start)
        row = n.step("add", row, first)
    return n.step("reshape", row, newshape=(1, count))


__all__ = [
    "Scores", "angles", "as_bool", "attended", "causal", "counted", "lowest", "merged_heads",
    "repeated", "rotated", "split_heads",
]  # fmt: skip
