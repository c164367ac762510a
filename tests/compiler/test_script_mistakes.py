# ruff: noqa: F821, F841, N805
"""Mistakes in programs written in Python are shown where they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from compiler.errors import ParseError
from compiler.script import (
    Buffer,
    Tensor,
    axis,
    block,
    call_packed,
    call_tir,
    dataflow,
    graph_function,
    grid,
    init,
    module,
    output,
    parallel,
    tensor_program,
    vectorized,
)


def unknown_name() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            Y[i] = X[i] + nothing  # HERE: nothing

    return f


def wrong_rank() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            Y[i] = 1.0 + X[i, i]  # HERE: X[i, i]

    return f


def mixed_dtypes() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Z: Buffer((4,), "int32"), Y: Buffer((4,))):
        for i in range(4):
            Y[i] = X[i] + Z[i]  # HERE: X[i] + Z[i]

    return f


def wrong_result_dtype() -> object:
    @tensor_program
    def f(X: Buffer((4,), "int32"), Y: Buffer((4,))):
        for i in range(4):
            Y[i] = X[i]  # HERE: Y[i]

    return f


def outside() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            Y[i] = X[i + 1]  # HERE: Y[i]

    return f


def stores_into_an_input() -> object:
    @tensor_program  # HERE: @
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            X[i] = Y[i]

    return f


def no_reduction() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            with block("Y"):
                vi = axis.spatial(4, i)
                with init():  # HERE: with
                    Y[vi] = 0.0
                Y[vi] = Y[vi] + X[vi]

    return f


def reduction_axis_in_the_result() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            with block("Y"):
                vi = axis.reduce(4, i)
                Y[vi] = X[vi]  # HERE: Y[vi]

    return f


def no_update() -> object:
    @tensor_program
    def f(X: Buffer((4, 2)), Y: Buffer((4,))):
        for i, k in grid(4, 2):
            with block("Y"):
                vi, vk = axis.remap("SR", [i, k])
                with init():
                    Y[vi] = 0.0
                Y[vi] = X[vi, vk] - Y[vi]  # HERE: Y[vi]

    return f


def loop_that_is_no_axis() -> object:
    @tensor_program
    def f(X: Buffer((4, 2)), Y: Buffer((4,))):
        for i, k, _again in grid(4, 2, 2):
            with block("Y"):
                vi, vk = axis.remap("SR", [i, k])
                with init():
                    Y[vi] = 0.0
                Y[vi] = Y[vi] + X[vi, vk]  # HERE: Y[vi]

    return f


def vectorized_sum() -> object:
    @tensor_program  # HERE: @
    def f(X: Buffer((8,)), Y: Buffer((1,))):
        Y[0] = 0.0
        for i in vectorized(8):
            Y[0] = Y[0] + X[i]

    return f


def parallel_recurrence() -> object:
    @tensor_program  # HERE: @
    def f(X: Buffer((8,)), Y: Buffer((8,))):
        for i in parallel(8):
            Y[i] = X[i]
        for i in parallel(7):
            Y[i + 1] = Y[i] + X[i]

    return f


def triangle_in_lanes() -> object:
    @tensor_program  # HERE: @
    def f(X: Buffer((8,)), Y: Buffer((8,))):
        for i in vectorized(8):
            for j in range(i + 1):
                Y[i] = X[j]

    return f


def ended_loop() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            Y[i] = X[i]
        Y[i] = 0.0  # HERE: i]

    return f


def outdated_value() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            Y[i] = X[i]
            y = Y[i]
            Y[i] = 0.0
            Y[i] = y  # HERE: y  #

    return f


def run_time_condition() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        for i in range(4):
            if X[i] > 0:  # HERE: X[i] > 0
                Y[i] = X[i]

    return f


def foreign_statement() -> object:
    @tensor_program
    def f(X: Buffer((4,)), Y: Buffer((4,))):
        while True:  # HERE: while
            Y[0] = X[0]

    return f


def untyped() -> object:
    @graph_function
    def f(
        x,  # HERE: x,
    ):
        return x

    return f


def shapes_that_do_not_fit() -> object:
    @graph_function
    def f(x: Tensor((2, 3)), y: Tensor((4,))):
        z = x + 1
        return z + y  # HERE: z + y

    return f


def effect_in_dataflow() -> object:
    @graph_function
    def f(x: Tensor((2,))):
        with dataflow():
            call_packed("test.seen", x)  # HERE: call_packed
        return x

    return f


def name_that_stays_inside() -> object:
    @graph_function
    def f(x: Tensor((2,))):
        with dataflow():
            y = x + 1
            z = y + 1
            output(z)
        return y  # HERE: y  #

    return f


def returns_nothing() -> object:
    @graph_function  # HERE: @
    def f(x: Tensor((2,))):
        y = x + 1

    return f


def unknown_program() -> object:
    @module
    class M:
        @graph_function
        def main(x: Tensor((2,))):
            return call_tir(prog, (x,), (2,))  # HERE: prog

    return M


def graph_condition() -> object:
    @graph_function
    def f(x: Tensor((), "bool")):
        return 1 if x else 2  # HERE: 1 if

    return f


MISTAKES: dict[Callable[[], object], str] = {
    unknown_name: "name 'nothing' is not defined",
    wrong_rank: "X has 1 dimensions, not 2",
    mixed_dtypes: "Add of float32 and int32: cast one of them",
    wrong_result_dtype: "Y holds float32, and the value is int32",
    outside: "reaches from 1 to 4, outside 0 to 3",
    stores_into_an_input: "the last parameters must be those it fills, not X",
    no_reduction: "init() needs a reduction axis",
    reduction_axis_in_the_result: "a reduction axis is no index of the result",
    no_update: "a reduction is written Y[...] = Y[...] + value",
    loop_that_is_no_axis: "the loop _again inside the reduction is no axis of it",
    vectorized_sum: "iterations of the vectorized loop i share elements of Y",
    parallel_recurrence: "iterations of the parallel loop i_1 share elements of Y",
    triangle_in_lanes: "loop j goes as far as the vectorized loop i says",
    ended_loop: "i belongs to a loop that has ended",
    outdated_value: "y was read from Y, which has changed",
    run_time_condition: "use select(...)",
    foreign_statement: "no statement of this kind (While)",
    untyped: "x needs a type",
    shapes_that_do_not_fit: "do not broadcast",
    effect_in_dataflow: "must stand outside of dataflow()",
    name_that_stays_inside: "y stays in its dataflow block",
    returns_nothing: "f returns nothing",
    unknown_program: "name 'prog' is not defined",
    graph_condition: "use compiler.if_else",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_a_mistake_is_shown_where_it_is(mistake: Callable[[], object]) -> None:
    rows, first = inspect.getsourcelines(mistake)
    (line,) = [k for k, row in enumerate(rows) if "# HERE: " in row]
    code, _, mark = rows[line].partition("# HERE: ")
    column = code.rindex(mark.rstrip("\n").removesuffix("  #").strip()) + 1
    if mark.startswith(("@", "Y[vi]", "Y[i]", "1 if")):
        column = len(code) - len(code.lstrip()) + 1
        column += len("return ") if mark.startswith("1 if") else 0
    line += 1 if mark.startswith("@") else 0  # the definition, not its decorator
    with pytest.raises(ParseError) as e:
        mistake()
    where = f"test_script_mistakes.py, line {first + line}, column {column}: "
    assert where in str(e.value), str(e.value)
    assert MISTAKES[mistake] in str(e.value)
