"""Weights are worked on in blocks, of whatever size, with the numbers of the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize import QConfig
from quantize.plan import params
from quantize.plan.params import ValueParams, blocks_of_rows, weight_params

DATA = ValueParams(0.5, 3, "uint8")


@settings(max_examples=20)
@given(
    rows=st.integers(0, 9), inputs=st.integers(1, 5), block=st.integers(1, 40),
    kind=st.sampled_from(["restricted", "full", "asymmetric"]), seed=st.integers(0, 99),
    moved=st.booleans(),
)  # fmt: skip
def test_blocks_of_any_size_give_the_integers_and_the_reach_of_one(
    rows: int, inputs: int, block: int, kind: str, seed: int, moved: bool
) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.normal(0.2, 1, (rows + 1, inputs, 2)).astype(np.float32)
    p = weight_params(weight, None, DATA, QConfig(weight_bits=4, weight_range=kind))
    if moved:
        p = p.rounded_to(weight, p.quantized(weight) + rng.integers(-1, 2, weight.shape))
    found = []
    for size in (weight.size, block):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(params, "BLOCK", size)
            slices = list(blocks_of_rows(weight))
            assert [k for s in slices for k in range(s.start, s.stop)] == list(range(len(weight)))
            found.append((p.quantized(weight), p.reach(weight, None, DATA)))
    (whole, most), (parts, reach) = found
    np.testing.assert_array_equal(parts, whole, strict=True)
    assert reach == most
    # What it says, without blocks.
    nearest = np.rint(weight / p.spread(weight.shape))
    low, high = p.ends(weight.shape)
    if not moved:
        np.testing.assert_array_equal(whole, np.clip(nearest, low, high))
    assert most == (np.abs(weight).astype(np.float64).sum(axis=(1, 2)) * DATA.reach).max()


def test_groups_are_cut_where_their_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(1).normal(0, 1, (4, 6)).astype(np.float32)
    p = weight_params(weight, None, DATA, QConfig(weight_bits=4))
    p = replace(p, scales=tuple(0.1 * (k + 1) for k in range(8)), group=3)
    whole = p.quantized(weight)
    monkeypatch.setattr(params, "BLOCK", 6)
    np.testing.assert_array_equal(p.quantized(weight), whole, strict=True)
    scales = np.array(p.scales).repeat(3).reshape(4, 6)
    np.testing.assert_array_equal(whole, np.clip(np.rint(weight / scales), -7, 7))


def test_no_weights_are_no_blocks() -> None:
    assert list(blocks_of_rows(np.zeros((0, 3)))) == []
    assert list(blocks_of_rows(np.zeros((3, 0)))) == [slice(0, 3)]
