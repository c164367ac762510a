"""Converters of Resize and Upsample: images by nearest neighbours, all else axis by axis."""

from __future__ import annotations

import numpy as np

from compiler.frontend.node import Node, converts
from compiler.frontend.resizing import Axis, resized
from compiler.frontend.values import Imported
from compiler.ir.types import TensorType
from compiler.symbolic import dim

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


def _general(n: Node, t: TensorType) -> Imported:
    """Resize of known sizes."""
    n.expect("mode", "nearest", "nearest", "linear", "cubic")
    n.expect("coordinate_transformation_mode", "half_pixel", "half_pixel", "asymmetric",
             "align_corners", "pytorch_half_pixel", "tf_crop_and_resize",
             "half_pixel_symmetric")  # fmt: skip
    n.expect("nearest_mode", "round_prefer_floor",
             "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")  # fmt: skip
    policy = n.expect("keep_aspect_ratio_policy", "stretch", "stretch", "not_larger",
                      "not_smaller")  # fmt: skip
    on = [n.front(a, t.rank) for a in n.attr("axes", tuple(range(t.rank)))]
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
        if not isinstance(size, int):
            raise n.unsupported(f"the symbolic size {size}; use shapes=...")
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


@converts("Resize", "Upsample")
def resize(n: Node) -> Imported:
    """Nearest neighbour on the last two axes of an image, or anything else axis by axis."""
    t = n.type(0)
    if n.op == "Resize" and n.opset >= 11 and not _plain(n, t):
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
