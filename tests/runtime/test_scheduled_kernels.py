"""The printed, scheduled loop nests are the kernels: interpreted, they give the machine code's
bits."""

import pytest
from kernel_runs import assert_same_bits
from small_kernels import kernels, work

QUICK = 8_000
"""Innermost iterations of a kernel that the scalar interpreter walks in a second or so."""


@pytest.mark.sampled(9)
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize(
    ("net", "size", "most"),
    [
        ("dwsep", 5, QUICK),
        ("resnet8", 6, QUICK),
        ("mlp", 28, QUICK),
        ("vit", 28, QUICK),
        *(
            pytest.param(net, size, 10**9, marks=pytest.mark.slow)
            for net, size in (("dwsep", 12), ("resnet8", 6), ("mlp", 28), ("vit", 28))
        ),
    ],
)
def test_interpreted_equals_machine_code(net: str, size: int, most: int, int8: bool) -> None:
    small = [k for k in kernels(net, size, int8) if work(k) <= most]
    assert small
    for kernel in small:
        assert_same_bits(kernel)
