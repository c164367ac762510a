"""Stages that may run at the same time never meet in memory."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from compiler.codegen.barriers import independent, joined
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer, IntImm
from compiler.tensor.stmt import For, Stmt, Store, accesses
from compiler.types.dtypes import INT32

A, B, C = (Buffer(name, (Index.of(40), Index.of(40)), INT32) for name in "abc")


@st.composite
def copies(draw: st.DrawFn) -> Stmt:
    """`to[y + o, x * k + p] = from[y, x]` for small ranges of y and x."""
    y, x = Var("y", draw(st.integers(1, 4))), Var("x", draw(st.integers(1, 4)))
    to, source = draw(st.sampled_from([A, B])), draw(st.sampled_from([A, B, C]))
    at = (y + draw(st.integers(0, 6)), x * draw(st.integers(1, 3)) + draw(st.integers(0, 9)))
    value = source[y, x] if draw(st.booleans()) else IntImm(0, INT32)
    return For(y, [For(x, [Store("s", to, at, value)])], "parallel")


def places(s: Stmt, write: bool) -> set[tuple[Buffer, int, int]]:
    found = set()
    for buffer, idx, w, path in accesses([s]):
        if w == write and idx is not None:
            for point in itertools.product(*(range(int(f.extent.const)) for f in path)):
                env = dict(zip((f.var for f in path), point, strict=True))
                found.add((buffer, int(idx[0].value(env)), int(idx[1].value(env))))
    return found


@given(copies(), copies())
def test_independent_stages_do_not_meet(a: Stmt, b: Stmt) -> None:
    if independent(a, b):
        assert independent(b, a)
        assert not places(a, True) & (places(b, True) | places(b, False))
        assert not places(b, True) & places(a, False)


def fill(buffer: Buffer, row: int, rows: int, kind: str = "parallel") -> Stmt:
    y = Var("y", rows)
    return For(y, [Store("s", buffer, (y + row, Index.of(0)), IntImm(0, INT32))], kind)


def test_stages_join_until_one_meets_any_before_it() -> None:
    y = Var("y", 3)
    reads = For(y, [Store("r", B, (y, Index.of(0)), A[y, 0])], "parallel")
    body = [fill(A, 0, 3), fill(A, 3, 5), fill(B, 8, 2), reads, fill(C, 0, 4), fill(B, 2, 2)]
    assert joined(body) == [False, True, True, False, True, False]


def test_sequential_stages_join_nothing() -> None:
    body = [fill(A, 0, 3), fill(B, 0, 3, "serial"), fill(C, 0, 3), fill(A, 3, 1)]
    assert joined(body) == [False, False, False, True]


def test_an_unknown_extent_is_taken_to_reach_everywhere() -> None:
    y = Var("y", Var("n"))
    long = For(y, [Store("s", A, (y, Index.of(0)), IntImm(0, INT32))], "parallel")
    assert joined([long, fill(A, 7, 1)]) == [False, False]
    assert joined([long, fill(B, 7, 1)]) == [False, True]
