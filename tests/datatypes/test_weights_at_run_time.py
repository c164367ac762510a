"""Convolutions in formats whose weights come at run time: compiled as interpreted, bit for bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes

FORMATS = ("bfloat16", "posit16_es1", "float8_e4m3fn", "fixed16_8")


def module(
    fmt: str, x: tuple[int, ...], w: tuple[int, ...], bias: bool, attrs: Any,
    accumulate: str = "sequential",
) -> Any:  # fmt: skip
    b = compiler.FunctionBuilder()
    args = [b.param("x", x), b.param("w", w), *([b.param("b", w[:1])] if bias else [])]
    conv = b.call("nn.conv2d", *args, **attrs)
    return datatypes.change_dtype(
        compiler.IRModule({"main": b.finish(b.call("nn.relu", conv))}),
        "float32",
        fmt,
        accumulate=accumulate,
    )


def check(fmt: str, x: Any, w: Any, bias: bool, attrs: Any, seed: int = 0) -> str:
    random = np.random.default_rng(seed)
    shapes = [x, w, *([w[:1]] if bias else [])]
    arrays = [random.normal(0, 1, s).astype(np.float32) for s in shapes]
    mod = module(fmt, x, w, bias, attrs)
    wanted = compiler.evaluate(mod, *arrays)
    np.testing.assert_array_equal(compiler.build(mod)(*arrays), wanted)
    return str(compiler.optimize(mod).astext())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fmt", FORMATS)
def test_full_blocks_of_channels(fmt: str) -> None:
    text = check(fmt, (2, 16, 5, 7), (32, 16, 3, 3), True, {"padding": (1, 1, 1, 1)})
    assert 'out_layout="NCHW' in text


def test_lanes_go_along_channels_where_rows_skip_padding() -> None:
    """Of one input channel, a row of the image would be contiguous; but its ends skip padding."""
    attrs = {"padding": (1, 1, 1, 1)}
    check("posit16_es1", (2, 1, 5, 18), (16, 1, 3, 3), False, attrs)
    exe = compiler.build(module("posit16_es1", (2, 1, 5, 18), (16, 1, 3, 3), False, attrs))
    loops = [line for line in exe.as_text().splitlines() if line.strip().startswith("vector for")]
    assert any(".b" in line and line.strip().endswith(("in 8:", "in 16:")) for line in loops)
    assert "attempt:" in exe.as_text()


@pytest.mark.parametrize("accumulate", ["sequential", "float32"])
def test_channels_that_fill_no_block_are_lanes_too(accumulate: str) -> None:
    """Half a register of them: their tables are looked up as those of a whole."""
    half = compiler.Target.parse("llvm").block // 2
    attrs = {"padding": (1, 1, 1, 1), "strides": (2, 2)}
    check("posit16_es1", (3, 4, 7, 7), (half, 4, 3, 3), False, attrs)
    mod = module("posit16_es1", (3, 4, 7, 7), (half, 4, 3, 3), False, attrs, accumulate)
    text = compiler.build(mod).as_text()
    lanes = [line for line in text.splitlines() if line.strip().startswith("vector for mac.c")]
    assert any(line.strip().endswith(f"in {half}:") for line in lanes)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.thorough
def test_any_shape(data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from(FORMATS))
    inputs, outputs = (data.draw(st.sampled_from([1, 3, 8, 16, 32])) for _ in range(2))
    kernel = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    attrs = {
        "strides": data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "padding": data.draw(st.tuples(*[st.integers(0, 2)] * 4)),
        "dilation": data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
    }
    size = [data.draw(st.integers(5, 9)) for _ in range(2)]
    x, w = (data.draw(st.integers(1, 3)), inputs, *size), (outputs, inputs, *kernel)
    check(fmt, x, w, data.draw(st.booleans()), attrs, data.draw(st.integers(0, 9)))
