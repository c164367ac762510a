"""Draws operators that move elements, look for them, or make them of nothing."""

from __future__ import annotations

import numpy as np

from random_graphs.drawing import BOOL, INT64, Drawing, draws
from random_graphs.numbers_drawn import draw, is_float
from random_graphs.oracle import Unavailable, tensor

RANKED = (1, 2, 3, 4)


@draws("Transpose")
def transpose(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op))
    perm = [int(a) for a in g.rng.permutation(g.of(x).ndim)]
    g.node(op, [x], perm=perm if g.chance(0.8) and perm else None)


@draws("Reshape")
def reshape(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op))
    left, dims = g.of(x).size, []
    if left == 0:
        dims = list(g.of(x).shape[::-1])
        g.node(op, [x, g.numbers(dims)], allowzero=1 if g.has(op, "allowzero") else None)
        return
    while left > 1:
        d = g.any([d for d in range(1, left + 1) if left % d == 0])
        dims.append(d)
        left //= d
    dims = dims[:5] if np.prod(dims[:5]) == g.of(x).size else [g.of(x).size]
    shape = list(dims)
    if dims and g.chance(0.4):
        shape[g.int(0, len(dims) - 1)] = -1
    elif dims and dims[0] == (g.of(x).shape or (0,))[0] and g.chance():
        shape[0] = 0
    g.node(op, [x, g.numbers(shape)])


@draws("Flatten")
def flatten(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op))
    rank = g.of(x).ndim
    g.node(op, [x], axis=g.int(-rank if g.opset >= 11 else 0, rank) if g.chance(0.8) else None)


@draws("Squeeze")
def squeeze(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op))
    ones = [a for a, d in enumerate(g.of(x).shape) if d == 1]
    some = [a for a in ones if g.chance(0.6)]
    if not some:
        g.node(op, [x])
    elif g.has(op, "axes"):
        g.node(op, [x], axes=some)
    else:
        g.node(op, [x, g.numbers(some)])


@draws("Unsqueeze")
def unsqueeze(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (0, 1, 2, 3))
    rank = g.of(x).ndim
    axes = [int(a) for a in g.rng.permutation(rank + 2)[: g.int(1, 2)]]
    if len(axes) == 1:
        axes = [g.int(0, rank)]
    if g.opset >= 11 and g.chance(0.3):
        axes = [a - rank - len(axes) for a in axes]
    if g.has(op, "axes"):
        g.node(op, [x], axes=axes)
    else:
        g.node(op, [x, g.numbers(axes)])


@draws("Concat")
def concat(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, RANKED)
    shape = list(g.of(x).shape)
    axis = g.axis(len(shape))
    others = []
    for _ in range(g.int(0, 3)):
        shape[axis] = g.int(1, 4)
        others.append(g.given(shape, dtype))
    parts = [x, *others]
    g.rng.shuffle(parts)
    g.node(op, parts, axis=axis)


@draws("Split")
def split(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    axis = g.axis(g.of(x).ndim)
    size, count = g.of(x).shape[axis], g.int(1, 3)
    if size < count:
        raise Unavailable("too short to split")
    cuts = sorted(int(c) for c in g.rng.choice(np.arange(1, max(size, 2)), count - 1, False))
    sizes = [int(s) for s in np.diff([0, *cuts, size])]
    if size % count == 0 and g.chance(0.4):
        many = count if g.has(op, "num_outputs") else None
        g.node(op, [x], count, axis=axis, num_outputs=many)
    elif g.has(op, "split"):
        g.node(op, [x], count, axis=axis, split=sizes)
    else:
        g.node(op, [x, g.numbers(sizes)], count, axis=axis)


@draws("Slice")
def slices(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    shape = g.of(x).shape
    axes = [int(a) for a in g.rng.permutation(len(shape))[: g.int(1, len(shape))]]
    steps = [1 if g.opset < 10 or g.chance(0.6) else g.any([-3, -2, -1, 2, 3]) for _ in axes]
    starts, ends = [], []
    for a, s in zip(axes, steps, strict=True):
        n = shape[a]
        low, high = sorted(g.int(-n - 1, n + 1) % (n + 1) for _ in range(2))
        if low == high and g.chance(0.9):
            low, high = 0, n
        first, last = (low, high) if s > 0 else (max(high - 1, 0), low - 1)
        starts.append(first - n if g.chance(0.2) and first < n else first)
        ends.append(last if last >= 0 else -n - 1)
        if g.chance(0.2):
            ends[-1] = 2**31 - 1 if s > 0 else -(2**31)
    if g.opset < 10:
        g.node(op, [x], axes=axes, starts=starts, ends=ends)
        return
    more = [] if all(s == 1 for s in steps) and g.chance() else [g.numbers(steps)]
    g.node(op, [x, g.numbers(starts), g.numbers(ends), g.numbers(axes), *more])


@draws("Pad")
def pad(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, RANKED)
    shape = g.of(x).shape
    modes = ["constant", "constant", "edge", "reflect"] + ["wrap"] * (g.opset >= 19)
    mode = g.any(modes)
    most = [2 if mode != "reflect" else min(2, max(0, d - 1)) for d in shape]
    least = [-1 if mode == "constant" and d > 3 else 0 for d in shape]
    pads = [g.int(lo, hi) for lo, hi in [*zip(least, most, strict=True)] * 2]
    if g.opset < 11:
        g.node(op, [x], mode=mode, pads=pads, value=1.5 if g.chance() else None)
        return
    value = [g.stored(np.asarray(2, dtype))] if mode == "constant" and g.chance() else []
    if g.opset >= 18 and g.chance(0.4):
        axes = [int(a) for a in g.rng.permutation(len(shape))[: g.int(1, len(shape))]]
        half = len(shape)
        pads = [pads[a] for a in axes] + [pads[a + half] for a in axes]
        g.node(op, [x, g.numbers(pads), *(value or [""]), g.numbers(axes)], mode=mode)
        return
    g.node(op, [x, g.numbers(pads), *value], mode=mode)


@draws("Expand")
def expand(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (0, 1, 2, 3))
    shape = [g.int(1, 4) if d == 1 else g.any([d, 1]) for d in g.of(x).shape]
    more = [g.int(1, 3)] if g.chance(0.3) else []
    g.node(op, [x, g.numbers([*more, *shape])])


@draws("Tile")
def tile(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (1, 2, 3))
    g.node(op, [x, g.numbers([g.any([1, 1, 2, 3, 0 if g.empty else 1]) for _ in g.of(x).shape])])


@draws("Gather", "GatherElements")
def gather(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    shape = g.of(x).shape
    axis = g.axis(len(shape))
    size = shape[axis]
    if size == 0:
        raise Unavailable("nothing to gather")
    many = g.shape(g.int(0, 2))
    if op == "GatherElements":
        many = tuple(g.int(1, max(1, d)) if a != axis % len(shape) else g.int(1, 4)
                     for a, d in enumerate(shape))  # fmt: skip
        if 0 in shape:
            raise Unavailable("nothing to gather")
    at = g.rng.integers(-size, size, many).astype(g.any([np.int32, np.int64]))
    put = g.stored if g.chance() else g.input
    g.node(op, [x, put(np.asarray(at))], axis=axis)


@draws("GatherND")
def gather_nd(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    shape = g.of(x).shape
    batch = g.int(0, len(shape) - 1) if g.opset >= 12 and g.chance(0.3) else 0
    depth = g.int(1, len(shape) - batch)
    if 0 in shape:
        raise Unavailable("nothing to gather")
    many = (*shape[:batch], *g.shape(g.int(0, 2)))
    at = np.stack([g.rng.integers(-d, d, many) for d in shape[batch : batch + depth]], -1)
    g.node(op, [x, (g.stored if g.chance() else g.input)(at.astype(np.int64))],
           batch_dims=batch or None)  # fmt: skip


@draws("ScatterElements", "Scatter")
def scatter_elements(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, RANKED)
    shape = g.of(x).shape
    if 0 in shape:
        raise Unavailable("nothing to scatter to")
    axis = g.axis(len(shape)) if g.opset >= 11 else g.int(0, len(shape) - 1)
    many = [g.int(1, d) for d in shape]
    kinds = ["add", "mul"] * (g.opset >= 16) + ["min", "max"] * (g.opset >= 18)
    kind = g.any(kinds) if kinds and g.chance(0.4) else None
    at = g.rng.integers(-shape[axis] if g.opset >= 11 else 0, shape[axis], many)
    if kind is None:  # which of several writes to an element is last is not said
        order = g.rng.permuted(np.broadcast_to(
            np.arange(shape[axis]).reshape([-1 if a == axis % len(shape) else 1
                                            for a in range(len(shape))]), shape),
            axis=axis)  # fmt: skip
        at = order[tuple(slice(m) for m in many)]
    g.node(op, [x, (g.stored if g.chance() else g.input)(at.astype(np.int64)),
                g.given(many, dtype)], axis=axis, reduction=kind)  # fmt: skip


@draws("ScatterND")
def scatter_nd(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = g.value(dtype, RANKED)
    shape = g.of(x).shape
    if 0 in shape:
        raise Unavailable("nothing to scatter to")
    depth = g.int(1, len(shape))
    places = np.stack(np.meshgrid(*map(np.arange, shape[:depth]), indexing="ij"), -1)
    places = g.rng.permutation(places.reshape(-1, depth))[: g.int(1, 4)]
    kinds = ["add", "mul"] * (g.opset >= 16) + ["min", "max"] * (g.opset >= 18)
    updates = g.given((len(places), *shape[depth:]), dtype)
    kind = g.any(kinds) if kinds and g.chance(0.4) else None
    g.node(op, [x, g.stored(places.astype(np.int64)), updates], reduction=kind)


@draws("DepthToSpace", "SpaceToDepth")
def blocks(g: Drawing, op: str) -> None:
    b, (n, c, h, w) = g.int(1, 3), g.shape(4)
    if op == "DepthToSpace":
        mode = g.any([None, "DCR", "CRD"]) if g.opset >= 11 else None
        g.node(op, [g.given((n, c * b * b, h, w), g.dtype(op))], blocksize=b, mode=mode)
    else:
        g.node(op, [g.given((n, c, h * b, w * b), g.dtype(op))], blocksize=b)


@draws("Trilu")
def trilu(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (2, 3))
    more = [g.stored(np.asarray(g.int(-3, 3), np.int64))] if g.chance() else []
    g.node(op, [x, *more], upper=g.any([None, 0, 1]))


@draws("EyeLike")
def eye_like(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (2,))
    g.node(op, [x], k=g.any([None, 0, -1, 2]), dtype=g.any([None, 1, 11, 7]))


@draws("Compress")
def compress(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    shape = g.of(x).shape
    axis = g.axis(len(shape)) if g.chance(0.7) else None
    size = g.of(x).size if axis is None else shape[axis]
    kept = g.rng.random(min(size, g.int(1, max(size, 1)))) < 0.6
    g.node(op, [x, (g.stored if g.chance(0.7) else g.input)(kept)], axis=axis)


@draws("NonZero")
def non_zero(g: Drawing, op: str) -> None:
    g.node(op, [g.value(g.dtype(op), RANKED)])


@draws("OneHot")
def one_hot(g: Drawing, op: str) -> None:
    dtype, depth = g.dtype(op, 2), g.int(2, 5)
    shape = g.shape(g.int(0, 2))
    at = g.rng.integers(-depth - 1, depth + 1, shape).astype(g.any([np.int32, np.int64]))
    values = g.stored(np.asarray(g.any([[0, 1], [2, 5]]), dtype))
    depths = g.stored(np.asarray(g.any([depth, [depth]]), np.int64))
    axis = g.axis(len(shape), 1) if g.chance(0.7) else None
    g.node(op, [(g.input if g.chance(0.8) else g.stored)(np.asarray(at)), depths, values],
           axis=axis)  # fmt: skip


@draws("ReverseSequence")
def reverse_sequence(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), (2, 3, 4))
    shape = g.of(x).shape
    batch = g.int(0, 1)
    if 0 in shape:
        raise Unavailable("nothing to reverse")
    lengths = g.rng.integers(1, shape[1 - batch] + 1, shape[batch])
    g.node(op, [x, (g.stored if g.chance() else g.input)(lengths.astype(np.int64))],
           batch_axis=batch, time_axis=1 - batch)  # fmt: skip


@draws("TopK")
def top_k(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    axis = g.axis(g.of(x).ndim) if g.opset >= 11 else g.int(0, g.of(x).ndim - 1)
    k = g.int(0 if g.empty else 1, g.of(x).shape[axis])
    if g.opset < 10:
        g.node(op, [x], 2, axis=axis, k=k)
        return
    largest = g.any([None, 0, 1]) if g.opset >= 11 else None
    g.node(op, [x, g.numbers([k])], 2, axis=axis, largest=largest, sorted=1 if largest else None)


@draws("Unique")
def unique(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    if g.of(x).size == 0:
        raise Unavailable("it ends onnxruntime's process")
    axis = g.axis(g.of(x).ndim) if g.chance() else None
    g.node(op, [x], g.int(1, 4), axis=axis, sorted=g.any([None, 0, 1]))


@draws("Range")
def ranges(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    start, step = g.int(-3, 5), g.any([1, 2, 3, -1, -2])
    stop = start + step * g.int(0 if g.empty else 1, 6) + (1 if step > 0 else -1) * g.chance()
    put = g.stored if g.chance(0.7) else g.input
    g.node(op, [put(np.asarray(v, dtype)) for v in (start, stop, step)])


@draws("Constant")
def constant(g: Drawing, op: str) -> None:
    value = draw(g.rng, g.shape(g.int(0, 3)), g.dtype("Identity"), g.flavour)
    g.node(op, [], value=tensor(value, "value"))


@draws("ConstantOfShape")
def constant_of_shape(g: Drawing, op: str) -> None:
    dtype = g.any([np.dtype(d) for d in ("float32", "float64", "int32", "int64", "bool", "uint8")])
    value = tensor(np.asarray([3], dtype), "value") if g.chance(0.8) else None
    g.node(op, [g.numbers(list(g.shape(g.int(0, 3))))], value=value)


@draws("Shape")
def shape_of(g: Drawing, op: str) -> None:
    ends = {n: g.int(-3, 3) for n in ("start", "end") if g.opset >= 15 and g.chance(0.3)}
    g.node(op, [g.value(g.dtype(op))], **ends)


@draws("CenterCropPad")
def center_crop_pad(g: Drawing, op: str) -> None:
    x = g.value(g.dtype(op), RANKED)
    rank = g.of(x).ndim
    axes = [int(a) for a in g.rng.permutation(rank)[: g.int(1, rank)]] if g.chance() else None
    sizes = [g.int(1, 6) for _ in axes or range(rank)]
    g.node(op, [x, g.numbers(sizes)], axes=axes)


@draws("NonMaxSuppression")
def non_max_suppression(g: Drawing, op: str) -> None:
    n, boxes, classes = g.int(1, 2), g.int(1, 6), g.int(1, 2)
    corner = g.rng.uniform(0, 4, (n, boxes, 2))
    far = corner + g.rng.uniform(0.1, 3, (n, boxes, 2))
    where = np.concatenate([corner, far], -1).astype(np.float32)
    scores = g.rng.permutation(n * classes * boxes).reshape(n, classes, boxes).astype(np.float32)
    limits = [g.stored(np.asarray([v], d)) for v, d in
              ((g.int(1, 4), np.int64), (0.4, np.float32), (1.5, np.float32))]  # fmt: skip
    g.node(op, [g.input(where), g.input(scores), *limits[: g.int(1, 3)]],
           center_point_box=g.int(0, 1))  # fmt: skip


__all__ = ["BOOL", "INT64", "is_float"]
