"""Draws operators on images and sequences, and matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_graphs.drawing import Drawing, draws
from random_graphs.oracle import Unavailable

FLOAT32 = np.dtype(np.float32)


def image(g: Drawing, dtype: Any, spatial: int | None = None, channels: int | None = None) -> str:
    """[n, c, *sizes]: an earlier value of such a shape, or a new one."""
    spatial = spatial if spatial is not None else g.any([1, 2, 2, 2, 3])
    fitting = [
        n for n, a in g.arrays.items()
        if a.ndim == spatial + 2 and a.dtype == dtype and n not in g.weights and a.size
        and min(a.shape[2:]) > 2 and (channels is None or a.shape[1] == channels)
    ]  # fmt: skip
    if fitting and g.chance(0.6):
        return str(g.any(fitting[-8:]))
    least, most = (3, 9) if spatial < 3 else (2, 5)
    sizes = [g.int(least, most) for _ in range(spatial)]
    batch = 0 if g.chance(g.empty) else g.int(1, 2)
    return g.given((batch, channels or g.int(1, 6), *sizes), dtype, 0)


def window(g: Drawing, sizes: Any, transposed: bool = False) -> dict[str, Any]:
    """Kernel, strides, dilations and pads that fit an image of these sizes."""
    kernel, strides, dilations, begins, ends = [], [], [], [], []
    for size in sizes:
        k, d = g.int(1, 3), g.any([1, 1, 1, 2])
        reach = d * (k - 1) + 1
        if reach > size and not transposed:
            k, d, reach = 1, 1, 1
        kernel.append(k)
        dilations.append(d)
        strides.append(g.any([1, 1, 2, 3]))
        for side in (begins, ends):
            side.append(g.int(0, max(0, min(2, reach - 1))) if g.chance(0.6) else 0)
    made: dict[str, Any] = {"kernel_shape": kernel}
    made["strides"] = strides if g.chance(0.7) else None
    made["dilations"] = dilations if any(d > 1 for d in dilations) else None
    if g.chance(0.15) and made["dilations"] is None and not transposed:
        made["auto_pad"] = g.any(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif g.chance(0.7):
        made["pads"] = [*begins, *ends]
    return made


@draws("Conv")
def conv(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = image(g, dtype)
    c, sizes = g.of(x).shape[1], g.of(x).shape[2:]
    groups = g.any([d for d in (1, 1, 2, 3, c) if c % d == 0])
    out = groups * g.int(1, 4)
    attrs = window(g, sizes)
    w = g.given((out, c // groups, *attrs["kernel_shape"]), dtype, 0.85)
    bias = [g.given((out,), dtype, 0.9)] if g.chance() else []
    g.node(op, [x, w, *bias], group=groups if groups > 1 or g.chance(0.3) else None, **attrs)


@draws("ConvTranspose")
def conv_transpose(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = image(g, dtype, g.any([1, 2, 2]))
    c, sizes = g.of(x).shape[1], g.of(x).shape[2:]
    groups = g.any([d for d in (1, 1, 2, c) if c % d == 0])
    attrs = window(g, sizes, transposed=True)
    out = g.int(1, 3)
    w = g.given((c, out, *attrs["kernel_shape"]), dtype, 0.85)
    bias = [g.given((out * groups,), dtype, 0.9)] if g.chance() else []
    strides = attrs["strides"] or [1] * len(sizes)
    if g.chance(0.3):
        attrs["output_padding"] = [g.int(0, s - 1) for s in strides]
    if g.chance(0.15):
        attrs.pop("pads", None)
        attrs["output_shape"] = [s * t + g.int(-1, 1) for s, t in zip(sizes, strides, strict=True)]
    g.node(op, [x, w, *bias], group=groups if groups > 1 else None, **attrs)


@draws("DeformConv")
def deform_conv(g: Drawing, op: str) -> None:
    x = image(g, FLOAT32, 2)
    n, c, h, w = g.of(x).shape
    kernel, offsets = [g.int(1, 3), g.int(1, 2)], g.any([d for d in (1, 2) if c % d == 0])
    out_h, out_w, out = h - kernel[0] + 1, w - kernel[1] + 1, g.int(1, 3)
    taps = offsets * kernel[0] * kernel[1]
    offset = g.input(g.rng.normal(0, 1, (n, 2 * taps, out_h, out_w)).astype(np.float32))
    more = [g.stored(g.rng.normal(0, 1, out).astype(np.float32))]
    if g.chance():
        more.append(g.input(g.rng.uniform(0, 1, (n, taps, out_h, out_w)).astype(np.float32)))
    weight = g.given((out, c, *kernel), FLOAT32, 0.9)
    g.node(op, [x, weight, offset, *more], offset_group=offsets, kernel_shape=kernel)


@draws("AveragePool", "LpPool", "MaxPool")
def pool(g: Drawing, op: str) -> None:
    x = image(g, g.dtype(op))
    attrs = window(g, g.of(x).shape[2:])
    if not g.has(op, "dilations"):
        attrs.pop("dilations")
    if g.has(op, "ceil_mode") and "auto_pad" not in attrs:
        attrs["ceil_mode"] = g.any([None, None, 1])
    outputs = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = g.any([None, 0, 1])
    elif op == "LpPool":
        attrs["p"] = g.any([None, 1, 2, 3])
    elif g.chance(0.25) and len(attrs["kernel_shape"]) < 3:
        outputs, attrs["storage_order"] = 2, g.any([None, 0, 1])
    g.node(op, [x], outputs, **attrs)


@draws("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(g: Drawing, op: str) -> None:
    g.node(op, [image(g, g.dtype(op))], p=g.any([None, 1, 3]) if op == "GlobalLpPool" else None)


@draws("MaxUnpool")
def max_unpool(g: Drawing, op: str) -> None:
    x = image(g, FLOAT32, 2)
    if 0 in g.of(x).shape or min(g.of(x).shape[2:]) < 4:
        raise Unavailable("too small to pool")
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, where = g.node("MaxPool", [x], 2, **attrs)
    g.node(op, [y, where], **attrs)


@draws("Gemm")
def gemm(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    a = g.value(dtype, (2,))
    ta, tb, n = g.int(0, 1), g.int(0, 1), g.any([1, 2, 3, 5, 8, 17])
    m, k = g.of(a).shape[::-1] if ta else g.of(a).shape
    b = g.given((n, k) if tb else (k, n), dtype, 0.8)
    c = [g.given(g.any([(n,), (m, n), (1, n), (m, 1), (1,), ()]), dtype, 0.8)]
    numbers = {v: g.any([0.5, 2.0]) for v in ("alpha", "beta") if g.chance(0.3)}
    g.node(op, [a, b, *c[: g.int(0 if g.opset >= 11 else 1, 1)]], transA=ta or None,
           transB=tb or None, **numbers)  # fmt: skip


@draws("MatMul")
def matmul(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    a = g.value(dtype, (1, 2, 2, 3, 3, 4))
    shape = g.of(a).shape
    k, n = shape[-1], g.any([1, 2, 3, 5, 8, 17])
    batch = [d if g.chance(0.7) else 1 for d in shape[:-2]]
    b = g.any([(k, n), (k, n), (k,), (*batch, k, n)])
    if len(shape) == 1 and g.chance():
        b = (g.int(1, 3), k, n)
    g.node(op, [a, g.given(b, dtype, 0.6)])


@draws("Einsum")
def einsum(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    size = {k: g.int(1, 4) for k in "abcde"}
    equation = g.any([
        "ab,bc->ac", "abc,abd->acd", "ab,ab->a", "abc->bca", "abc->b", "aab->ab", "ab,b", "a,b->ab",
        "abc,cd->abd", "abcd,bd->ac", "...a,ab->...b", "ab,bc,cd->ad", "ii->i", "ab->",
    ])  # fmt: skip
    size["i"] = g.int(1, 4)
    given = []
    for term in equation.partition("->")[0].split(","):
        inner = [size[k] for k in term.replace("...", "")]
        given.append(g.given((*((2, 3) if "..." in term else ()), *inner), dtype))
    g.node(op, given, equation=equation)


@draws("RNN", "GRU", "LSTM")
def recurrent(g: Drawing, op: str) -> None:
    dtype = FLOAT32
    steps, batch, inner, hidden = g.int(1, 5), g.int(1, 3), g.int(1, 4), g.int(1, 3)
    direction = g.any([None, "forward", "reverse", "bidirectional"])
    ways, gates = 2 if direction == "bidirectional" else 1, {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    x = g.given((steps, batch, inner), dtype, 0)

    def weight(*shape: int) -> str:
        return g.given(shape, dtype, 0.9, "normal")

    operands = [x, weight(ways, gates * hidden, inner), weight(ways, gates * hidden, hidden)]
    operands.append(weight(ways, 2 * gates * hidden) if g.chance() else "")
    lengths = g.rng.integers(1, steps + 1, batch).astype(np.int32)
    operands.append(g.stored(lengths) if g.chance(0.3) else "")
    operands += [weight(ways, batch, hidden) if g.chance(0.4) else ""
                 for _ in range(2 if op == "LSTM" else 1)]  # fmt: skip
    if op == "LSTM" and g.chance(0.2):
        operands.append(weight(ways, 3 * hidden))
    while operands[-1] == "":
        operands.pop()
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = g.any([None, 0, 1])
    if g.chance(0.2):
        attrs["clip"] = 1.5
    if g.chance(0.3):
        many = {"RNN": 1, "GRU": 2, "LSTM": 3}[op] * ways
        some = ["Tanh", "Sigmoid", "Relu", "Softsign", "HardSigmoid"]
        attrs["activations"] = [g.any(some) for _ in range(many)]
    g.node(op, operands, 3 if op == "LSTM" else 2, **attrs)


@draws("Resize", "Upsample")
def resize(g: Drawing, op: str) -> None:
    x = image(g, g.dtype(op), g.any([1, 2, 2]))
    shape = g.of(x).shape
    if 0 in shape:
        raise Unavailable("nothing to resize")
    mode = g.any(["nearest", "linear", "cubic"] if op == "Resize" else ["nearest", "linear"])
    scales = [1.0, 1.0, *(g.any([0.5, 1.0, 1.5, 2.0, 3.0, 0.7]) for _ in shape[2:])]
    if mode == "cubic" and len(shape) != 4:
        mode = "linear"
    if op == "Upsample":
        scales = [max(1.0, s) for s in scales]
    scales_at = g.stored(np.array(scales, np.float32))
    if g.opset < 11:
        g.node(op, [x, scales_at], mode="nearest" if mode == "cubic" else mode)
        return
    attrs: dict[str, Any] = {"mode": mode}
    ways = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    attrs["coordinate_transformation_mode"] = g.any([None, *ways])
    if mode == "nearest":
        ways = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
        attrs["nearest_mode"] = g.any([None, *ways])
    if mode == "cubic":
        attrs["cubic_coeff_a"] = g.any([None, -0.5])
        attrs["exclude_outside"] = g.any([None, 0, 1])
    if g.opset >= 18 and mode != "nearest":
        attrs["antialias"] = g.any([None, 0, 1])
    roi = "" if g.opset >= 13 else g.stored(np.zeros(0, np.float32))
    if g.chance(0.4):
        sizes = [*shape[:2], *(g.int(1, 2 * d) for d in shape[2:])]
        none = "" if g.opset >= 13 else g.stored(np.zeros(0, np.float32))
        g.node(op, [x, roi, none, g.numbers(sizes)], **attrs)
    else:
        g.node(op, [x, roi, scales_at], **attrs)


@draws("GridSample")
def grid_sample(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = image(g, dtype, 2)
    h, w = g.int(1, 4), g.int(1, 4)
    grid = g.rng.uniform(-1.3, 1.3, (g.of(x).shape[0], h, w, 2)).astype(dtype)
    modes = ["nearest", "linear", "cubic"] if g.opset >= 20 else ["nearest", "bilinear", "bicubic"]
    g.node(op, [x, g.input(grid)], mode=g.any([None, *modes]), align_corners=g.any([None, 0, 1]),
           padding_mode=g.any([None, "zeros", "border", "reflection"]))  # fmt: skip


@draws("AffineGrid")
def affine_grid(g: Drawing, op: str) -> None:
    dtype, flat = g.dtype(op), g.chance(0.7)
    n, sizes = g.int(1, 2), [g.int(2, 4) for _ in range(2 if flat else 3)]
    theta = g.input(g.rng.normal(0, 1, (n, len(sizes), len(sizes) + 1)).astype(dtype))
    g.node(op, [theta, g.numbers([n, 2, *sizes])], align_corners=g.any([None, 0, 1]))


@draws("RoiAlign")
def roi_align(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    x = image(g, dtype, 2)
    n, many = g.of(x).shape[0], g.int(1, 3)
    if n == 0:
        raise Unavailable("no image")
    corner = g.rng.uniform(-1, 4, (many, 2))
    regions = np.concatenate([corner, corner + g.rng.uniform(0.2, 5, (many, 2))], 1)
    half = g.any([None, "half_pixel", "output_half_pixel"]) if g.opset >= 16 else None
    g.node(op, [x, g.input(regions.astype(dtype)), g.input(g.rng.integers(0, n, many))],
           mode=g.any([None, "avg", "max"]), output_height=g.int(1, 3), output_width=g.int(1, 3),
           sampling_ratio=g.any([1, 2]), spatial_scale=g.any([1.0, 0.7]),
           coordinate_transformation_mode=half)  # fmt: skip


@draws("Col2Im")
def col2im(g: Drawing, op: str) -> None:
    dtype, kernel = g.dtype(op), [g.int(1, 3), g.int(1, 3)]
    strides, sizes = [g.int(1, 2), g.int(1, 2)], [g.int(3, 6), g.int(3, 6)]
    blocks = [(s - k) // t + 1 for s, k, t in zip(sizes, kernel, strides, strict=True)]
    x = g.given((g.int(1, 2), g.int(1, 3) * kernel[0] * kernel[1], blocks[0] * blocks[1]), dtype, 0)
    g.node(op, [x, g.numbers(sizes), g.numbers(kernel)], strides=strides)


@draws("Attention")
def attention(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    n, heads, q, k, inner = g.int(1, 2), g.int(1, 2), g.int(1, 4), g.int(1, 4), g.int(1, 3)
    few = g.any([h for h in (1, heads) if heads % h == 0])
    rows = [g.given((n, h, s, inner), dtype, 0) for h, s in ((heads, q), (few, k), (few, k))]
    mask = [g.given(g.any([(q, k), (n, heads, q, k)]), g.any([dtype, np.dtype(bool)]), 0.5)]
    g.node(op, [*rows, *mask[: g.int(0, 1)]], is_causal=g.any([None, 0, 1]),
           scale=g.any([None, 0.5]), softcap=g.any([None, None, 2.0]))  # fmt: skip


@draws("RotaryEmbedding")
def rotary_embedding(g: Drawing, op: str) -> None:
    dtype = g.dtype(op)
    n, heads, steps, inner = g.int(1, 2), g.int(1, 3), g.int(1, 4), 2 * g.int(1, 3)
    x = g.given((n, heads, steps, inner), dtype, 0)
    tables = [g.given((6, inner // 2), dtype, 0.9) for _ in range(2)]
    at = g.input(g.rng.integers(0, 6, (n, steps)))
    g.node(op, [x, *tables, at], interleaved=g.any([None, 0, 1]))


@draws("Det")
def determinant(g: Drawing, op: str) -> None:
    dtype, size = g.dtype(op), g.int(1, 4)
    g.node(op, [g.given((*g.shape(g.int(0, 2)), size, size), dtype, 0)])
