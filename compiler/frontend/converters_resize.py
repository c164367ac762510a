"""Converters of Resize and Upsample: images by nearest neighbours, all else axis by axis; what is
symbolic or found at run time by `compiler.frontend.computed_resizing`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from compiler.frontend.computed_resizing import ComputedAxis, Reals, computed_resize, new_size
from compiler.frontend.node import Node, converts
from compiler.frontend.resizing import Axis, resized
from compiler.frontend.run_time import Integer, found, integers, number
from compiler.frontend.values import Imported, constant_of
from compiler.ir.expr import Atom, Constant
from compiler.symbolic import Index, dim
from compiler.types.dtypes import FLOAT64
from compiler.types.tensor_types import TensorType

_LARGEST_SCALE = 4096.0


def _plain(n: Node, t: TensorType) -> bool:
    """Whether image.resize2d does it."""
    mode = n.attr("coordinate_transformation_mode", "half_pixel")
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    plain = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    return (
        t.rank == 4
        and n.attr("mode", "nearest") == "nearest"
        and mode in plain
        and policy == "stretch"
    )


_OPERANDS = (1, 2, 3)
"""Region, scales, sizes."""


def _general(n: Node, t: TensorType) -> Imported:
    """Resize by any mode."""
    n.expect("mode", "nearest", "nearest", "linear", "cubic")
    n.expect("coordinate_transformation_mode", "half_pixel", "half_pixel", "asymmetric",
             "align_corners", "pytorch_half_pixel", "tf_crop_and_resize",
             "half_pixel_symmetric")  # fmt: skip
    n.expect("nearest_mode", "round_prefer_floor",
             "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")  # fmt: skip
    policy = n.expect("keep_aspect_ratio_policy", "stretch", "stretch", "not_larger",
                      "not_smaller")  # fmt: skip
    on = [n.front(a, t.rank) for a in n.attr("axes", tuple(range(t.rank)))]
    if any(_is_open(n, i) for i in _OPERANDS) or not all(isinstance(t.shape[a], int) for a in on):
        return _computed(n, t, on, policy)
    region = n.known(1, "roi").reshape(-1) if n.has(1) else np.zeros(0)
    crop = n.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if crop and len(region) != 2 * len(on):
        raise n.unsupported(f"a roi of {len(region)} numbers for {len(on)} axes")
    scales = n.known(2, "scales").reshape(-1) if n.has(2) else np.zeros(0)
    sizes = n.known(3, "sizes").reshape(-1) if n.has(3) else np.zeros(0)
    if max(len(scales), len(sizes)) != len(on) or min(len(scales), len(sizes)) != 0:
        raise n.unsupported(f"{len(scales)} scales and {len(sizes)} sizes for {len(on)} axes")
    old = [t.shape[a] for a in on]
    axes: dict[int, Axis] = {}
    for i, (a, size) in enumerate(zip(on, old, strict=True)):
        if len(scales) and scales[i] == 1 and not crop:
            continue
        assert isinstance(size, int)
        roi = (float(region[i]), float(region[len(on) + i])) if crop else (0.0, 1.0)
        if len(scales):
            scale = float(scales[i])
            if not 0 < scale <= _LARGEST_SCALE:
                raise n.unsupported(f"scales={tuple(map(float, scales))}")
            extent = (roi[1] - roi[0]) if crop else 1.0
            count = int(np.floor(size * extent * scale))
        else:
            count, scale = int(sizes[i]), float(sizes[i]) / size
            if policy != "stretch":
                known = [(int(s), d) for s, d in zip(sizes, old, strict=True) if isinstance(d, int)]
                choose = min if policy == "not_larger" else max
                scale = choose(s / d for s, d in known)
                count = int(np.floor(scale * size + 0.5))
        if count < 1:
            raise n.unsupported("an empty result")
        axes[a] = Axis(size, count, scale, roi)
    return resized(n, n.atom(0), axes)


def _is_open(n: Node, i: int) -> bool:
    """Whether input `i` is symbolic, or computed by the program."""
    return n.has(i) and n.constant(i) is None


def _computed(n: Node, t: TensorType, on: Sequence[int], policy: str) -> Imported:
    """Resize of what is symbolic or computed by the program."""
    r = Reals(n)
    crop = n.attr("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    region = _reals(n, 1) if crop else []
    scales, sizes = _reals(n, 2), integers(n, 3) if n.has(3) else []
    if len(region) != (2 * len(on) if crop else 0) or {len(scales), len(sizes)} != {0, len(on)}:
        raise n.unsupported(
            f"{len(scales)} scales, {len(sizes)} sizes and {len(region)} ends of a region for "
            f"{len(on)} axes"
        )
    if sizes:
        ratios = [r.do("divide", r.of(s), r.of(t.shape[a])) for s, a in zip(sizes, on, strict=True)]
        if policy != "stretch":
            one = reduce(partial(r.do, "minimum" if policy == "not_larger" else "maximum"), ratios)
            ratios = [one] * len(on)
    axes: dict[int, ComputedAxis] = {}
    for i, a in enumerate(on):
        size, roi, count = t.shape[a], None, None
        if crop:
            roi = (region[i], region[len(on) + i])
        if scales:
            scale = scales[i]
            if isinstance(scale, Constant) and scale.data == 1 and not crop:
                continue
            extent = r.do("subtract", roi[1], roi[0]) if roi else None
            count = new_size(n, size, scale, extent)
        else:
            scale, wanted = ratios[i], sizes[i]
            if policy != "stretch":
                whole = r.do("add", r.do("multiply", scale, r.of(size)), 0.5)
                count = found(n, r.floor(whole))
            else:
                count = wanted if isinstance(wanted, int | Index) else found(n, wanted)
            if count == size and policy == "stretch" and not crop:
                continue
        axes[a] = ComputedAxis(size, count, scale, roi)
    return computed_resize(n, axes)


def _has_even_steps(n: Node, t: TensorType) -> bool:
    """Whether image.resize2d can do it: by known scales, or to sizes that are known or, of
    symbolic ones, multiples."""
    if any(n.is_computed(i) for i in (2, 3) if n.has(i)):
        return False
    if not n.has(3):
        return True
    on = [n.front(a, 4) for a in n.attr("axes", (0, 1, 2, 3))]
    pairs = [(Index.of(t.shape[a]), s) for a, s in zip(on, integers(n, 3), strict=True)]
    return all(
        old == new or (isinstance(new, int) and not old.terms) or _multiple(old, new)
        for old, new in pairs
    )


def _multiple(old: Index, new: Integer) -> bool:
    """Whether a size is certainly a whole multiple of another."""
    if not isinstance(new, Index) or not old.terms:
        return False
    atom, c = next(iter(old.terms.items()))
    times = new.terms.get(atom, 0) // c
    return times > 0 and old * times == new


def _upsampled(n: Node, t: TensorType, i: int) -> Imported:
    """Nearest neighbours by scales (input `i`) that the program computes, as before opset 11."""
    rules = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    same = replace(n, attrs={**n.attrs, **rules})
    scales = _reals(n, i)
    if len(scales) != t.rank:
        raise n.unsupported(f"{len(scales)} scales for {t}")
    sizes = zip(t.shape, scales, strict=True)
    axes = {k: ComputedAxis(d, new_size(n, d, s, None), s, None) for k, (d, s) in enumerate(sizes)}
    return computed_resize(same, axes)


def _reals(n: Node, i: int) -> list[Atom]:
    """The elements of input `i`, a vector of floats, as scalars of float64."""
    known = n.constant(i) if n.has(i) else np.zeros(0)
    if known is not None:
        return [constant_of(v, FLOAT64) for v in known.reshape(-1)]
    (count,) = n.type(i).static_shape
    x = n.step("cast", n.atom(i), dtype="float64")
    return [n.step("take", x, number(n, k), axis=0) for k in range(count)]


@converts("Resize", "Upsample")
def resize(n: Node) -> Imported:
    """Nearest neighbour on the last two axes of an image, or anything else axis by axis."""
    t = n.type(0)
    if n.op == "Resize" and n.opset >= 11 and not _plain(n, t):
        return _general(n, t)
    if n.op == "Resize" and n.opset >= 11 and not _has_even_steps(n, t):
        return _general(n, t)
    n.rank_of(0, 4)
    n.expect("mode", "nearest", "nearest")
    old = n.op == "Upsample" or n.opset < 11
    coordinates = "asymmetric" if old else n.attr("coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if old else n.attr("nearest_mode", "round_prefer_floor")
    if not old:
        n.expect(
            "coordinate_transformation_mode", "half_pixel",
            "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel",
        )  # fmt: skip
        n.expect("nearest_mode", "round_prefer_floor",
                 "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")  # fmt: skip
        n.expect("keep_aspect_ratio_policy", "stretch", "stretch")
        n.expect("antialias", 0, 0)
    axes = [n.front(a, 4) for a in n.attr("axes", (0, 1, 2, 3))]
    where = 1 if old else 2
    scales: list[float] | None = None
    if n.op == "Upsample" and "scales" in n.attrs:
        scales = list(n.attrs["scales"])
    elif n.has(where) and (n.constant(where) is None or n.known(where, "scales").size):
        if n.constant(where) is None:
            return _upsampled(n, t, where)
        scales = [float(s) for s in n.known(where, "scales")]
    attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    if scales is not None:
        factor = dict(zip(axes, scales, strict=True))
        if factor.get(0, 1.0) != 1 or factor.get(1, 1.0) != 1:
            raise n.unsupported(f"scales={tuple(scales)}: only the last two axes can change")
        pair = (factor.get(2, 1.0), factor.get(3, 1.0))
        if not all(0 < s <= _LARGEST_SCALE for s in pair):
            raise n.unsupported(f"scales={tuple(scales)}")
        return n.call("image.resize2d", n.atom(0), scales=pair, **attrs)
    sizes = dict(zip(axes, n.dims(3, "sizes"), strict=True))
    if any(sizes.get(a, t.shape[a]) != t.shape[a] for a in (0, 1)):
        raise n.unsupported("sizes that change the first two axes")
    target = tuple(dim(sizes.get(a, t.shape[a])) for a in (2, 3))
    return n.call("image.resize2d", n.atom(0), size=target, **attrs)
