"""Which loops may be vectorized or parallel."""

from __future__ import annotations

import pytest

from compiler.errors import ScheduleError
from compiler.scheduling.independent import check_independent
from compiler.tensor.parser import parse_primfunc


@pytest.mark.parametrize(
    ("index", "alone"),
    [
        ("i*4 + j", True),
        ("i + j*4", True),
        ("i*3 + j", False),
        ("i", True),
        ("j", False),
        ("(i*4 + j) // 4", True),
        ("(i*4 + j) % 8", False),
        ("min(i*4, 9) + j", False),
        ("-i*4 - j + 15", True),
        ("m*16 + i*4 + j", True),
    ],
)
@pytest.mark.parametrize("kind", ["vector", "parallel"])
@pytest.mark.parametrize("outer", ["2", "n"])
def test_iterations_store_elements_of_their_own(
    index: str, alone: bool, kind: str, outer: str
) -> None:
    text = (
        "primfunc @f[n](x: float32[n]) -> (y: float32[n*64]) {\n"
        f"  for m in {outer}:\n    {kind} for i in 4:\n      for j in 4:\n"
        f"        s: y[{index}] = x[0]\n}}"
    )
    f = parse_primfunc(text)
    if alone:
        check_independent(f)
    else:
        with pytest.raises(ScheduleError, match="share elements of y"):
            check_independent(f)


@pytest.mark.parametrize(
    ("index", "alone"), [("i*4 + j", True), ("i*3 + j", False), ("(i // 2)*8 + j", False)]
)
def test_loops_of_unknown_extent_need_linear_indices(index: str, alone: bool) -> None:
    f = parse_primfunc(
        "primfunc @f[n](x: float32[n]) -> (y: float32[n*64]) {\n"
        f"  parallel for i in n:\n    for j in 4:\n      s: y[{index}] = x[i]\n}}"
    )
    if alone:
        check_independent(f)
    else:
        with pytest.raises(ScheduleError, match="make the loop serial"):
            check_independent(f)
