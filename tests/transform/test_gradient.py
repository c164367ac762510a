"""Gradients of programs: what they are called, what they are of, and what has none."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler.errors import InputError, UnsupportedError
from compiler.op.opdef import REGISTERED, OpDef
from experiments import zoo


def affine() -> compiler.IRModule:
    x, b = compiler.var("x", (3,)), compiler.var("b")
    scale = compiler.const(np.array([1, 2, 3], np.float32))
    y = compiler.call("sum", x * scale) + b
    return compiler.IRModule({"main": compiler.function([x, b], y.named("y"))})


def test_parameters_and_constants_by_name() -> None:
    mod = affine()
    (name,) = compiler.parameters(mod)
    both = compiler.gradient(mod, ["b", name, "x"])
    assert [p.name for p in both.main.params] == ["x", "b", name]
    x = np.array([4, 5, 6], np.float32)
    value, of_b, of_scale, of_x = compiler.evaluate(
        both, x, np.float32(0), np.array([1, 1, 2], np.float32)
    )
    assert (value, of_b) == (21, 1)
    np.testing.assert_array_equal(of_scale, x)
    np.testing.assert_array_equal(of_x, [1, 1, 2])


def test_a_given_cotangent_and_values_that_nothing_reads() -> None:
    x, z = compiler.var("x", ("n",)), compiler.var("z", ("n",))
    mod = compiler.IRModule({"main": compiler.function([x, z], compiler.call("exp", x))})
    both = compiler.gradient(mod, ["x", "z"], cotangent="flows")
    assert [p.name for p in both.main.params] == ["x", "z", "flows"]
    xs, back = np.array([0, 1], np.float32), np.array([2, 3], np.float32)
    y, of_x, of_z = compiler.evaluate(both, xs, xs, back)
    np.testing.assert_array_equal(of_x, y * back)
    np.testing.assert_array_equal(of_z, np.zeros(2, np.float32))


def test_it_can_be_taken_again() -> None:
    x = compiler.var("x")
    mod = compiler.IRModule({"main": compiler.function([x], x * x * x)})
    for _ in range(3):
        mod = compiler.gradient(mod, ["x"])
        *_, last = mod.main.results
        mod = mod.with_function(
            "main", compiler.Function(mod.main.params, mod.main.bindings, (last,))
        )
    assert compiler.evaluate(mod, np.float32(5)) == 6


def test_gradients_are_told_from_what_they_are_of() -> None:
    mod = compiler.with_loss(compiler.from_onnx(zoo.model_path("mnist_mlp")), "cross_entropy")
    both = compiler.gradient(mod, ["a.weight"])
    origins = [o for b in both.main.bindings for o in b.origins]
    assert "node_linear" in origins
    assert "node_linear/gradient" in origins


@pytest.mark.parametrize(
    ("names", "cotangent", "says"),
    [
        (["bb"], None, "unknown parameter or constant 'bb'; did you mean 'b'?"),
        (["b", "b"], None, "'b' is asked for twice"),
        (["b"], ("c", "d"), "there are 1 results, and 2 names of cotangents"),
        (["b"], "x", "there is a parameter %x already"),
    ],
)
def test_names_that_are_wrong(names: list[str], cotangent: str | None, says: str) -> None:
    with pytest.raises(InputError, match=None) as e:
        compiler.gradient(affine(), names, cotangent)
    assert says in str(e.value)


def test_results_that_are_no_scalar_want_a_cotangent() -> None:
    x = compiler.var("x", (2,))
    mod = compiler.IRModule({"main": compiler.function([x], x + x)})
    with pytest.raises(InputError, match="give names of cotangents, or add a loss"):
        compiler.gradient(mod, ["x"])


def test_a_strangers_operator_is_told_how_to_have_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    known = OpDef("stranger", lambda a, types: types[0], lambda ar, a, x: x, None)
    monkeypatch.setitem(REGISTERED, "stranger", known)
    x = compiler.var("x", (3,))
    y = compiler.call("sum", compiler.call("stranger", x).named("gate"))
    with pytest.raises(UnsupportedError) as e:
        compiler.gradient(compiler.IRModule({"main": compiler.function([x], y)}), ["x"])
    assert "node %gate (stranger) has no gradient: its operator states none" in str(e.value)
    assert "OpDef(..., gradient=rule) gives it one" in str(e.value)


def test_an_operator_without_a_rule_is_named() -> None:
    x = compiler.var("x", (3,))
    y = compiler.call("sum", compiler.call("bitcast", x, dtype="float32").named("bits"))
    mod = compiler.IRModule({"main": compiler.function([x], y)})
    with pytest.raises(UnsupportedError) as e:
        compiler.gradient(mod, ["x"])
    assert "node %bits (bitcast) has no gradient: bits are no numbers" in str(e.value)
    assert "the nearest operator that has one is cast" in str(e.value)
