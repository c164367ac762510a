"""What least squares needs of a layer's inputs, gathered batch by batch.

Every result of a layer is a product of its weights with a column of inputs: for dense the data's
last axis, for a convolution the data under its kernel (im2col). Only sums of products of columns
are kept, whose size is that of the weights and not of the data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.errors import ConfigError
from compiler.ir.expr import Binding, Call, Constant
from compiler.types.dtypes import Array
from quantize.plan.call_facts import contraction_of

COLUMNS = 4096
"""Columns taken from a batch at most, chosen at random."""


def grouped(layer: Binding, weight: Array) -> Array:
    """The weights of a layer, or anything of their shape, as [G, O, K]: for each of G groups, the
    inputs K of each of its outputs O.

    Raises:
        ConfigError: the operator's weights are not rows of outputs.
    """
    assert isinstance(layer.value, Call)
    op, axes = layer.value.op, contraction_of(layer.value)
    if axes is None or not axes.by_rows:
        raise ConfigError(
            f"the weights of {layer.var.name!r} ({op}) are rounded to nearest only: set "
            f"weight_rounding='nearest' in overrides of {layer.var.name!r}"
        )
    groups = getattr(layer.value.attrs, "groups", 1)
    return weight.reshape(groups, len(weight) // groups, -1)


def moments(
    layer: Binding, reference: Sequence[Array], quantized: Sequence[Array], seed: int
) -> tuple[Array, Array, int]:
    """Means over columns x of `reference` and x' of `quantized`: E[x' x'^T] and E[x x'^T].

    Args:
        layer: a dense or a convolution.
        reference: its inputs in the float network, batch by batch.
        quantized: the same in the quantized one.
        seed: decides which columns are taken.

    Returns:
        Two float64 arrays [G, K, K], and over how many columns they are means.
    """
    rng = np.random.default_rng(seed)
    count = 0
    sums: list[Array] = []
    for real, rounded in zip(reference, quantized, strict=True):
        take = _Columns(layer, rounded.shape, rng)
        x, y = take(real), take(rounded)
        both = [_products(y, y), _products(x, y)]
        sums = [a + b for a, b in zip(sums, both, strict=True)] if sums else both
        count += x.shape[1]
    return sums[0] / count, sums[1] / count, count


def _products(a: Array, b: Array) -> Array:
    """Sums of products of columns: [G, P, K] x [G, P, K] -> float64 [G, K, K]."""
    return (a.transpose(0, 2, 1) @ b).astype(np.float64)


class _Columns:
    """A choice of a layer's columns, the same for every data of one shape."""

    def __init__(self, layer: Binding, shape: tuple[int, ...], rng: np.random.Generator):
        assert isinstance(layer.value, Call)
        weight = layer.value.args[1]
        assert isinstance(weight, Constant)
        self.call, self.kernel = layer.value, weight.data.shape[2:]
        self.groups = getattr(self.call.attrs, "groups", 1)
        self.sizes = self._sizes(shape)
        total = int(np.prod(self.sizes))
        taken = np.arange(total)
        if total > COLUMNS:
            taken = np.sort(rng.choice(total, COLUMNS, replace=False))
        self.places = np.unravel_index(taken, self.sizes)

    def _sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Over what the columns run: images and windows, or all axes of dense but the last."""
        if not self.kernel:
            return shape[:-1]
        a, rank = self.call.attrs, len(self.kernel)
        padding = _each(a.padding, 2 * rank)
        rows = zip(
            shape[2:], self.kernel, _each(a.strides, rank), _each(a.dilation, rank),
            padding[:rank], padding[rank:], strict=True,
        )  # fmt: skip
        return (shape[0], *((n + p + q - (k - 1) * d - 1) // s + 1 for n, k, s, d, p, q in rows))

    def __call__(self, data: Array) -> Array:
        """The columns [G, P, K] of some data, as float32."""
        if not self.kernel:
            columns: Array = data[self.places].astype(np.float32)
            return columns[None]
        a, rank = self.call.attrs, len(self.kernel)
        padding = _each(a.padding, 2 * rank)
        around = [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)]
        padded = np.pad(data, around)
        image, *windows = self.places
        taps = np.meshgrid(*(np.arange(k) for k in self.kernel), indexing="ij")
        places = [
            (y * s)[:, None] + (t * d).reshape(1, -1)
            for y, t, s, d in zip(
                windows, taps, _each(a.strides, rank), _each(a.dilation, rank), strict=True
            )
        ]
        # [P, taps, C] -> [G, P, C / G * taps], as weights are laid out
        found = np.moveaxis(padded, 1, -1)[(image[:, None], *places)].astype(np.float32)
        split = found.reshape(*found.shape[:2], self.groups, -1)
        order = split.transpose(2, 0, 3, 1)
        out: Array = order.reshape(self.groups, len(found), -1)
        return out


def _each(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)
