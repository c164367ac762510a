"""Root mean square norms that exporters have written as many operators become one again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, IRModule
from compiler.symbolic import Var as Dim
from compiler.transform import InferType, PassContext, prepare
from compiler.transform.recover_rms_norm import RecoverRmsNorm

SPELLINGS = ("quotient", "inverse", "power")


def written(
    spelling: str, shape: tuple[Any, ...], axes: tuple[int, ...], *, gain: bool = True,
    turned: bool = False, half: bool = False,
) -> IRModule:  # fmt: skip
    """The norm of `x` over `axes`; turned: factors and summands in the other order; half: of
    float16, computed in float32, the gain behind it."""
    b = FunctionBuilder()
    given = b.param("x", shape, "float16" if half else "float32")
    x = b.call("cast", given, dtype="float32") if half else given

    def both(op: str, *args: Atom) -> Atom:
        return b.call(op, *(args[::-1] if turned else args))

    squares = b.call("mean", b.call("multiply", x, x), axis=axes, keepdims=True)
    shifted = both("add", squares, b.const(np.float32(1e-6)))
    if spelling == "power":
        y = both("multiply", x, b.call("power", shifted, b.const(np.float32(-0.5))))
    elif spelling == "inverse":
        one = b.const(np.float32(1))
        y = both("multiply", x, b.call("divide", one, b.call("sqrt", shifted)))
    else:
        y = b.call("divide", x, b.call("sqrt", shifted))
    if half:
        y = b.call("cast", y, dtype="float16")
    if gain:
        known = [d for d in shape[min(axes) :] if isinstance(d, int)]
        values = np.random.default_rng(0).uniform(0.5, 2, known)
        y = both("multiply", y, b.const(values.astype(np.float16 if half else np.float32)))
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def operators(mod: IRModule) -> list[str]:
    return [str(b.value.op) for b in mod.main.bindings if isinstance(b.value, Call)]


def left_as_written(mod: IRModule) -> IRModule:
    with PassContext(disabled_pass=["RecoverRmsNorm"]):
        return prepare(mod)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SPELLINGS), st.integers(1, 3), st.booleans(), st.booleans(), st.data())
def test_every_spelling_becomes_one_operator(
    spelling: str, rank: int, gain: bool, turned: bool, draw: st.DataObject
) -> None:
    shape = tuple(draw.draw(st.integers(2, 5)) for _ in range(rank))
    axes = tuple(range(draw.draw(st.integers(0, rank - 1)), rank))
    mod = written(spelling, shape, axes, gain=gain, turned=turned)
    found = prepare(mod)
    assert operators(found) == ["nn.rms_norm", "nn.relu"]
    x = np.random.default_rng(rank).normal(1, 2, shape).astype(np.float32)
    got, want = compiler.evaluate(found, x), compiler.evaluate(left_as_written(mod), x)
    if spelling == "quotient":
        assert np.array_equal(got, want)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["posit8_es0", "bfloat16", "fixed16_8"])
def test_in_number_formats_the_quotient_keeps_every_bit(name: str) -> None:
    x = np.random.default_rng(1).normal(0.5, 1, (6, 12)).astype(np.float32)
    mod = written("quotient", (6, 12), (1,))
    found = datatypes.change_dtype(mod, "float32", name)
    assert "nn.rms_norm" in operators(found)
    with PassContext(disabled_pass=["RecoverRmsNorm"]):
        changed = datatypes.change_dtype(mod, "float32", name)
        assert "nn.rms_norm" not in operators(changed)
        want = compiler.evaluate(changed, x)
    assert np.array_equal(compiler.evaluate(found, x), want)
    assert np.array_equal(compiler.build(found)(x), want)


def test_of_shorter_floats_the_casts_and_the_gain_stay() -> None:
    mod = written("inverse", (3, 8), (1,), half=True)
    assert operators(prepare(mod)) == ["cast", "nn.rms_norm", "cast", "multiply", "nn.relu"]
    x = np.random.default_rng(2).normal(0, 300, (3, 8)).astype(np.float16)
    got, want = compiler.build(mod)(x), compiler.evaluate(left_as_written(mod), x)
    np.testing.assert_allclose(got, want, rtol=2e-3)


def test_of_open_sizes() -> None:
    mod = written("inverse", (Dim("n"), Dim("s"), 8), (2,))
    assert operators(prepare(mod)) == ["nn.rms_norm", "nn.relu"]
    x = np.random.default_rng(3).normal(0, 1, (2, 5, 8)).astype(np.float32)
    np.testing.assert_allclose(compiler.build(mod)(x), compiler.evaluate(mod, x), rtol=1e-5)


def test_what_only_looks_like_one_is_left_with_a_reason() -> None:
    mod = written("quotient", (3, 4, 5), (1,), gain=False)
    assert "nn.rms_norm" not in operators(prepare(mod))
    said = "\n".join(map(str, RecoverRmsNorm().explain(InferType()(mod))))
    assert "the axes that it normalizes are not the last ones" in said
