"""UseIntegers: what stands between dequantize and quantize becomes integer operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, IRModule, Var, tensor_type
from compiler.ir.verifier import verify
from compiler.transform.analysis import cost
from compiler.transform.use_integers import UseIntegers
from compiler.types.dtypes import Array

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


class Qdq:
    """Writes quantized models as QDQ models say them."""

    def __init__(self, seed: int = 0, dtype: str = "uint8"):
        self.rng, self.b, self.dtype = np.random.default_rng(seed), FunctionBuilder(), dtype

    def limits(self) -> dict[str, Any]:
        low, high = RANGES[self.dtype]
        return {"out_dtype": self.dtype, "qmin": low, "qmax": high}

    def zero(self) -> int:
        low, high = RANGES[self.dtype]
        return int(self.rng.integers(low + 64, high - 64))

    def scale(self, value: float) -> Atom:
        return self.b.const(np.float32(value))

    def data(self, *shape: int, name: str = "x") -> Atom:
        """A parameter that is dequantized."""
        q = self.b.param(name, shape, self.dtype)
        return self.b.call(
            "qnn.dequantize", q, self.scale(self.rng.uniform(0.01, 0.1)), zero_point=self.zero()
        )

    def weights(
        self, *shape: int, channels: bool = True, zero: int = 0, wide: bool = False
    ) -> Atom:
        dtype = np.uint8 if wide else np.int8
        info = np.iinfo(dtype)
        q = self.rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
        scales = self.rng.uniform(0.002, 0.02, shape[0] if channels else ()).astype(np.float32)
        return self.b.call(
            "qnn.dequantize", self.b.const(q), self.b.const(scales), axis=0, zero_point=zero
        )

    def bias(self, count: int) -> Atom:
        q = self.rng.integers(-2000, 2000, count).astype(np.int32)
        return self.b.call(
            "qnn.dequantize", self.b.const(q), self.b.const(np.float32(0.0005)), axis=0
        )

    def quantized(self, x: Atom, scale: float = 0.15, name: str = "") -> Atom:
        return self.b.call(
            "qnn.quantize", x, self.scale(scale), zero_point=self.zero(), name=name, **self.limits()
        )


def ops(mod: IRModule) -> list[str]:
    return [str(getattr(b.value, "op", "")) for b in mod.main.bindings]


def check(
    q: Qdq, *results: Atom, exact: bool = False, most: int = 1, share: float = 0.05
) -> IRModule:
    """Run the pass; the results are those of the floats but for a unit, compiled the same."""
    mod = IRModule({"main": q.b.finish(*results)})
    out = UseIntegers()(mod)
    verify(out)
    inputs = []
    for p in mod.main.params:
        t = tensor_type(p)
        info = np.iinfo(t.dtype.storage)
        drawn = q.rng.integers(info.min, info.max, t.static_shape, endpoint=True)
        inputs.append(drawn.astype(t.dtype.storage))
    want, got, native = (
        as_list(y)
        for y in (
            compiler.evaluate(mod, *inputs),
            compiler.evaluate(out, *inputs),
            compiler.build(out)(*inputs),
        )
    )
    for w, g, c in zip(want, got, native, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if g.dtype.kind == "f":
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)
            np.testing.assert_allclose(c, g, rtol=1e-5, atol=1e-5)
            continue
        apart = np.abs(g.astype(int) - w.astype(int))
        assert apart.max() <= (0 if exact else most)
        assert (apart > 0).mean() < share
        np.testing.assert_array_equal(c, g)
    return out


def as_list(y: Any) -> list[Array]:
    return list(y) if isinstance(y, list) else [y]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("activation", ["", "nn.relu", "clip"])
def test_convolutions_use_int32_accumulators(dtype: str, channels: bool, activation: str) -> None:
    q = Qdq(1, dtype)
    y = q.b.call(
        "nn.conv2d", q.data(2, 4, 7, 6), q.weights(6, 2, 3, 3, channels=channels), q.bias(6),
        padding=(1, 0, 1, 2), strides=(1, 2), groups=2,
    )  # fmt: skip
    if activation:
        bounds = {"a_min": -0.5, "a_max": 3.0} if activation == "clip" else {}
        y = q.b.call(activation, y, **bounds)
    out = check(q, q.quantized(y))
    assert ops(out) == ["nn.conv2d", "qnn.requantize"]
    assert cost(out).macs_by_dtypes == {f"{dtype} x int8": cost(out).macs}


@pytest.mark.parametrize("turned", [True, False])
def test_matrices_of_constants_are_dense_layers(turned: bool) -> None:
    q = Qdq(2)
    x = q.data(3, 5, 8)
    if turned:
        w = q.b.call("transpose", q.weights(8, 6, channels=False), axes=(1, 0))
        y = q.b.call("nn.dense", x, w)
    else:
        y = q.b.call("nn.matmul", x, q.weights(8, 6, channels=False))
    assert ops(check(q, q.quantized(y))) == ["nn.dense", "qnn.requantize"]


def test_products_of_two_activations() -> None:
    q = Qdq(3)
    y = q.b.call("nn.matmul", q.data(2, 3, 4, name="a"), q.data(2, 4, 5, name="b"))
    assert ops(check(q, q.quantized(y))) == ["nn.matmul", "qnn.requantize"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("zero", [0, 128, 77, 255])
def test_unsigned_weights_with_any_zero_point(zero: int) -> None:
    """Minus 128 they fit int8; otherwise they are sums of tensors that do."""
    q = Qdq(zero)
    w = q.weights(5, 3, 3, 3, zero=zero, wide=True)
    y = q.b.call("nn.conv2d", q.data(1, 3, 6, 6), w, q.bias(5), padding=(1, 1, 1, 1))
    out = check(q, q.quantized(y, 0.8))
    assert ops(out).count("nn.conv2d") == {0: 3, 128: 1}.get(zero, 2)


def test_results_that_stay_float_are_read_off_the_accumulator() -> None:
    q = Qdq(4)
    y = q.b.call("nn.dense", q.data(4, 9), q.weights(5, 9), q.bias(5))
    out = check(q, y, q.b.call("nn.softmax", y))
    assert ops(out) == ["nn.dense", "qnn.dequantize", "nn.softmax"]


def test_moves_sums_averages_and_concatenations() -> None:
    q = Qdq(5)
    a, c = q.data(2, 4, 6, 6, name="a"), q.data(2, 4, 6, 6, name="c")
    b = q.b
    total = b.call("nn.relu", b.call("add", a, c))
    both = b.call("concatenate", a, c, axis=1)
    mean = b.call("reshape", b.call("nn.global_avg_pool2d", a), newshape=(2, 4))
    pooled = b.call("nn.avg_pool2d", c, pool_size=(2, 2), padding=(1, 1, 0, 0))
    halves = b.call("split", b.call("transpose", a, axes=(0, 2, 3, 1)), sizes=(1, 3), axis=3)
    largest = b.call("nn.max_pool2d", c, pool_size=(3, 3), padding=(1, 1, 1, 1))
    padded = b.call("nn.pad", c, pad_width=((0, 0), (0, 0), (1, 1), (0, 1)), value=0.0)
    values = [total, both, mean, pooled, b.get(halves, 1), largest, padded]
    out = check(q, *(q.quantized(v, 0.09) for v in values))
    found = set(ops(out))
    assert {"qnn.add", "qnn.mean", "qnn.avg_pool2d", "nn.max_pool2d", "split"} <= found
    assert not {"qnn.quantize", "qnn.dequantize", "add", "nn.relu"} & found


def test_functions_of_one_value_are_tables() -> None:
    q = Qdq(6, "int8")
    x = q.data(3, 40)
    b = q.b
    bend = b.call("erf", b.call("divide", x, b.const(np.float32(1.414))))
    out = check(q, q.quantized(bend, 0.01), q.quantized(b.call("sigmoid", x), 1 / 256), exact=True)
    assert ops(out) == ["qnn.lookup"] * 2


def test_a_value_that_is_quantized_as_it_was_is_itself() -> None:
    b = FunctionBuilder()
    p = b.param("x", (4,), "uint8")
    scale = b.const(np.float32(0.1))
    real = b.call("qnn.dequantize", p, scale, zero_point=3)
    y = b.call("qnn.quantize", real, scale, zero_point=3, name="y")
    mod = UseIntegers()(IRModule({"main": b.finish(y, real)}))
    assert "qnn.requantize" not in ops(mod)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("data", "data is not dequantized"),
        ("weights", "weights are not dequantized"),
        ("bias", "bias does not fit"),
        ("pad", "not on the grid"),
    ],
)
def test_what_is_left_alone_says_why(spoil: str, reason: str) -> None:
    q = Qdq(7)
    x: Atom = q.b.param("f", (2, 8)) if spoil == "data" else q.data(2, 8)
    w: Atom = q.b.const(np.ones((4, 8), np.float32)) if spoil == "weights" else q.weights(4, 8)
    bias = q.b.const(np.full(4, 1e9 if spoil == "bias" else 1, np.float32))
    if spoil == "pad":
        y = q.b.call("nn.pad", x, pad_width=((0, 1), (0, 0)), value=0.0123, name="y")
    else:
        y = q.b.call("nn.dense", x, w, bias, name="y")
    mod = IRModule({"main": q.b.finish(q.quantized(y))})
    assert "qnn.quantize" in ops(UseIntegers()(mod))
    assert [str(r) for r in UseIntegers().explain(mod) if reason in str(r) and "%y" in str(r)]


def chained(q: Qdq, x: Atom, step: int) -> Atom:
    """What step number `step` makes of images."""
    c, call = int(tensor_type(x).static_shape[1]), q.b.call
    if step == 0:
        return call("nn.conv2d", x, q.weights(3, c, 1, 1), q.bias(3))
    if step == 1:
        return call("nn.relu", x)
    if step == 2:
        return call("add", x, x)
    if step == 3:
        return call("tanh", x)
    if step == 4:
        return call("concatenate", x, x, axis=1)
    if step == 5:
        return call("nn.max_pool2d", x, pool_size=(1, 2), padding=(0, 0, 0, 1))
    return call("nn.relu", call("nn.conv2d", x, q.weights(2, c, 1, 1)))


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), steps=st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_random_chains_agree(seed: int, steps: list[int]) -> None:
    q = Qdq(seed, ["uint8", "int8"][seed % 2])
    x: Atom = q.data(1, 4, 5, 5)
    last: Var | None = None
    for k, step in enumerate(steps):
        y = chained(q, x, step)
        last = q.quantized(y, 0.1, name=f"q{k}")
        zero = q.b.bindings[-1].value.attrs.zero_point
        x = q.b.call("qnn.dequantize", last, q.scale(0.1), zero_point=zero)
    assert last is not None
    # A unit of one layer is a few of the next one.
    check(q, last, most=4 ** len(steps), share=0.3)


def test_the_share_of_multiply_accumulates_in_integers_is_a_figure() -> None:
    q = Qdq(8)
    x = q.data(2, 8)
    y = q.b.call("nn.dense", x, q.weights(4, 8))
    other = q.b.call("nn.dense", x, q.b.const(np.ones((12, 8), np.float32)))
    mod = IRModule({"main": q.b.finish(q.quantized(y), other)})
    assert cost(mod).integer_share == 0
    assert cost(UseIntegers()(mod)).integer_share == 0.25
