"""Programs with branches, loops, recursion and closures in other number formats."""

from collections.abc import Callable

import numpy as np
import pytest

import compiler
import datatypes
from compiler.errors import UnsupportedError
from compiler.symbolic import Var as Dim

N = Dim("n")
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)


def module() -> compiler.IRModule:
    """A recurrence, a branch with a closure, and a function that calls itself."""
    x, c = compiler.var("x", (N, 4)), compiler.var("c", (), "bool")
    a, i, m = compiler.var("a", (N, 4)), compiler.var("i", (), "int64"), compiler.var("m", (N, 4))
    half = compiler.global_var("half", [i.type, m.type], m.type)
    body = compiler.if_else(i > 0, half(i - 1, m * 0.5), m)
    step = compiler.while_loop(
        lambda k, _: k < 3,
        lambda k, s: (k + 1, compiler.call("tanh", compiler.call("nn.dense", s, W) + x)),
        (compiler.const(0), x),
    )
    closure = compiler.function([a], a * x)
    y = compiler.if_else(c, closure(step[1]), half(2, step[1]))
    return compiler.IRModule(
        {"main": compiler.function([x, c], y), "half": compiler.function([i, m], body)}
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fmt", ["posit16_es1", "bfloat16", "posit8_es1", "posit32_es2"])
def test_control_flow_computes_in_the_format(fmt: str) -> None:
    mod = datatypes.change_dtype(module(), "float32", fmt)
    compiler.verify(mod)
    text = mod.astext(show_meta_data=True)
    assert compiler.structural_equal(mod, compiler.parse(text))
    assert mod["half"].params[1].type.dtype.name == fmt
    exe = compiler.build(mod)
    for c in (True, False):
        got = exe(X, np.asarray(c))
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, compiler.evaluate(mod, X, np.asarray(c)))
        exact = compiler.evaluate(module(), X, np.asarray(c))
        assert 0 < np.abs(got - exact).max() < 0.5


def test_without_boundary_the_inputs_are_codes() -> None:
    mod = datatypes.change_dtype(module(), "float32", "posit16_es1", boundary=False)
    codes = datatypes.encode("posit16_es1", X)
    np.testing.assert_array_equal(
        compiler.build(mod)(codes, np.asarray(True)),
        compiler.evaluate(mod, codes, np.asarray(True)),
    )


def by_layer(mod: compiler.IRModule) -> compiler.IRModule:
    return datatypes.change_dtype(mod, {"*": "bfloat16"})


def of_tuples(mod: compiler.IRModule) -> compiler.IRModule:
    x = compiler.var("x", (2,))
    pair = compiler.function([x], compiler.make_tuple(x + x, x))
    return datatypes.change_dtype(compiler.IRModule({"main": pair}), "float32", "bfloat16")


@pytest.mark.parametrize(
    ("change", "message"),
    [(by_layer, "do not go through control flow"), (of_tuples, "return its fields")],
)
def test_what_is_not_done_is_refused(
    change: Callable[[compiler.IRModule], compiler.IRModule], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        change(module())
