"""Integer accumulators of a given width: what they mean, and that compiled kernels compute it."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import TypeInferenceError
from compiler.interpret.loop_nests import run
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.accumulator_width import width
from compiler.op.library import get_op
from compiler.passes.manager import PassContext
from compiler.symbolic import Var as Dim
from compiler.tensor.builder import PrimBuilder
from compiler.types.dtypes import INT8, Array
from datatypes.proof.subject import runnable_targets

MODES = ("int10_wrap", "int16_wrap", "int12_saturate", "int16_saturate", "int20_saturate")
EVERY = (*MODES, "int2_saturate", "int8_wrap", "int24_wrap", "int32_wrap", "int32_saturate")


def held(total: int, mode: str) -> int:
    """The accumulator, as one says it: independent of `compiler.op.accumulator_width`."""
    bits, how = re.findall(r"int(\d+)_(\w+)", mode)[0]
    half = 2 ** (int(bits) - 1)
    if how == "saturate":
        return max(-half, min(total, half - 1))
    low = total & (2 * half - 1)
    return low - 2 * half if low >= half else low


def by_hand(x: Array, w: Array, bias: Array | None, zero: int, mode: str) -> Array:
    """[M, K] times [N, K], step by step in Python integers."""
    out = np.zeros((len(x), len(w)), np.int32)
    for m, n in np.ndindex(*out.shape):
        acc = 0
        for k in range(x.shape[1]):
            acc = held(acc + (int(x[m, k]) - zero) * int(w[n, k]), mode)
        out[m, n] = acc if bias is None else held(acc + int(bias[n]), mode)
    return out


@st.composite
def products(draw: st.DrawFn) -> tuple[Array, Array, Array | None, int]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n, k = (draw(st.integers(1, 9)), draw(st.integers(1, 20)), draw(st.integers(0, 60)))
    dtype = draw(st.sampled_from([np.uint8, np.int8]))
    info = np.iinfo(dtype)
    ends = draw(st.booleans())  # only the ends of the range: every step saturates
    x = rng.choice([info.min, info.max], (m, k)) if ends else rng.integers(
        info.min, info.max + 1, (m, k)
    )  # fmt: skip
    w = rng.choice([-128, 127], (n, k)) if ends else rng.integers(-128, 128, (n, k))
    bias = rng.integers(-(2**31), 2**31, n).astype(np.int32) if draw(st.booleans()) else None
    return x.astype(dtype), w.astype(np.int8), bias, int(draw(st.integers(info.min, info.max)))


def dense(x: Array, w: Array, bias: Array | None, zero: int, mode: str) -> IRModule:
    b = FunctionBuilder()
    given = [b.param("x", x.shape, str(x.dtype)), b.const(w)]
    given += [] if bias is None else [b.const(bias)]
    y = b.call("nn.dense", *given, out_dtype="int32", input_zero_point=zero, accumulate=mode)
    return IRModule({"main": b.finish(y)})


@pytest.mark.sampled(12)
@pytest.mark.parametrize("mode", EVERY)
def test_dense_accumulates_like_python_integers(mode: str) -> None:
    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(products())
    def check(case: tuple[Array, Array, Array | None, int]) -> None:
        mod = dense(*case, mode)
        want = by_hand(*case, mode)
        np.testing.assert_array_equal(compiler.evaluate(mod, case[0]), want)
        np.testing.assert_array_equal(compiler.build(mod)(case[0]), want)

    check()


@pytest.mark.parametrize("mode", ["int10_wrap", "int12_saturate"])
def test_matmul_accumulates_like_python_integers(mode: str) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.integers(0, 256, (5, 33)), rng.integers(-128, 128, (18, 33))
    x, w = x.astype(np.uint8), w.astype(np.int8)
    b = FunctionBuilder()
    p, q = b.param("x", x.shape, "uint8"), b.param("w", w.T.shape, "int8")
    y = b.call("nn.matmul", p, q, out_dtype="int32", accumulate=mode)
    mod = IRModule({"main": b.finish(y)})
    want = by_hand(x, w, None, 0, mode)
    np.testing.assert_array_equal(compiler.evaluate(mod, x, w.T.copy()), want)
    np.testing.assert_array_equal(compiler.build(mod)(x, w.T.copy()), want)


def test_saturating_goes_through_input_channels_rows_and_columns_in_order() -> None:
    """127 * 127 twice saturates 15 bits; what follows then starts from there."""
    x = np.full((1, 2, 1, 2), 127, np.int8)
    w = np.array([[[[127, 127]], [[-127, 0]]]], np.int8)
    b = FunctionBuilder()
    y = b.call(
        "nn.conv2d", b.param("x", x.shape, "int8"), b.const(w), out_dtype="int32",
        accumulate="int15_saturate",
    )  # fmt: skip
    mod = IRModule({"main": b.finish(y)})
    want = 2**14 - 1 - 127 * 127
    assert int(compiler.evaluate(mod, x)[0, 0, 0, 0]) == want
    assert int(compiler.build(mod)(x)[0, 0, 0, 0]) == want


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[IRModule, Array]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups, channels, outputs = draw(
        st.sampled_from([(1, 3, 16), (1, 17, 19), (1, 32, 8), (24, 24, 24), (2, 8, 12), (1, 1, 5)])
    )
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(st.tuples(*[st.integers(0, 2)] * 4))
    size = [k + draw(st.integers(0, 9)) for k in kernel]
    batch = draw(st.sampled_from([1, 2]))
    dtype = draw(st.sampled_from(["uint8", "int8"]))
    b = FunctionBuilder()
    x = b.param("x", (Dim("n") if draw(st.booleans()) else batch, channels, *size), dtype)
    shape = (outputs, channels // groups, *kernel)
    weight = b.const(rng.integers(-128, 128, shape).astype(np.int8))
    given = [x, weight]
    if draw(st.booleans()):
        given.append(b.const(rng.integers(-9999, 9999, outputs).astype(np.int32)))
    zero = draw(st.integers(-128, 127)) + 128 * (dtype == "uint8")
    y = b.call(
        "nn.conv2d", *given, strides=draw(st.tuples(*[st.integers(1, 2)] * 2)), padding=padding,
        dilation=draw(st.tuples(*[st.integers(1, 2)] * 2)) if kernel == (1, 1) else (1, 1),
        groups=groups, out_dtype="int32", input_zero_point=zero,
        accumulate=draw(st.sampled_from(MODES)),
    )  # fmt: skip
    if draw(st.booleans()):
        scale = b.const(rng.uniform(1e-3, 3e-2, outputs).astype(np.float32))
        y = b.call("qnn.requantize", y, scale, output_zero_point=9, out_dtype="uint8")
    data = rng.integers(0, 256, (batch, channels, *size)).astype(np.uint8).view(dtype)
    return IRModule({"main": b.finish(y)}), data


@pytest.mark.thorough
@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_convolutions_of_a_width_equal_the_interpreter_on_every_instruction_set(count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(convolutions())
    def check(case: tuple[IRModule, Array]) -> None:
        mod, data = case
        want = compiler.evaluate(mod, data)
        for target in runnable_targets():
            got = compiler.build(mod, target=target)(data)
            np.testing.assert_array_equal(got, want, err_msg=target)
        with PassContext(config={"AlterOpLayout.block": 4}):
            np.testing.assert_array_equal(compiler.build(mod)(data), want, err_msg="NCHW4c")

    check()


def test_the_interpreter_of_loop_nests_saturates_too() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.choice([-128, 127], s).astype(np.int8) for s in ((3, 20), (7, 20)))
    op = get_op("nn.dense")
    attrs = op.make_attrs(out_dtype="int32", accumulate="int16_saturate")
    b = PrimBuilder("dense")
    out = op.lower(b, attrs, b.input("x", x.shape, INT8), b.input("w", w.shape, INT8))
    func = b.finish([out])
    got = np.zeros((3, 7), np.int32)
    run(func, [x, w, got])
    np.testing.assert_array_equal(got, by_hand(x, w, None, 0, "int16_saturate"))
    assert "sat16=" in str(func)


def test_a_wrapping_accumulator_keeps_the_dot_product_instruction() -> None:
    if compiler.Target.parse("llvm").isa not in ("avx512_vnni", "avx_vnni"):
        pytest.skip("this machine has no dot product instruction")
    x, w = np.zeros((16, 64), np.uint8), np.ones((32, 64), np.int8)
    text = compiler.build(dense(x, w, None, 3, "int16_wrap")).as_text()
    assert "vpdpbusd" in text or "tdpbusd" in text


@pytest.mark.parametrize("mode", ["int1_wrap", "int33_wrap", "int016_wrap", "int16_clip", "int16"])
def test_other_names_are_no_width(mode: str) -> None:
    assert width(mode) is None
    with pytest.raises(TypeInferenceError, match=r"unknown accumulation.*int<N>_wrap"):
        dense(np.zeros((1, 1), np.int8), np.zeros((1, 1), np.int8), None, 0, mode)


def test_a_width_is_for_products_of_bytes_in_int32() -> None:
    b = FunctionBuilder()
    wide = b.param("x", (2, 3), "int32")
    with pytest.raises(TypeInferenceError, match="products of 8-bit integers"):
        b.call("nn.dense", wide, wide, out_dtype="int32", accumulate="int16_wrap")
    floats = b.param("y", (2, 3), "float32")
    with pytest.raises(TypeInferenceError, match="products of 8-bit integers"):
        b.call("nn.dense", floats, floats, accumulate="int16_saturate")
    with pytest.raises(TypeInferenceError, match="products of 8-bit integers"):
        b.call("sum", wide, accumulate="int16_saturate")
