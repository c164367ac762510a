"""Concatenations that copy nothing: their operands are computed in the memory of the result."""

from collections.abc import Callable

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.symbolic import Var as Dim

Made = tuple[IRModule, np.ndarray]


class Net:
    """Convolutions of uint8, and what joins them."""

    def __init__(self, batch: int | Dim = 1) -> None:
        self.b, self.rng = FunctionBuilder(), np.random.default_rng(0)
        self.x = self.b.param("x", (batch, 16, 7, 7), "uint8")

    def conv(self, x: Var, inputs: int, outputs: int) -> Var:
        w = self.rng.integers(-99, 99, (outputs, inputs, 3, 3)).astype(np.int8)
        y = self.b.call(
            "nn.conv2d", x, self.b.const(w), padding=(1,) * 4, out_dtype="int32"
        )  # fmt: skip
        scale = self.b.const(np.full(outputs, 2e-3, np.float32))
        return self.b.call("qnn.requantize", y, scale, output_zero_point=9, out_dtype="uint8")

    def join(self, *parts: Var, axis: int = 1) -> Var:
        return self.b.call("concatenate", *parts, axis=axis)

    def done(self, *results: Var) -> Made:
        n = 2 if isinstance(self.x.type.shape[0], Dim) else self.x.type.shape[0]
        data = self.rng.integers(0, 256, (n, 16, 7, 7)).astype(np.uint8)
        return IRModule({"main": self.b.finish(*results)}), data


def copies(exe: compiler.Executable) -> int:
    return sum("concatenate" in k.func.name for k in exe.kernels)


def check(made: Made, wanted: int) -> None:
    mod, data = made
    want = compiler.evaluate(mod, data)
    for threads in (1, 2):
        exe = compiler.build(mod, threads=threads)
        assert copies(exe) == wanted
        results = [y if isinstance(y, list) else [y] for y in (exe(data), want)]
        for got, right in zip(*results, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-5 if got.dtype == np.float32 else 0)


def branches() -> Made:
    n = Net()
    parts = [n.conv(n.x, 16, 16 * k) for k in (1, 3, 2)]
    return n.done(n.conv(n.join(*parts), 96, 16))


def joins_of_joins_that_are_read_in_between() -> Made:
    n = Net()
    a, c = n.conv(n.x, 16, 16), n.conv(n.x, 16, 32)
    inner = n.join(c, a)
    d = n.conv(inner, 48, 16)
    return n.done(n.conv(n.join(d, inner), 64, 16), n.conv(c, 32, 16))


def operands_used_later() -> Made:
    n = Net()
    a, c = n.conv(n.x, 16, 16), n.conv(n.x, 16, 32)
    y = n.conv(n.join(a, c), 48, 16)
    return n.done(n.b.call("add", y, a), n.conv(c, 32, 16))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "made", [branches, joins_of_joins_that_are_read_in_between, operands_used_later]
)
def test_nothing_is_copied(made: Callable[[], Made]) -> None:
    check(made(), 0)


class Rows:
    """Dense layers of float32: no layouts that results and inputs would be copied from or to."""

    def __init__(self) -> None:
        self.b, self.rng = FunctionBuilder(), np.random.default_rng(0)
        self.x = self.b.param("x", (1, 8))

    def dense(self, x: Var, inputs: int) -> Var:
        w = self.b.const(self.rng.normal(size=(8, inputs)).astype(np.float32))
        return self.b.call("nn.dense", x, w)

    def join(self, *parts: Var) -> Var:
        return self.b.call("concatenate", *parts, axis=1)

    def done(self, *results: Var) -> Made:
        return IRModule({"main": self.b.finish(*results)}), np.ones((1, 8), np.float32)


def an_input() -> Made:
    n = Rows()
    return n.done(n.dense(n.join(n.x, n.dense(n.x, 8)), 16))


def the_result() -> Made:
    n = Rows()
    return n.done(n.join(n.dense(n.x, 8), n.dense(n.x, 8)))


def a_view_of_a_result() -> Made:
    n = Rows()
    a = n.dense(n.x, 8)
    y = n.dense(n.join(a, n.dense(n.x, 8)), 16)
    return n.done(y, n.b.call("reshape", a, newshape=(2, 4)))


def one_value_twice() -> Made:
    n = Net()
    a = n.conv(n.x, 16, 16)
    return n.done(n.conv(n.join(a, a), 32, 16))


def several_images() -> Made:
    n = Net(batch=3)
    return n.done(n.conv(n.join(n.conv(n.x, 16, 16), n.conv(n.x, 16, 16)), 32, 16))


def any_number_of_images() -> Made:
    n = Net(batch=Dim("n"))
    return n.done(n.conv(n.join(n.conv(n.x, 16, 16), n.conv(n.x, 16, 16)), 32, 16))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "made",
    [
        an_input, the_result, a_view_of_a_result, one_value_twice, several_images,
        any_number_of_images,
    ],
)  # fmt: skip
def test_what_cannot_lie_there_is_copied(made: Callable[[], Made]) -> None:
    check(made(), 1)


def test_a_value_lies_in_one_join_only() -> None:
    n = Net()
    a, c, d = (n.conv(n.x, 16, 16) for _ in range(3))
    one, two = n.conv(n.join(a, c), 32, 16), n.conv(n.join(d, a), 32, 16)
    check(n.done(n.b.call("add", one, two)), 1)
