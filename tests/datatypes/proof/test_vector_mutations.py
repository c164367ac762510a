"""Proofs catch a vector lowering that is broken, and one whose tiles are not computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from compiler.lowering import attempts, custom_dtypes
from compiler.tensor.expr import BinOp, Expr, call, let, select
from compiler.tensor.stmt import Attempt
from datatypes import registry, vector
from datatypes.formats import get
from datatypes.proof import elementwise, samples, sums
from datatypes.proof.judge import Judge
from datatypes.proof.report import Row
from datatypes.proof.subject import Subject

FMT = get("bfloat16")
NAN = float("nan")
Change = Callable[[Expr], Expr]
SUMS = ["Add", pytest.param("Mul", marks=pytest.mark.slow)]
"""Operations of sums of products; the kernels of one compile for seconds."""


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, bool, Change], None]]:
    """Changes what the deferred, or else the sure, form of an operation gives."""

    def put(op: str, deferred: bool, changed: Change) -> None:
        original = vector.lower

        def lower(fmt: Any, node: Expr, late: bool = False, nan: bool = True) -> Expr | None:
            found = original(fmt, node, late, nan)
            hit = isinstance(node, BinOp) and node.op == op and late == deferred
            return let(found, changed) if hit and found is not None else found

        monkeypatch.setattr(vector, "lower", lower)

    registry._changes += 1
    yield put
    registry._changes += 1


def subject() -> Subject:
    accused = Subject(FMT, "llvm", "vector")
    assert accused.chosen() == "vector"
    return accused


def dense() -> list[Row]:
    return list(sums.dense(subject(), Judge(FMT), np.random.default_rng(0)))


def convolution(which: int) -> list[Row]:
    rng = np.random.default_rng(0)
    return list(sums.convolution(sums.CONVOLUTIONS[which], subject(), Judge(FMT), rng))


def pairs(op: str) -> list[Row]:
    judge, rng = Judge(FMT), np.random.default_rng(0)
    a, b = (samples.ordinary(FMT, rng, 1 << 17) for _ in range(2))
    return list(elementwise.binary(subject(), judge, op, a, b, judge.arithmetic(op, a, b)))


def wrong(rows: list[Row]) -> int:
    return sum(row.wrong for row in rows)


def unsure_of_large_numbers(x: Expr) -> Expr:
    return select(call("abs", x) > 4.0, NAN * x, x)


def off_in_one_binade(x: Expr) -> Expr:
    return select((x >= 1.0) & (x < 1.5), x + 2.0**-7, x)


def nan_is_zero(x: Expr) -> Expr:
    return select(x.equal(x), x, 0.0)


@pytest.mark.thorough
def test_what_is_deferred_is_computed_again(change: Any) -> None:
    """However little the deferred form is sure of, the sums are right."""
    for op in ("Add", "Mul"):
        change(op, True, unsure_of_large_numbers)
    assert wrong(dense()) == 0
    for which in range(len(sums.CONVOLUTIONS)):
        assert wrong(convolution(which)) == 0, sums.CONVOLUTIONS[which].name


@pytest.mark.thorough
def test_tiles_that_are_never_computed_again_are_caught(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeverAgain(Attempt):
        def __init__(self, body: Any, watched: Any, rest: Any, again: Any):
            super().__init__(body, watched, rest, rest)

    change("Add", True, unsure_of_large_numbers)
    for makes_attempts in (attempts, custom_dtypes):
        monkeypatch.setattr(makes_attempts, "Attempt", NeverAgain)
    assert wrong(dense()) > 0
    for which in range(len(sums.CONVOLUTIONS)):
        assert wrong(convolution(which)) > 0, sums.CONVOLUTIONS[which].name


@pytest.mark.thorough
@pytest.mark.parametrize("op", SUMS)
def test_a_deferred_form_that_is_sure_and_wrong_is_caught(op: str, change: Any) -> None:
    change(op, True, off_in_one_binade)
    assert wrong(dense()) > 0
    assert wrong(convolution(0)) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("op", SUMS)
def test_a_sure_form_that_loses_nan_is_caught_where_tiles_are_computed_again(
    op: str, change: Any
) -> None:
    change(op, False, nan_is_zero)
    assert wrong(dense()) > 0
    assert wrong(convolution(0)) > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_a_sure_form_that_is_wrong_in_one_binade_is_caught(op: str, change: Any) -> None:
    assert wrong(pairs(op)) == 0
    change(op, False, off_in_one_binade)
    assert wrong(pairs(op)) > 0
