"""The example of formats from descriptions: their values, and that a network computes in them."""

from __future__ import annotations

import numpy as np
import pytest

import datatypes
from experiments.examples import described_format as example


@pytest.fixture(scope="module")
def names(known_formats: None) -> list[str]:
    return example.define()


def test_every_code_is_the_float_that_the_description_says(names: list[str]) -> None:
    codes = np.arange(256, dtype=np.uint8)
    for name in names:
        e = int(name[5])
        m = 7 - e
        power, fraction = (codes >> m) & ((1 << e) - 1), codes & ((1 << m) - 1)
        bias = 2 ** (e - 1) - 1
        normal = (1 + fraction / 2**m) * 2.0 ** (power.astype(int) - bias)
        size = np.where(power > 0, normal, fraction / 2**m * 2.0 ** (1 - bias))
        wanted = np.where(codes >> 7, -size, size)
        assert np.array_equal(datatypes.decode(name, codes), wanted)


@pytest.mark.thorough
def test_the_perceptron_needs_fine_steps_more_than_range(names: list[str]) -> None:
    fine, wide = example.accuracy(names[0]), example.accuracy(names[-1])
    assert fine > 0.9
    assert wide < fine - 0.3
