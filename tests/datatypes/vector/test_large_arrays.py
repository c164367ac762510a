"""The compiled array codec against the one it stands in for."""

from __future__ import annotations

import numpy as np
import pytest
from test_vector_operations import NAMES, OUTSIDE, WIDE, codes_of

import datatypes
from compiler.errors import InputError
from datatypes import formats
from datatypes.formats import get
from datatypes.vector import large_arrays


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", [*NAMES, *WIDE])
def test_encoding_large_arrays(name: str) -> None:
    fmt, rng = get(name), np.random.default_rng(4)
    values = formats.decode(fmt, codes_of(fmt))
    ends = np.unique(values[np.isfinite(values)])
    middle = ends[1:] / 2 + ends[:-1] / 2
    normal = rng.standard_normal(large_arrays.SMALLEST) * 2.0 ** rng.uniform(-40, 40)
    near = [middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    numbers = np.concatenate([normal, values, *near, OUTSIDE])
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
    for array in (numbers, single, numbers[::2].reshape(1, -1)):
        got = datatypes.encode(name, array)
        want = formats.encode(fmt, array)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*NAMES, *WIDE])
def test_decoding_large_arrays(name: str, dtype: type) -> None:
    fmt, rng = get(name), np.random.default_rng(5)
    codes = rng.integers(0, fmt.mask + 1, (2, large_arrays.SMALLEST)).astype(fmt.storage)
    few = codes_of(fmt)
    codes[0, : few.size] = few[: codes.shape[1]]
    got, want = datatypes.decode(name, codes, dtype), formats.decode(fmt, codes, dtype)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_codes_beyond_the_width_are_refused() -> None:
    with pytest.raises(InputError, match="codes of posit10_es1 must lie within"):
        datatypes.decode("posit10_es1", np.full(large_arrays.SMALLEST, 1024, np.uint16))
