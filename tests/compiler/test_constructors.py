"""Programs made of Python expressions, and the text they print as."""

import numpy as np
import pytest

import compiler
from compiler.errors import TypeInferenceError, VerifyError
from compiler.symbolic import Var as Dim


def run(f: compiler.Function, *inputs: np.ndarray, **others: compiler.Function) -> object:
    mod = compiler.IRModule({"main": f, **others})
    compiler.verify(mod)
    assert compiler.structural_equal(mod, compiler.parse(mod.astext(show_meta_data=True)))
    return compiler.evaluate(mod, *inputs)


X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def test_a_variable_added_to_itself_prints_as_the_tutorial_shows() -> None:
    x = compiler.var("x", (10, 1))
    wanted = "free_var %x: Tensor[(10, 1), float32]\nadd(%x, %x)"
    assert str(compiler.call("add", x, x)) == str(x + x) == wanted
    assert str(compiler.function([x], x + x)) == (
        "fn (%x: Tensor[(10, 1), float32]) -> Tensor[(10, 1), float32] {\n"
        "  %0 = add(%x, %x); /* ty=Tensor[(10, 1), float32] */\n"
        "  %0\n}"
    )


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: 2.5 * x * x,
        lambda x: 1 / (x * x + 1),
        lambda x: -x / 3,
        lambda x: (x * x + 1) ** 2,
        lambda x: x < 0,
        lambda x: x >= 1,
        lambda x: x > 0.5,
        lambda x: x >= X,
        lambda x: X - x,
        lambda x: np.float32(2) * x,
    ],
)
def test_operators_are_those_of_numpy(f: object) -> None:
    x = compiler.var("x", (2, 3))
    got, want = run(compiler.function([x], f(x)), X), f(X)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_matrix_product_and_fields() -> None:
    x = compiler.var("x", (2, 3))
    a, b = compiler.call("split", x @ X.T, sizes=(1, 1), axis=1)
    np.testing.assert_allclose(run(compiler.function([x], b - a), X), np.diff(X @ X.T), rtol=1e-5)


def test_what_is_used_twice_is_bound_once() -> None:
    x = compiler.var("x", (2, 3))
    y = (x + x).named("twice")
    f = compiler.function([x], (y * y, y))
    assert [b.var.name for b in f.bindings] == ["twice", "0"]


def test_branches_share_what_the_function_needs_anyway() -> None:
    x, c = compiler.var("x", (2, 3)), compiler.var("c", (), "bool")
    shared, lone = x + 1, x * 2
    y = compiler.if_else(c, shared * lone, lone - shared)
    f = compiler.function([x, c], y + shared)
    assert len(f.bindings) == 3  # x + 1, the branch, the sum
    for flag in (True, False):
        want = (X + 1) * (X * 2) if flag else X * 2 - (X + 1)
        np.testing.assert_allclose(run(f, X, np.asarray(flag)), want + X + 1, rtol=1e-6)


def test_loops_nest() -> None:
    x, k = compiler.var("x", (2, 3)), compiler.var("k", (), "int64")

    def outer(i: compiler.Var, a: compiler.Var) -> tuple:
        step = compiler.while_loop(
            lambda j, b: j < i, lambda j, b: (j + 1, b + a), (compiler.const(0), a)
        )
        return i + 1, step[1]

    out = compiler.while_loop(lambda i, a: i <= k, outer, (compiler.const(1), x))
    f = compiler.function([x, k], out[1])
    np.testing.assert_allclose(run(f, X, np.asarray(3)), X * 2 * 3 * 4)
    np.testing.assert_allclose(run(f, X, np.asarray(0)), X)


def test_closures_and_recursion() -> None:
    n = Dim("n")
    x, i = compiler.var("x", (n, 3)), compiler.var("i", (), "int64")
    times = compiler.global_var("times", [i.type, x.type], x.type)
    again = compiler.if_else(i > 0, times(i - 1, x * 2), x)
    y, a = compiler.var("y", (n, 3)), compiler.var("a", (n, 3))
    add_y = compiler.function([a], a + y)
    k = compiler.var("k", (), "int64")
    main = compiler.function([y, k], add_y(times(k, y)))
    got = run(main, X, np.asarray(4), times=compiler.function([i, x], again))
    np.testing.assert_allclose(got, 17 * X)


def test_match_names_a_dimension() -> None:
    x = compiler.var("x", ("n", 3))
    assert x.type == compiler.var("y", (Dim("n"), 3)).type
    y = compiler.match(x, (2, 3)) + X
    np.testing.assert_allclose(run(compiler.function([x], y), X), X + X)


def test_a_chain_of_thousands_is_no_recursion_in_python() -> None:
    x = compiler.var("x", (3,))
    y: compiler.Expr | compiler.Var = x
    for _ in range(5000):
        y = y + 1
    assert len(compiler.function([x], y).bindings) == 5000


def test_mistakes_are_named() -> None:
    x, c = compiler.var("x", (2, 3)), compiler.var("c", (), "bool")
    with pytest.raises(TypeInferenceError, match="do not broadcast"):
        x + np.ones(4, np.float32)
    with pytest.raises(TypeInferenceError, match="one branch gives"):
        compiler.if_else(c, x, x > 0)
    with pytest.raises(TypeInferenceError, match="str 'a' is no value of a program"):
        x + "a"
    with pytest.raises(TypeInferenceError, match="has no fields"):
        x[0]
    with pytest.raises(IndexError):
        compiler.make_tuple(x, c)[2]
    with pytest.raises(TypeError, match=r"use compiler\.if_else"):
        bool(x > 0)
    with pytest.raises(VerifyError, match="two variables are called %x"):
        compiler.function([x], x + compiler.var("x", (2, 3)))
