"""Constants are laid out as their index map says, whichever way they are copied."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compiler.symbolic import Index, Var
from compiler.tensor.packed_arrays import ALIGN, IndexMap, aligned_copy, pack_array


def element_by_element(order: IndexMap, source: np.ndarray) -> np.ndarray:
    out = np.zeros(order.shape, source.dtype)
    for at in product(*map(range, order.shape)):
        env = dict(zip(order.vars, at, strict=True))
        i = tuple(int(x.value(env)) for x in order.idx)
        if all(0 <= k < n for k, n in zip(i, source.shape, strict=True)):
            out[at] = source[i]
    return out


@st.composite
def linear_maps(draw: st.DrawFn) -> tuple[IndexMap, np.ndarray]:
    """Linear forms with factors of both signs that may leave the source on every side, over a
    source that need not be contiguous."""
    extents = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    vs = tuple(Var(f"v{k}", n) for k, n in enumerate(extents))
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    factors = st.lists(st.integers(-3, 4), min_size=len(vs), max_size=len(vs))
    idx = []
    for _ in shape:
        at = Index.of(draw(st.integers(-4, 6)))
        for v, factor in zip(vs, draw(factors), strict=True):
            at = at + v * factor
        idx.append(at)
    source = np.arange(1, np.prod(shape) + 1, dtype=draw(st.sampled_from([np.int8, np.float32])))
    source = source.reshape(shape)
    if draw(st.booleans()):
        source = source.T.copy().T[::-1]
    return IndexMap(vs, tuple(idx)), source


@given(linear_maps())
def test_linear_index_maps(case: tuple[IndexMap, np.ndarray]) -> None:
    order, source = case
    packed = pack_array(order, source)
    np.testing.assert_array_equal(packed, element_by_element(order, source))
    assert packed.ctypes.data % ALIGN == 0
    assert packed.flags["C_CONTIGUOUS"]
    assert packed.dtype == source.dtype


@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 9), st.integers(-3, 3))
def test_index_maps_with_quotients_and_remainders(n: int, k: int, width: int, shift: int) -> None:
    i, j = Var("i", n * k), Var("j", width)
    order = IndexMap((i, j), (i // k + shift, (i + j) % k))
    source = np.arange(1, 6 * 4 + 1, dtype=np.int16).reshape(6, 4)
    np.testing.assert_array_equal(pack_array(order, source), element_by_element(order, source))


def test_an_aligned_copy_is_equal_aligned_and_apart() -> None:
    source = np.arange(12, dtype=np.int32).reshape(3, 4).T
    copy = aligned_copy(source)
    np.testing.assert_array_equal(copy, source)
    assert copy.ctypes.data % ALIGN == 0
    assert not np.shares_memory(copy, source)
