"""Where arrays of constants lie."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.tensor.packed_arrays import ALIGN, LARGE_PAGE, ROOM, Together, aligned_empty

SIZES = st.one_of(
    st.integers(0, 300), st.integers(0, LARGE_PAGE), st.integers(ROOM // 2 - 2, ROOM // 2 + 2)
)


@given(st.lists(st.tuples(SIZES, st.sampled_from(["uint8", "float32", "float64"])), max_size=12))
def test_arrays_are_aligned_and_each_has_its_own_bytes(wanted: list[tuple[int, str]]) -> None:
    together = Together()
    made = [together.empty((size // 8, 2), np.dtype(kind)) for size, kind in wanted]
    for k, (a, (size, kind)) in enumerate(zip(made, wanted, strict=True)):
        assert a.shape == (size // 8, 2)
        assert a.dtype == kind
        assert a.flags["C_CONTIGUOUS"]
        assert a.ctypes.data % ALIGN == 0 or not a.size
        a[...] = k + 1
    for k, a in enumerate(made):
        assert (a == k + 1).all()


def test_neighbours_share_large_pages() -> None:
    together = Together()
    first, second = (together.empty((1000,), np.dtype("float32")) for _ in range(2))
    assert second.ctypes.data - first.ctypes.data == -(-first.nbytes // ALIGN) * ALIGN
    assert first.ctypes.data % LARGE_PAGE == 0
    assert aligned_empty((LARGE_PAGE,), np.dtype("uint8")).ctypes.data % LARGE_PAGE == 0


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no large pages on this system")
@pytest.mark.parametrize("size", [LARGE_PAGE // 2, LARGE_PAGE, 3 * LARGE_PAGE // 2 + 5, ROOM])
def test_large_arrays_have_pages_that_nobody_has_written(size: int) -> None:
    """What an allocator had before may lie in small pages for good."""
    for _ in range(4):
        a = aligned_empty((size,), np.dtype("uint8"))
        assert a.ctypes.data % LARGE_PAGE == 0
        assert not a.any()
        a[...] = 255
        del a


def test_sizes_beyond_all_are_no_memory() -> None:
    for size in (1 << 50, 1 << 62):
        with pytest.raises((MemoryError, ValueError)):
            aligned_empty((size,), np.dtype("uint8"))
