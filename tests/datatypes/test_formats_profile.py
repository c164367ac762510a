"""Precision by binade, counted by hand and from the values themselves."""

from __future__ import annotations

import numpy as np
import pytest

from datatypes.formats import decode, get
from datatypes.formats.profile import precision_profile


@pytest.mark.parametrize(
    "name", ["posit8_es0", "posit16_es2", "float8_e4m3fn", "nf4", "lns8_3", "fixed8_4", "takum8"]
)
def test_values_are_counted(name: str) -> None:
    fmt = get(name)
    values = decode(fmt, np.arange(fmt.mask + 1))
    values = values[np.isfinite(values) & (values > 0)]
    exponents = np.frexp(values)[1] - 1
    profile = precision_profile(fmt)
    assert sum(binade.values for binade in profile) == len(values)
    assert all(b.values == (exponents == b.exponent).sum() for b in profile)


def test_wide_formats_and_bits() -> None:
    bits = {b.exponent: b.bits for b in precision_profile(get("posit32_es2"))}
    assert bits[0] == 28
    assert bits[119] == 0
    assert {b.bits for b in precision_profile(get("bfloat16")) if b.exponent >= -126} == {8}
