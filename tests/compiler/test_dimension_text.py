"""Dimensions read back from text as what was printed, whatever they are made of."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler.symbolic import Index, Var, imax, imin
from compiler.types.type_parser import DimensionParser

LEAVES = st.one_of(st.sampled_from([Var("h"), Var("w")]), st.integers(-9, 9).map(Index.of))


def larger(parts: st.SearchStrategy[Index]) -> st.SearchStrategy[Index]:
    pairs, by = st.tuples(parts, parts), st.tuples(parts, st.integers(1, 5))
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: imin(*p)),
        pairs.map(lambda p: imax(*p)),
        by.map(lambda p: p[0] * p[1]),
        by.map(lambda p: p[0] // p[1]),
        by.map(lambda p: p[0] % p[1]),
        parts.map(lambda p: -p),
    )


@settings(max_examples=100)
@given(st.recursive(LEAVES, larger, max_leaves=6))
@example(-imin(Var("h") - 2, 0) // 2)  # the sign belongs to what is divided
def test_dimensions_read_back(i: Index) -> None:
    assert DimensionParser(str(i)).dimension() == i


def test_the_larger_of_two_is_said_so() -> None:
    h = Var("h")
    assert str(imax(h // 4, 1) * 2 - 3) == "max((h // 4), 1)*2 - 3"
    assert str(h - imin(h, 5)) == "h - min(h, 5)"
    assert imax(imax(h // 2, 1) // 2, 1) == imax(h // 4, 1)
