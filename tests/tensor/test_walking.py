"""Walking statements: program order, and lists as they are when the walk comes to them."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer, const
from compiler.tensor.stmt import Attempt, For, Stmt, Store, When, walk_stmts
from compiler.types.dtypes import BOOL, FLOAT32

OUT = Buffer("out", (Index.of(4),), FLOAT32)
TRUE = const(1, BOOL)


def store() -> Store:
    return Store("s", OUT, (Index(),), const(0.0, FLOAT32))


def inside(inner: st.SearchStrategy[Stmt]) -> st.SearchStrategy[Stmt]:
    body = st.lists(inner, max_size=3)
    return st.one_of(
        body.map(lambda b: For(Var("i", 2), b)),
        body.map(lambda b: When(TRUE, b)),
        st.tuples(body, body, body).map(lambda b: Attempt(b[0], (), b[1], b[2])),
    )


NESTS = st.lists(st.recursive(st.builds(store), inside, max_leaves=12), max_size=4)


def simply(
    body: list[Stmt], path: tuple[For, ...] = ()
) -> Iterator[tuple[Stmt, tuple[For, ...], list[Stmt]]]:
    """What the walk means."""
    for s in body:
        yield s, path, body
        if isinstance(s, For):
            yield from simply(s.body, (*path, s))
        elif isinstance(s, Attempt):
            for part in s.parts:
                yield from simply(part, path)
        elif isinstance(s, When):
            yield from simply(s.body, path)


@settings(max_examples=40)
@given(body=NESTS)
def test_every_statement_comes_in_program_order_with_its_loops_and_its_list(
    body: list[Stmt],
) -> None:
    found, want = list(walk_stmts(body)), list(simply(body))
    assert [(id(s), tuple(map(id, p)), id(h)) for s, p, h in found] == [
        (id(s), tuple(map(id, p)), id(h)) for s, p, h in want
    ]


def test_what_is_put_beside_a_statement_is_passed_over_and_what_is_put_below_is_not() -> None:
    first, last, below = store(), store(), store()
    loop = For(Var("i", 2), [store()])
    body: list[Stmt] = [first, loop, last]
    seen = []
    for s, _, home in walk_stmts(body):
        seen.append(s)
        if s is first:
            home.insert(1, store())
        if s is loop:
            loop.body = [below]
            home.remove(last)
    assert [id(s) for s in seen] == [id(first), id(loop), id(below), id(last)]
