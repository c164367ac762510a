"""if_exact: the second way is taken if, and only if, the first one rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import LoweringError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime.rounding_fallback import Fallback, conditions

TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
BIG = 2.0**53


def two_ways(rows: int = 4, dense: bool = True) -> IRModule:
    """x @ w, unless that rounds; then x + 1000, which is something else so that it shows."""
    b = FunctionBuilder()
    x = b.param("x", (rows, 6), "float64")
    w = b.const(np.eye(6))
    quick = b.call("nn.dense", x, w) if dense else b.call("add", x, b.const(np.ones(())))
    sure = b.call("add", b.call("multiply", x, b.const(np.ones(()))), b.const(np.array(1000.0)))
    return IRModule({"main": b.finish(b.call("if_exact", quick, sure))})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_the_second_way_runs_only_if_the_first_one_rounds(target: str, threads: int) -> None:
    rows = 2048  # enough work for two threads
    exe = compiler.build(two_ways(rows, dense=False), target=target, threads=threads)
    x = np.arange(rows * 6, dtype=np.float64).reshape(rows, 6)
    np.testing.assert_array_equal(exe(x), x + 1)
    for row in (0, rows // 2, rows - 1):  # whichever thread it is that rounds
        bad = x.copy()
        bad[row, 3] = 2 * BIG + 4
        assert bad[row, 3] + 1 == bad[row, 3]
        np.testing.assert_array_equal(exe(bad), bad + 1000)
        np.testing.assert_array_equal(exe(x), x + 1)  # the flag is cleared


@pytest.mark.parametrize(
    ("value", "rounds"),
    [(0.1, False), (np.nan, False), (1e300, False), (2.0**-1070, False), (np.inf, True)],
)
def test_products_that_are_exact_or_no_numbers_do_not_count_as_rounded(
    value: float, rounds: bool
) -> None:
    x = np.ones((4, 6))
    x[2, 1] = value  # infinity times zero is an invalid operation
    got = compiler.build(two_ways())(x)
    np.testing.assert_array_equal(got, x + 1000 if rounds else x @ np.eye(6))


def test_the_reference_is_the_second_way() -> None:
    x = np.ones((4, 6))
    np.testing.assert_array_equal(compiler.evaluate(two_ways(), x), x + 1000)


def test_values_that_no_kernel_computes_are_taken_from_the_second_way() -> None:
    b = FunctionBuilder()
    x, y = b.param("x", (3,), "float64"), b.param("y", (3,), "float64")
    exe = compiler.build(IRModule({"main": b.finish(b.call("if_exact", x, y))}))
    np.testing.assert_array_equal(exe(np.zeros(3), np.ones(3)), np.ones(3))


def test_the_second_way_may_be_read_elsewhere_and_be_a_result() -> None:
    b = FunctionBuilder()
    x: Any = b.param("x", (3,), "float64")
    quick = b.call("add", x, b.const(np.ones(3)))
    sure = b.call("subtract", x, b.const(-np.ones(3)))
    mod = IRModule({"main": b.finish(b.call("if_exact", quick, sure), b.call("negative", sure))})
    exe = compiler.build(mod)
    for v in (np.arange(3.0), np.array([0.0, 2 * BIG + 4, 0.1])):
        for got, want in zip(exe(v), compiler.evaluate(mod, v), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_second_way_that_goes_on_from_the_first_is_an_error() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3, 3), "float64")
    quick = b.call("nn.dense", x, b.const(np.eye(3)))
    sure = b.call("nn.dense", quick, b.const(np.eye(3)))
    with pytest.raises(LoweringError, match="compute the second operand without the first"):
        compiler.build(IRModule({"main": b.finish(b.call("if_exact", quick, sure))}))


def test_only_what_one_way_alone_needs_is_watched_or_left_out() -> None:
    # Kernel 0 serves both ways; 1, 2 end in the first (root 12), 3, 4 in the second; 5 reads it.
    reads = [{9}, {10}, {11}, {10}, {13}, {12}]
    writes = [{10}, {11}, {12}, {13}, {12}, {14}]
    fallback = Fallback(99, frozenset({2}), frozenset({4}))
    found = conditions([fallback], reads, writes, {14})
    assert found.watch == {1: 99, 2: 99}
    assert found.when == {3: 99, 4: 99}
    assert found.last(99) == 4
    assert conditions([fallback], reads, writes, {14, 13}).when == {4: 99}
