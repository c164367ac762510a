"""What callers are told about sizes that do not fit a network with symbolic dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import InputError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import IntLike
from compiler.symbolic import Var as Dim

N, W = Dim("n"), Dim("w")


def two_inputs(*shapes: tuple[IntLike, ...]) -> IRModule:
    """The negation of each of two inputs."""
    b = FunctionBuilder()
    outs = [b.call("negative", b.param(f"x{k}", s)) for k, s in enumerate(shapes)]
    return IRModule({"main": b.finish(*outs)})


def ways(mod: IRModule) -> list[Callable[..., Any]]:
    """Both ways of running a module."""
    return [compiler.build(mod), lambda *x: compiler.evaluate(mod, *x)]


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        (
            ((N, 3), (N, 2)),
            ((3, 3), (4, 2)),
            "dimension n of input 'x1' is 4, but 3 by n = 3 in input 'x0'",
        ),
        (
            ((N, 3), (N + 3, 2)),
            ((3, 3), (7, 2)),
            "dimension n + 3 of input 'x1' is 7, but 6 by n = 3 in input 'x0'",
        ),
        (
            ((N, 3), ((W + 1) // 2, W)),
            ((3, 3), (4, 5)),
            "dimension ((w + 1) // 2) of input 'x1' is 4, but 3 by w = 5 in input 'x1'",
        ),
        (((N, 3), (N * 2, 2)), ((3, 3), (7, 2)), "dimension n*2 of input 'x1' cannot be 7"),
        (((N, 3), (N + 3, 2)), ((3, 3), (2, 2)), "dimension n + 3 of input 'x1' cannot be 2"),
        (((N, 3), (N, 2)), ((3, 4), (3, 2)), "axis 1 must be 3, not 4"),
        (((N, 3), (W // 2, 2)), ((3, 3), (3, 2)), "does not tell w: give the model an input"),
    ],
)
def test_errors_name_the_dimension_and_both_values(
    shapes: Any, given: list[tuple[int, ...]], message: str
) -> None:
    mod = two_inputs(*shapes)
    arrays = [zeros(*s) for s in given]
    for run in ways(mod):
        with pytest.raises(InputError) as error:
            run(*arrays)
        assert message in str(error.value)


def test_related_dimensions_are_found_from_either_input() -> None:
    mod = two_inputs((N * 2 + 1, 3), (N, 2))
    for run in ways(mod):
        assert [len(y) for y in run(zeros(7, 3), zeros(3, 2))] == [7, 3]


def test_an_image_too_small_for_the_network_is_refused() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 1, 4, W))
    for _ in range(3):
        x = b.call("nn.max_pool2d", x, pool_size=(1, 2), strides=(1, 2))
    mod = IRModule({"main": b.finish(x)})
    for run in ways(mod):
        assert run(zeros(1, 1, 4, 8)).shape == (1, 1, 4, 1)
        with pytest.raises(InputError, match=r"w = 7 is too small.*w // 8.*which is 0"):
            run(zeros(1, 1, 4, 7))
