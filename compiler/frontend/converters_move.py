"""Converters of operators that move elements or make tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontend.choices import axes_of, each_value, rank_of_unsqueezed, same_rank
from compiler.frontend.computed_moves import divided, expanded, padded, reshaped, tiled, turned
from compiler.frontend.indices import check_positions
from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import found_sizes, narrowed
from compiler.frontend.values import Imported
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.types.dtypes import FLOAT32, INT64
from compiler.types.tensor_types import TensorType, broadcast

_STORED_ELEMENTS = 1 << 20
"""ConstantOfShape is stored as a constant up to this size, and computed beyond it."""


# ---- constants -----------------------------------------------------------------------------------
@converts("Constant")
def constant(n: Node) -> Imported:
    """A tensor, or one of the scalar and list attributes."""
    if "value" in n.attrs:
        value: Constant = n.attrs["value"]
        return value
    for name, dtype in (
        ("value_float", FLOAT32), ("value_floats", FLOAT32), ("value_int", INT64),
        ("value_ints", INT64),
    ):  # fmt: skip
        if name in n.attrs:
            return Constant.of(n.attrs[name], dtype)
    raise n.unsupported(f"its value kind ({', '.join(n.attrs) or 'none'})")


@converts("ConstantOfShape")
def constant_of_shape(n: Node) -> Imported:
    """One value repeated; float32 zero by default."""
    value: Constant = n.attr("value", Constant.of([0.0], FLOAT32))
    shape = found_sizes(n, 0)
    one = Constant(value.data.reshape(()), value.dtype)
    known = [d for d in shape if isinstance(d, int)]
    if min(known, default=0) < 0:
        raise n.unsupported(f"shape={shape}")
    if len(known) == len(shape) and math.prod(known) <= _STORED_ELEMENTS:
        n.reserve(*known)
        return Constant(np.full(known, one.data), one.dtype)
    return n.call("broadcast_to", one, shape=shape)


@converts("Expand")
def expand(n: Node) -> Imported:
    """Broadcast with a shape."""
    if n.is_computed(1):
        return expanded(n)
    shape = broadcast(n.type(0).shape, n.dims(1, "shape"))
    if shape == n.type(0).shape:
        return n.value(0)
    return n.call("broadcast_to", n.atom(0), shape=shape)


# ---- shapes --------------------------------------------------------------------------------------
@converts("Reshape")
def reshape(n: Node) -> Imported:
    """0 copies a dimension of the input (unless allowzero), -1 is what remains."""
    old = n.type(0).shape
    if n.is_computed(1) and n.constant(1) is None:
        return reshaped(n)
    new = list(n.dims(1, "shape"))
    if not n.attr("allowzero", 0):
        for i, d in enumerate(new):
            if d == 0:
                if i >= len(old):
                    raise n.unsupported(f"shape={tuple(new)}: dimension {i} copies none")
                new[i] = old[i]
    if n.type(0).size == 0 and 0 in new:
        if -1 in new:
            raise n.unsupported(f"shape={tuple(new)} of an empty tensor")
        return n.empty(new, n.type(0).dtype)
    return n.call("reshape", n.atom(0), newshape=tuple(new))


@converts("Flatten")
def flatten(n: Node) -> Imported:
    """To two dimensions, split before `axis`."""
    rank = n.type(0).rank
    axis = n.attr("axis", 1)
    if not -rank <= axis <= rank:
        raise n.unsupported(f"axis={axis} for rank {rank}")
    return n.call("flatten", n.atom(0), axis=axis + rank if axis < 0 else axis)


@converts("Transpose")
def transpose(n: Node) -> Imported:
    """Permuted axes; reversed by default."""
    rank = n.type(0).rank
    perm = tuple(n.attr("perm", tuple(range(rank))[::-1]))
    return n.call("transpose", n.atom(0), axes=perm)


@converts("Squeeze")
@each_value(1, axes_of(same_rank))
def squeeze(n: Node) -> Imported:
    """Without axes, every dimension that is 1: sizes that are open are taken to be others."""
    t = n.type(0)
    axes = n.ints("axes", 1, 13)
    if axes is not None:
        if not axes:
            return n.value(0)
        front = tuple(n.front(a, t.rank) for a in axes)
        return n.call("squeeze", narrowed(n, n.atom(0), dict.fromkeys(front, 1)), axis=front)
    ones = tuple(i for i, d in enumerate(t.shape) if n.graph.is_equal(d, 1))
    left = dict.fromkeys(d for i, d in enumerate(t.shape) if i not in ones)
    others = [d for d in left if n.graph.assuming.unless(d, 1, n.where)]
    if not ones and not others:
        return n.value(0)
    x = n.atom(0)
    for d in others:
        x = n.step("assume", x, size=d, equal=1, node=n.where, differs=True)
    return n.call("squeeze", narrowed(n, x, dict.fromkeys(ones, 1)), axis=ones) if ones else x


@converts("Unsqueeze")
@each_value(1, axes_of(rank_of_unsqueezed))
def unsqueeze(n: Node) -> Imported:
    """Axes count in the result."""
    axes = n.ints("axes", 1, 13)
    if axes is None:
        raise n.unsupported("no axes")
    rank = n.type(0).rank + len(axes)
    return n.call("expand_dims", n.atom(0), axes=tuple(sorted(n.front(a, rank) for a in axes)))


# ---- joining and cutting -------------------------------------------------------------------------
@converts("Concat")
def concat(n: Node) -> Imported:
    """Along one axis; parts without elements add nothing."""
    parts, axis = n.atoms(), n.front(n.need("axis"), n.type(0).rank)
    full = [p for p in parts if tensor_type(p).shape[axis] != 0] or parts[:1]
    return n.call("concatenate", *full, axis=axis) if len(full) > 1 else full[0]


@converts("Split")
def split(n: Node) -> Sequence[Imported]:
    """Sizes from the attribute, the input, or equal parts."""
    t = n.type(0)
    axis = n.axis(0, t.rank)
    if n.opset >= 13 and n.has(1) and n.constant(1) is None:
        return divided(n, axis)
    sizes = n.ints("split", 1, 13)
    if sizes is None:
        total, count = t.shape[axis], max(1, n.attr("num_outputs", len(n.outputs)))
        if not isinstance(total, int):
            raise n.unsupported(f"equal parts of the symbolic dimension {total}; use shapes=...")
        part = -(-total // count)
        sizes = tuple(max(0, min(part, total - part * i)) for i in range(count))
    if len(sizes) == 1:
        return [n.value(0)]
    if len(n.outputs) != len(sizes):
        raise n.unsupported(f"{len(n.outputs)} outputs for {len(sizes)} parts")
    x = n.value(0)
    if isinstance(x, Constant) and sum(sizes) == t.shape[axis]:
        ends = list(itertools.accumulate(sizes))
        cuts = np.split(x.data, ends[:-1], axis)
        return [Constant(np.ascontiguousarray(c), x.dtype) for c in cuts]
    parts = n.step("split", n.atom(0), sizes=sizes, axis=axis)
    # an output without a name is not wanted
    return [n.field(parts, i) if n.outputs[i] else parts for i in range(len(sizes))]


@converts("Gather")
def gather(n: Node) -> Imported:
    """Elements along an axis."""
    axis = n.axis(0, n.type(0).rank)
    check_positions(n, 1, [n.type(0).shape[axis]])
    return n.call("take", n.atom(0), n.atom(1), axis=axis)


@converts("Pad")
def pad(n: Node) -> Imported:
    """Constant, reflected, repeated or wrapped borders; negative pads cut."""
    t = n.type(0)
    mode = n.expect("mode", "constant", "constant", "reflect", "edge", "wrap")
    if n.opset < 11:
        pads, value = tuple(n.need("pads")), float(n.attr("value", 0.0))
    elif any(n.has(i) and n.constant(i) is None for i in (1, 2, 3)):
        return padded(n, mode)
    else:
        pads = tuple(int(p) for p in n.known(1, "pads"))
        value = float(n.known(2, "constant_value").reshape(())) if n.has(2) else 0.0
    axes = range(t.rank)
    on = [n.front(int(a), t.rank) for a in n.known(3, "axes")] if n.has(3) else list(axes)
    if len(pads) != 2 * len(on):
        raise n.unsupported(f"pads={pads} for {len(on)} axes")
    width = {a: (pads[i], pads[i + len(on)]) for i, a in enumerate(on)}
    x = n.atom(0)
    cut = [a for a in axes if min(width.get(a, (0, 0))) < 0]
    grown = any(max(w) > 0 for w in width.values())
    if cut:
        emit = n.step if grown else n.call
        x = emit("strided_slice", x, **_cropping(n, t, {a: width[a] for a in cut}))
    if not grown:
        return x
    full = tuple(tuple(max(0, p) for p in width.get(a, (0, 0))) for a in axes)
    if mode == "wrap":
        return _wrapped(n, x, full)
    return n.call("nn.pad", x, pad_width=full, mode=mode, value=value)


def _wrapped(n: Node, x: Atom, width: Sequence[Sequence[int]]) -> Atom:
    """`x` continued from its other end."""
    for axis, (before, after) in enumerate(width):
        size = tensor_type(x).shape[axis]
        if before or after:
            if not isinstance(size, int):
                raise n.unsupported(f"mode='wrap' on the symbolic dimension {size}")
            n.reserve(before + size + after)
            at = np.arange(-before, size + after) % size
            x = n.step("take", x, Constant.of(at, INT64), axis=axis)
    return x


def _cropping(n: Node, t: TensorType, width: dict[int, tuple[int, int]]) -> dict[str, Any]:
    ends = []
    for a, (_, after) in width.items():
        size = t.shape[a]
        if not isinstance(size, int):
            raise n.unsupported(f"negative pads of the symbolic dimension {size}")
        ends.append(size + min(0, after))
    begin = tuple(max(0, -before) for before, _ in width.values())
    strides = (1,) * len(ends)
    return {"begin": begin, "end": tuple(ends), "strides": strides, "axes": tuple(width)}


@converts("Tile")
def tile(n: Node) -> Imported:
    """The input repeated along every axis."""
    if n.constant(1) is None:
        return tiled(n)
    repeats, shape = n.known(1, "repeats").reshape(-1), n.type(0).shape
    if len(repeats) != len(shape) or min(repeats, default=0) < 0:
        raise n.unsupported(f"repeats={tuple(map(int, repeats))} for {n.type(0)}")
    if 0 in repeats:
        return n.empty([int(k) * d for k, d in zip(repeats, shape, strict=True)], n.type(0).dtype)
    x = n.atom(0)
    if max(repeats, default=1) == 1:
        return x
    pairs = list(zip(map(int, repeats), shape, strict=True))
    apart = n.step("reshape", x, newshape=tuple(d for _, size in pairs for d in (1, size)))
    wide = n.step("broadcast_to", apart, shape=tuple(d for pair in pairs for d in pair))
    return n.call("reshape", wide, newshape=tuple(k * size for k, size in pairs))


@converts("ReverseSequence")
def reverse_sequence(n: Node) -> Imported:
    """The first elements of every sequence of a batch backward."""
    time, batch = int(n.attr("time_axis", 0)), int(n.attr("batch_axis", 1))
    t = n.type(0)
    if {time, batch} == {0, 1} and n.constant(1) is None:
        return turned(n, time)
    lengths = n.known(1, "sequence_lens").reshape(-1)
    steps = t.shape[time]
    if not isinstance(steps, int) or {time, batch} != {0, 1} or t.shape[batch] != len(lengths):
        raise n.unsupported(f"data {t} and {len(lengths)} lengths; use shapes=...")
    if min(lengths) < 0 or max(lengths) > steps:
        raise n.unsupported(f"sequence_lens={tuple(map(int, lengths))} for {steps} steps")
    n.reserve(steps, len(lengths))
    at = np.arange(steps)[:, None]
    source = np.where(at < lengths, lengths - 1 - at, at)
    flat = source * len(lengths) + np.arange(len(lengths))
    if time == 1:
        flat = (source + np.arange(len(lengths)) * steps).T
    rows = n.step("reshape", n.atom(0), newshape=(-1, *t.shape[2:]))
    return n.call("take", rows, Constant.of(flat, INT64), axis=0)
