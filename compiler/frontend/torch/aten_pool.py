"""Converters of pooling, padding and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.frontend.node import Results
from compiler.frontend.torch.node import TorchNode, aten, whole
from compiler.frontend.values import constant_of
from compiler.ir.expr import Atom, Constant, tensor_type
from compiler.symbolic import dim, product
from compiler.types.dtypes import FLOAT32, INT64


def _batched(n: TorchNode, count: int) -> Atom:
    """The data, with an axis for the batch."""
    x = n.x()
    if tensor_type(x).rank == count + 1:
        return n.step("expand_dims", x, axes=(0,))
    return x


def _axes_of(n: TorchNode) -> int:
    """How many axes of a plane the operator has: the digit of its name."""
    return int(next(c for c in n.op if c.isdigit()))


@aten("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices",
      "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d")  # fmt: skip
def pool(n: TorchNode) -> Results:
    """The largest of, or the mean over, windows."""
    count = _axes_of(n)
    kernel = n.numbers("kernel_size", count)
    strides = n.numbers("stride", count) if n.arg("stride") else kernel
    pads = n.numbers("padding", count)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": (*pads, *pads)}
    attrs["ceil_mode"] = int(bool(n.arg("ceil_mode")))
    x = _batched(n, count)
    if "avg" in n.op:
        if n.arg("divisor_override") is not None:
            raise n.unsupported(f"divisor_override={n.arg('divisor_override')}")
        attrs["count_include_pad"] = int(bool(n.arg("count_include_pad")))
        op = "AveragePool"
    else:
        attrs["dilations"] = n.numbers("dilation", count)
        op = "MaxPool"
    if n.wants(1):
        return _with_positions(n, x, attrs)
    if x is n.x():
        return n.spelled(op, x, **attrs)
    return [n.call("squeeze", n.made(n.spelled_step(op, x, **attrs)), axis=(0,))]


def _with_positions(n: TorchNode, x: Atom, attrs: dict[str, Any]) -> Results:
    """Maxima, and where in its plane (ONNX: in the whole tensor) each lies."""
    if x is not n.x():
        raise n.unsupported("positions of data without a batch")
    y, at = n.spelled_steps("MaxPool", 2, x, **attrs)
    plane = n.made(whole([dim(product(tensor_type(x).shape[2:]))]))
    return [y, n.result(1, "mod", at, plane)]


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
      "_adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
      "adaptive_max_pool3d")  # fmt: skip
def adaptive_pool(n: TorchNode) -> Results:
    """To so many windows, whose ends are rounded outwards: of known sizes; of a single one, of
    any."""
    count = _axes_of(n)
    x = _batched(n, count)
    t = tensor_type(x)
    sizes = t.shape[2:]
    wanted = tuple(sizes[k] if s is None else n.size(s) for k, s in enumerate(n.arg("output_size")))
    mean = "avg" in n.op
    if all(w == 1 for w in wanted):
        y = n.made(n.spelled_step("GlobalAveragePool" if mean else "GlobalMaxPool", x))
    elif wanted == sizes:
        y = x
    else:
        y = x
        for k, (size, w) in enumerate(zip(sizes, wanted, strict=True)):
            if not isinstance(size, int) or not isinstance(w, int):
                raise n.unsupported(f"an output of {w} of the symbolic size {size}")
            y = _adapted(n, y, 2 + k, size, w, "mean" if mean else "max")
    if n.wants(1):
        raise n.unsupported("positions of maxima")
    if tensor_type(n.x()).rank == count + 1:
        y = n.step("squeeze", y, axis=(0,))
    return [y]


def _adapted(n: TorchNode, x: Atom, axis: int, size: int, wanted: int, op: str) -> Atom:
    """Along one axis: window i is from floor(i * size / wanted) up to ceil((i + 1) * size /
    wanted). (Every element of a window of several axes counts as much, so axis by axis is the
    same.)"""
    if size == wanted:
        return x
    shape = tensor_type(x).shape
    if size % wanted == 0:
        apart = (*shape[:axis], wanted, size // wanted, *shape[axis + 1 :])
        return n.step(op, n.step("reshape", x, newshape=apart), axis=(axis + 1,), keepdims=False)
    parts = []
    for i in range(wanted):
        begin, end = i * size // wanted, -(-(i + 1) * size // wanted)
        cut = n.step("strided_slice", x, begin=(begin,), end=(end,), axes=(axis,))
        parts.append(n.step(op, cut, axis=(axis,), keepdims=True))
    return n.step("concatenate", *parts, axis=axis)


@aten("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
      "replication_pad1d", "replication_pad2d", "replication_pad3d")  # fmt: skip
def pad(n: TorchNode) -> Results:
    """Pairs of numbers for axes from the last one on."""
    x = n.x()
    t = tensor_type(x)
    name = "pad" if "pad" in n.args else "padding"
    given = [n.size(p) for p in n.arg(name)]
    axes = [t.rank - 1 - k for k in range(len(given) // 2)]
    mode = {"c": "constant", "refl": "reflect", "repl": "edge"}[
        "c" if "constant" in n.op else "refl" if "reflection" in n.op else "repl"
    ]
    value = constant_of(n.number("value") or 0, t.dtype) if mode == "constant" else None
    pads = whole([*given[0::2], *given[1::2]])
    return n.spelled("Pad", x, pads, value, Constant.of(np.array(axes), INT64), mode=mode)


@aten("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
      "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
      "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")  # fmt: skip
def upsample(n: TorchNode) -> Results:
    """To a size, or by factors, by neighbours, linear or cubic."""
    x = n.x("self" if "self" in n.args else "input")
    t = tensor_type(x)
    if n.op.endswith("_aa"):
        raise n.unsupported("antialias=True")
    attrs: dict[str, Any] = {"axes": tuple(range(2, t.rank))}
    if "nearest" in n.op:
        exact = "exact" in n.op
        attrs |= {
            "mode": "nearest",
            "coordinate_transformation_mode": "half_pixel" if exact else "asymmetric",
            "nearest_mode": "round_prefer_floor" if exact else "floor",
        }
    else:
        attrs["mode"] = "cubic" if "cubic" in n.op else "linear"
        attrs["cubic_coeff_a"] = -0.75
        aligned = bool(n.arg("align_corners"))
        attrs["coordinate_transformation_mode"] = "align_corners" if aligned else "half_pixel"
    return _to_size(n, x, _factors(n), attrs)


def _factors(n: TorchNode) -> list[float] | None:
    """By how much each axis grows, if that was given."""
    if n.arg("scale_factors") is not None:
        return [float(f) for f in n.arg("scale_factors")]
    names = [k for k in ("scales", "scales_d", "scales_h", "scales_w") if k in n.args]
    given = [n.arg(k) for k in names]
    return None if None in given or not given else [float(f) for f in given]


def _to_size(
    n: TorchNode, x: Atom, factors: Sequence[float] | None, attrs: dict[str, Any]
) -> Results:
    """By factors, which say where elements lie, or to a size, whose ratio to that of the data
    does."""
    if factors is not None:
        scales = Constant.of(np.array(factors), FLOAT32)
        return n.spelled("Resize", x, None, scales, None, **attrs)
    return n.spelled("Resize", x, None, None, whole(n.sizes("output_size")), **attrs)


@aten("grid_sampler_2d", "grid_sampler")
def grid_sampler(n: TorchNode) -> Results:
    """Elements at positions between -1 and 1."""
    mode = ("linear", "nearest", "cubic")[n.number("interpolation_mode")]
    padding = ("zeros", "border", "reflection")[n.number("padding_mode")]
    aligned = int(bool(n.arg("align_corners")))
    x, grid = n.x("input"), n.x("grid")
    return n.spelled("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=aligned)
