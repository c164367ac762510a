"""Means of integers over more elements than their dtype has numbers for: the sum wraps, as integers
do, and is divided by how many there are, interpreted, as a loop nest and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_harness import N, check_agreement

from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType

#: Operator -> how many operands it has, and its attributes for a mean over [1, 1, n, columns].
MEANS: dict[str, Any] = {
    "mean": (1, lambda n: {"axis": (2,)}),
    "mean_products": (2, lambda n: {"axis": (2,)}),
    "nn.avg_pool2d": (1, lambda n: {"pool_size": (n, 1)}),
    "nn.avg_pool2d, padded": (
        1,
        lambda n: {"pool_size": (n, 1), "padding": (3, 0, 3, 0), "count_include_pad": True},
    ),
    "nn.global_avg_pool2d": (1, lambda n: {}),
}


def numbers(dtype: str, n: int, columns: int) -> Array:
    """Of any size; and, in the second column, a sum that is the least number."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(n).integers(info.min, info.max, (1, 1, n, columns), endpoint=True)
    if columns > 1:
        x[..., 1] = 0
        x[..., 0, 1] = info.min
    return x.astype(dtype)


def mean_of(x: Array, w: Array | None, axes: tuple[int, ...], n: int) -> Array:
    """As one says it: independent of the operators."""
    whole = x.astype(np.int64) * (1 if w is None else w.astype(np.int64))
    total = whole.sum(axes, keepdims=True).astype(x.dtype).astype(np.int64)
    return (np.sign(total) * (np.abs(total) // n)).astype(x.dtype)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    ("dtype", "n"),
    [("int8", 127), ("int8", 128), ("int8", 300), ("uint8", 256)],
)
@pytest.mark.parametrize("case", MEANS)
def test_means_over_many_integers(case: str, dtype: str, n: int, symbolic: bool) -> None:
    name, (operands, attributes) = case.partition(",")[0], MEANS[case]
    columns = 1 if "global" in name else 3
    args = [numbers(dtype, n, columns)] * operands
    if symbolic and name == "nn.avg_pool2d":
        args = [np.concatenate([a, a], 1) for a in args]
    shape = (1, N, *args[0].shape[2:]) if name == "nn.avg_pool2d" else (1, 1, N, columns)
    dims = {N: args[0].shape[1] if name == "nn.avg_pool2d" else n}
    kind = TensorType(shape if symbolic else args[0].shape, DType.parse(dtype))
    (got,) = check_agreement(name, attributes(n), [kind] * operands, args, dims)
    if "padded" not in case:
        want = mean_of(args[0], args[0] if operands == 2 else None, (2,), n)
        np.testing.assert_array_equal(got.ravel(), want.ravel())
