"""image.resize2d: nearest-neighbour scaling of NCHW data (ONNX Resize, mode "nearest")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.arithmetic.arrays import Arithmetic
from compiler.errors import TypeInferenceError
from compiler.op.common import require, require_rank, type_of
from compiler.op.facts import Moves
from compiler.op.gradients import positions as rules
from compiler.op.opdef import Fusion, OpDef, Quantized, register_op
from compiler.symbolic import Dim, Index, Var, dim
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Expr, Gather, index_value
from compiler.types.dtypes import INT64, Array
from compiler.types.tensor_types import TensorType

_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class Resize2dAttrs:
    """Attributes of image.resize2d; give `size` or `scales`.

    Attributes:
        size: height and width of the result.
        scales: result / data, for height and width; the result's size is rounded down.
        coordinate_transformation_mode, nearest_mode: as in the ONNX operator Resize.
    """

    size: tuple[Dim, ...] = ()
    scales: tuple[float, ...] = ()
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"


def index_map(size: int, count: int, scale: float, coordinates: str, rounding: str) -> Array:
    """Position in `size` elements that each of `count` result elements copies, int64 [count].

    Computed in float32, as onnxruntime does, so that ties fall the same way.
    """
    i, s, half = np.arange(count, dtype=np.float32), np.float32(scale), np.float32(0.5)
    if coordinates == "asymmetric":
        at = i / s
    elif coordinates == "align_corners":
        at = i * np.float32(size - 1) / np.float32(count - 1) if count > 1 else i * 0
    elif coordinates == "pytorch_half_pixel" and count == 1:
        at = i * 0
    else:
        at = (i + half) / s - half
    nearest: Array = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - half),
        "round_prefer_ceil": np.floor(at + half),
    }[rounding]
    return np.asarray(np.clip(nearest.astype(np.int64), 0, size - 1))


def _scaled(n: Dim, scale: float) -> Dim:
    if isinstance(n, int):
        return int(np.float32(n) * np.float32(scale))
    if scale != int(scale):
        raise TypeInferenceError(
            f"image.resize2d: the dimension {n} must be known for a scale of {scale}"
        )
    return dim(n * int(scale))


def _infer(a: Resize2dAttrs, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    require_rank("image.resize2d", "data", x, 4)
    for what, value, known in (
        ("coordinate_transformation_mode", a.coordinate_transformation_mode, _COORDINATES),
        ("nearest_mode", a.nearest_mode, _ROUNDINGS),
    ):
        require(value in known, f"image.resize2d: {what} must be one of {known}, not {value!r}")
    require(
        sorted((len(a.size), len(a.scales))) == [0, 2],
        f"image.resize2d: give size or scales for two axes, not size={a.size}, scales={a.scales}",
    )
    new = a.size or [_scaled(n, s) for n, s in zip(x.shape[2:], a.scales, strict=True)]
    require(
        all(not isinstance(n, int) or n >= 1 for n in new),
        f"image.resize2d: a result of {tuple(new)} is empty",
    )
    return TensorType((*x.shape[:2], *map(dim, new)), x.dtype)


def _map(a: Resize2dAttrs, axis: int, old: int, new: int) -> Array:
    scale = a.scales[axis] if a.scales else float(np.float32(new) / np.float32(old))
    return index_map(old, new, scale, a.coordinate_transformation_mode, a.nearest_mode)


def _reference(_: Arithmetic, a: Resize2dAttrs, x: Array) -> Array:
    maps = []
    for axis, old in enumerate(x.shape[2:]):
        new = a.size[axis] if a.size else _scaled(old, a.scales[axis])
        maps.append(_map(a, axis, old, Index.of(new).const))
    return x[:, :, maps[0][:, None], maps[1]]


def _position(a: Resize2dAttrs, axis: int, old: Dim, new: Dim) -> Index | Buffer:
    """Position to read as an expression of the variable 0 <= _I < new, or as a table of positions.

    Raises:
        TypeInferenceError: a table would be needed, but its length is symbolic.
    """
    if isinstance(old, int) and isinstance(new, int):
        table = _map(a, axis, old, new)
    else:
        # A whole factor maps every size alike, so a small one shows whether the map is a division.
        factor = int(a.scales[axis]) if a.scales else (Index.of(new) // old).constant() or 0
        if old * factor != new:
            raise TypeInferenceError(f"image.resize2d: {old} to {new} must be known sizes")
        old, new = 8, 8 * factor
        table = _map(a, axis, old, new)
        if not np.array_equal(table, np.arange(new) // factor):
            raise TypeInferenceError(
                "image.resize2d: these modes need known sizes; give the model fixed shapes"
            )
    steps = np.arange(new)
    for k in {max(1, new // old), max(1, old // new)}:
        if np.array_equal(table, steps // k):
            return _I // k
        if np.array_equal(table, steps * k):
            return _I * k
    return Buffer(f"positions{axis}", (Index.of(new),), INT64, scope="constant", data=table)


_I = Var("i")


def _lower(b: PrimBuilder, a: Resize2dAttrs, x: Buffer) -> Buffer:
    t = _infer(a, [type_of(x)])
    old = type_of(x).shape[2:]
    across = [_position(a, k, old[k], t.shape[2 + k]) for k in (0, 1)]

    def value(n: Index, c: Index, *at: Index) -> Expr:
        if not any(isinstance(p, Buffer) for p in across):
            return x[(n, c, *(_at(p, i) for p, i in zip(across, at, strict=True)))]
        row, column = (_value(p, i) for p, i in zip(across, at, strict=True))
        base = index_value(x.flat((n, c, Index(), Index())))
        return Gather(x, base + row * index_value(x.shape[3]) + column)

    return b.compute("resize", t.shape, x.dtype, value)


def _at(position: Index | Buffer, i: Index) -> Index:
    assert isinstance(position, Index)
    return position.subst({_I: i})


def _value(position: Index | Buffer, i: Index) -> Expr:
    return position[i] if isinstance(position, Buffer) else index_value(_at(position, i))


register_op(
    OpDef(
        "image.resize2d",
        _infer,
        _reference,
        _lower,
        Resize2dAttrs,
        fusion=Fusion.INJECTIVE,
        quantized=Quantized.SAME,
        moves=Moves.SELECT,
        gradient=rules.selected(_map),
        doc="nearest-neighbour scaling of NCHW data",
    )
)
