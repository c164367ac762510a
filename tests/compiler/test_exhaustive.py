"""What patterns leave, against all values up to a depth that patterns do not reach."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.boundary.data import Datum, fits
from compiler.types.data import Anything, Constructor, Form, Named, Pattern, Several, TypeDef
from compiler.types.exhaustive import missing, unreached
from compiler.types.tensor_types import DataType, TupleType, Type

TWO = TypeDef("Two", (), (Constructor("Yes"), Constructor("No")))
PAIR = TypeDef(
    "Pair", (), (Constructor("Both", (TWO.type, TWO.type)), Constructor("One", (TWO.type,)))
)
CHAIN = TypeDef(
    "Chain", (), (Constructor("End"), Constructor("Link", (TWO.type, DataType("Chain"))))
)
TYPES = {d.name: d for d in (TWO, PAIR, CHAIN)}
DEPTH = 3
"""Forms in each other in a pattern, at most."""


def values(t: Type, depth: int) -> list[Any]:
    """All values with at most `depth` forms in each other."""
    if isinstance(t, TupleType):
        return list(product(*(values(x, depth) for x in t.fields)))
    assert isinstance(t, DataType)
    if depth == 0:
        return []
    return [
        Datum(c.name, fields)
        for c in TYPES[t.name].constructors
        for fields in product(*(values(x, depth - 1) for x in c.fields))
    ]


@st.composite
def patterns(draw: st.DrawFn, t: Type, depth: int = DEPTH) -> Pattern:
    if depth == 0 or draw(st.integers(0, 2)) == 0:
        return draw(st.sampled_from([Anything(), Named()]))
    if isinstance(t, TupleType):
        return Several(tuple(draw(patterns(x, depth)) for x in t.fields))
    assert isinstance(t, DataType)
    c = draw(st.sampled_from(TYPES[t.name].constructors))
    fields = tuple(draw(patterns(x, depth - 1)) for x in c.fields)
    return Form(TYPES[t.name], c.name, fields)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_what_patterns_leave_is_what_no_value_has(data: st.DataObject) -> None:
    t = data.draw(
        st.sampled_from([TWO.type, PAIR.type, CHAIN.type, TupleType((CHAIN.type, PAIR.type))])
    )
    rows = tuple(data.draw(st.lists(patterns(t), max_size=5)))
    left = missing(rows)
    every = values(t, DEPTH + 1)
    uncovered = [v for v in every if all(fits(p, v) is None for p in rows)]
    if left is None:
        assert not uncovered
    else:
        shown = [v for v in every if fits(left, v) is not None]
        assert shown
        assert {id(v) for v in shown} <= {id(v) for v in uncovered}


@pytest.mark.thorough
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_cases_that_no_value_reaches_are_found(data: st.DataObject) -> None:
    t = data.draw(
        st.sampled_from([TWO.type, PAIR.type, CHAIN.type, TupleType((CHAIN.type, TWO.type))])
    )
    rows = tuple(data.draw(st.lists(patterns(t), max_size=5)))
    every = values(t, DEPTH + 1)
    chosen = [next((k for k, p in enumerate(rows) if fits(p, v) is not None), -1) for v in every]
    assert unreached(rows) == [k for k in range(len(rows)) if k not in chosen]
