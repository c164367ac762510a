"""Sorting and suppression: one kernel each, whose work grows as it has to, of any dtype, with ties
and NaN; its loops read back, and run under other targets."""

from __future__ import annotations

import numpy as np
import pytest
from op_harness import N, check_agreement, lowered
from toy_dtype import TOY

from compiler.arithmetic.arrays import arithmetic
from compiler.op.library import get_op
from compiler.symbolic import Index
from compiler.target.intrinsics.emission import program_text
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import PrimFunc, When, innermost_work, walk_stmts
from compiler.types.dtypes import FLOAT32, FLOAT64, INT64, Array, DType
from compiler.types.tensor_types import TensorType

DTYPES = ("float32", "int64", "float16")


def some_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Few different numbers, so that many are equal, and what has no order."""
    x = rng.integers(0, 6, shape).astype(dtype)
    if dtype.startswith("float"):
        x[rng.random(shape) < 0.2] = np.nan
        x[rng.random(shape) < 0.1] = -0.0
    return x


@pytest.mark.sampled(8)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_in_order_are_those_of_a_stable_sort(dtype: str, largest: bool) -> None:
    rng = np.random.default_rng(largest)
    types = [TensorType((2, N, 2), DType.parse(dtype))]
    for n, k in ((1, 1), (2, N), (5, N), (8, N), (19, N)):
        x = some_values(rng, (2, n, 2), dtype)
        attrs = {"k": k, "axis": 1, "largest": largest}
        check_agreement("topk", attrs, types, [x], {N: n})


def boxes_of(rng: np.random.Generator, images: int, classes: int, n: int) -> tuple[Array, Array]:
    """Corners of boxes on a grid, some of them the same or empty; few different scores."""
    low = rng.integers(0, 6, (images, 4, n)).astype(np.float32)
    corners = low.copy()
    corners[:, [1, 3]] = low[:, [0, 2]] + rng.integers(0, 5, (images, 2, n))
    scores = rng.integers(0, 9, (images, classes, n)) / np.float32(8)
    scores[rng.random(scores.shape) < 0.1] = np.nan
    return corners, scores.astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [FLOAT32, TOY], ids=str)
def test_suppression_leaves_what_overlaps_nothing_better(dtype: DType) -> None:
    rng, found = np.random.default_rng(1), 0
    ar = arithmetic(dtype)

    def held(x: Array | float) -> Array:
        return ar.cast(np.asarray(x, np.float64), FLOAT64)

    shapes = ((2, 4, N), (2, 3, N), (), (), ())
    dtypes = (dtype, dtype, INT64, dtype, dtype)
    types = [TensorType(s, t) for s, t in zip(shapes, dtypes, strict=True)]
    for n in (1, 7, 17):
        corners, scores = boxes_of(rng, 2, 3, n)
        for most, limit, least in ((2**62, 0.25, 0.125), (2, 0.5, -np.inf)):
            args = [held(corners), held(scores), np.array(most), held(limit), held(least)]
            (chosen,) = check_agreement("non_max_suppression", {}, types, args, {N: n})
            assert ((chosen >= 0).sum(2) <= most).all()
            found += int((chosen >= 0).sum())
    assert found > 60


def programs() -> dict[str, PrimFunc]:
    """Loops over a symbolic number of elements."""
    x, scores = TensorType((2, N, 3), FLOAT32), TensorType((1, 2, N), FLOAT32)
    one, many = TensorType((), FLOAT32), TensorType((1, 4, N), FLOAT32)
    topk, nms = get_op("topk"), get_op("non_max_suppression")
    operands = [many, scores, TensorType((), INT64), one, one]
    return {
        "topk": lowered(topk, topk.make_attrs(k=N, axis=1), [x]),
        "suppression": lowered(nms, nms.make_attrs(), operands),
    }


def test_loops_with_conditions_read_back() -> None:
    for name, f in programs().items():
        assert any(isinstance(s, When) for s, _, _ in walk_stmts(f.body)), name
        assert program_text(parse_primfunc(str(f))) == program_text(f), name


def test_sorting_does_not_compare_every_element_with_every_other() -> None:
    f = programs()["topk"]
    steps = [
        sum(Index.of(innermost_work(s)).value({N: n}) for s in f.body) for n in (10_000, 20_000)
    ]
    assert steps[1] < 2.1 * steps[0]
    assert steps[0] < 10_000 * 2 * 3 * 500
