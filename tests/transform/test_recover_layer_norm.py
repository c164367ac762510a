"""Layer norms that exporters have written as many operators become one again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, IRModule, Var
from compiler.transform import InferType, PassContext, prepare
from compiler.transform.recover_layer_norm import RecoverLayerNorm
from compiler.types.dtypes import Array

SPELLINGS = ("torch", "inverse", "tensorflow")


class Written:
    """A layer norm of `x` in one of SPELLINGS, over the axes from `axis` on."""

    def __init__(self, x: Array, axis: int, draw: st.DataObject | None = None):
        self.b, self.draw = FunctionBuilder(), draw
        self.axes = [tuple(range(axis, x.ndim))] * 2  # of the mean, and of the variance
        self.rng = np.random.default_rng(0)
        self.x: Var = self.b.param("x", x.shape)
        self.inner, self.rank = x.shape[axis:], x.ndim

    def call(self, op: str, *args: Atom, **attrs: Any) -> Var:
        if op in ("add", "multiply") and self.draw is not None and self.draw.draw(st.booleans()):
            args = args[::-1]
        return self.b.call(op, *args, **attrs)

    def mean(self, a: Atom) -> Var:
        self.axes = self.axes[::-1]
        return self.b.call("mean", a, axis=self.axes[-1], keepdims=True)

    def constant(self) -> Atom:
        values = self.rng.uniform(0.5, 2.0, self.inner).astype(np.float32)
        if self.rank > values.ndim and self.draw is not None:
            values = values[None] if self.draw.draw(st.booleans()) else values
        return self.b.const(values)

    def module(self, spelling: str, gain: bool = True, offset: bool = True) -> IRModule:
        """The layer norm, and then a relu."""
        c = self.call
        center = self.mean(self.x)
        apart = self.b.call("subtract", self.x, center)
        variance = self.mean(self.b.call("multiply", apart, apart))
        deviation = self.b.call("sqrt", c("add", variance, self.b.const(np.float32(1e-5))))
        if spelling == "torch":
            y = self.b.call("divide", apart, deviation)
            y = c("multiply", y, self.constant()) if gain else y
            y = c("add", y, self.constant()) if offset else y
        else:
            factor = self.b.call("divide", self.b.const(np.float32(1)), deviation)
            factor = c("multiply", factor, self.constant()) if gain else factor
            if spelling == "inverse":
                y = c("multiply", apart, factor)
                y = c("add", y, self.constant()) if offset else y
            else:
                rest = self.b.call("subtract", self.constant(), c("multiply", center, factor))
                y = c("add", c("multiply", self.x, factor), rest)
        return IRModule({"main": self.b.finish(self.b.call("nn.relu", y))})


def operators(mod: IRModule) -> list[str]:
    return [str(b.value.op) for b in mod.main.bindings if isinstance(b.value, Call)]


def left_as_written(mod: IRModule) -> IRModule:
    with PassContext(disabled_pass=["RecoverLayerNorm"]):
        return prepare(mod)


@pytest.mark.thorough
@given(st.sampled_from(SPELLINGS), st.integers(1, 3), st.data())
def test_every_spelling_becomes_one_operator(spelling: str, rank: int, draw: st.DataObject) -> None:
    shape = tuple(draw.draw(st.integers(2, 5)) for _ in range(rank))
    axis = draw.draw(st.integers(0, rank - 1))
    x = np.random.default_rng(rank).normal(1, 2, shape).astype(np.float32)
    gain, offset = draw.draw(st.booleans()), draw.draw(st.booleans())
    mod = Written(x, axis, draw).module(spelling, gain, offset)
    found = prepare(mod)
    assert operators(found) == ["nn.layer_norm", "nn.relu"]
    written = left_as_written(mod)
    assert "nn.layer_norm" not in operators(written)
    got, want = compiler.evaluate(found, x), compiler.evaluate(written, x)
    if spelling == "torch":
        assert np.array_equal(got, want)
    assert np.allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["posit8_es0", "bfloat16", "float8_e4m3fn", "fixed16_8"])
def test_in_number_formats_torchs_spelling_keeps_every_bit(name: str) -> None:
    x = np.random.default_rng(1).normal(0.5, 1, (6, 12)).astype(np.float32)
    mod = Written(x, 1).module("torch")
    found = datatypes.change_dtype(mod, "float32", name)
    with PassContext(disabled_pass=["RecoverLayerNorm"]):
        written = datatypes.change_dtype(mod, "float32", name)
    assert "nn.layer_norm" in operators(found)
    assert "nn.layer_norm" not in operators(written)
    with PassContext(disabled_pass=["RecoverLayerNorm"]):
        want = compiler.evaluate(written, x)
    assert np.array_equal(compiler.evaluate(found, x), want)
    assert np.array_equal(compiler.build(found)(x), want)


def refusals(mod: IRModule) -> str:
    """Why no layer norm was found; there is none."""
    assert "nn.layer_norm" not in operators(prepare(mod))
    return "\n".join(map(str, RecoverLayerNorm().explain(InferType()(mod))))


def test_what_only_looks_like_one_is_left_with_a_reason() -> None:
    x = np.zeros((3, 4, 5), np.float32)
    first = Written(x, 1)
    first.axes = [(1,), (1,)]
    assert "the axes that it normalizes are not the last ones" in refusals(first.module("inverse"))

    mixed = Written(x, 2)
    mixed.axes = [(2,), (1, 2)]
    reason = "its mean and its variance are over different axes"
    assert reason in refusals(mixed.module("torch", gain=False, offset=False))


def test_a_product_with_another_factor_for_the_mean_is_not_one() -> None:
    """x * (s * gain) + (offset - mean * s) is no layer norm."""
    x = np.random.default_rng(2).normal(0, 1, (2, 6)).astype(np.float32)
    w = Written(x, 1)
    b = w.b
    center = w.mean(w.x)
    apart = b.call("subtract", w.x, center)
    variance = w.mean(b.call("multiply", apart, apart))
    deviation = b.call("sqrt", b.call("add", variance, b.const(np.float32(1e-5))))
    inverse = b.call("divide", b.const(np.float32(1)), deviation)
    scaled = b.call("multiply", w.x, b.call("multiply", inverse, w.constant()))
    rest = b.call("subtract", w.constant(), b.call("multiply", center, inverse))
    mod = IRModule({"main": b.finish(b.call("add", scaled, rest))})
    assert "which 'factor' was before" in refusals(mod)
    got = compiler.evaluate(prepare(mod), x)
    assert np.array_equal(got, compiler.evaluate(left_as_written(mod), x))


def test_a_normalized_value_that_others_read_keeps_its_gain_apart() -> None:
    x = np.random.default_rng(3).normal(0, 1, (2, 6)).astype(np.float32)
    w = Written(x, 1)
    center = w.mean(w.x)
    apart = w.b.call("subtract", w.x, center)
    variance = w.mean(w.b.call("multiply", apart, apart))
    deviation = w.b.call("sqrt", w.b.call("add", variance, w.b.const(np.float32(1e-5))))
    y = w.b.call("divide", apart, deviation)
    both = w.b.call("add", w.b.call("multiply", y, w.constant()), y)
    mod = IRModule({"main": w.b.finish(both)})
    assert operators(prepare(mod)) == ["nn.layer_norm", "multiply", "add"]


def test_an_offset_that_gives_the_result_another_axis_stays_apart() -> None:
    w = Written(np.zeros(6, np.float32), 0)
    w.inner = (1, 6)
    assert operators(prepare(w.module("torch", gain=False))) == ["nn.layer_norm", "add", "nn.relu"]
