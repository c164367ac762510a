"""Pools over open sizes, also over data that is smaller than the window: ONNX divides towards zero,
so that there is one window where it reaches beyond the data by less than a stride."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_models import assert_close, model, run_onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from open_nets import Net

import compiler
from compiler.errors import InputError

SIZES = st.tuples(st.integers(1, 7), st.integers(1, 7))


@st.composite
def pools(draw: st.DrawFn) -> onnx.ModelProto:
    """A pool of an open picture."""
    mean, ceil, opset = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([13, 19]))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    pads = [draw(st.integers(0, (k - 1) // 2)) for _ in range(2) for k in kernel]
    attrs = {
        "kernel_shape": kernel,
        "strides": draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
    }
    if mean:
        # Before opset 19, means that count padding took what is beyond it in, too.
        attrs["count_include_pad"] = int(opset == 19 and not ceil and draw(st.booleans()))
    op = "AveragePool" if mean else "MaxPool"
    node = helper.make_node(op, ["x"], ["y"], pads=pads, ceil_mode=int(ceil), **attrs)
    return model([node], {"x": ["n", 2, "h", "w"]}, ["y"], {}, opset=opset)


def check(proto: onnx.ModelProto, sizes: list[tuple[int, int]], build: bool) -> None:
    mod = compiler.from_onnx(proto)
    run = compiler.build(mod) if build else lambda x: compiler.evaluate(mod, x)
    for h, w in sizes:
        x = np.random.default_rng(h).normal(size=(1, 2, h, w)).astype(np.float32)
        try:
            (want,) = run_onnxruntime(proto, {"x": x})
        except (Fail, InvalidArgument, RuntimeException):  # a negative size
            want = np.empty(0)
        if not want.size:
            with pytest.raises(InputError, match="is too small"):
                run(x)
            continue
        assert_close(run(x), [want])
        known = compiler.from_onnx(proto, shapes={"x": x.shape})
        assert_close(compiler.evaluate(known, x), [want])


@settings(max_examples=12, deadline=None)
@given(pools(), st.lists(SIZES, min_size=3, max_size=3))
def test_pools_of_any_size(pool: onnx.ModelProto, sizes: list[tuple[int, int]]) -> None:
    check(pool, sizes, build=False)


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(pools(), st.lists(SIZES, min_size=4, max_size=4))
def test_compiled_pools_of_any_size(pool: onnx.ModelProto, sizes: list[tuple[int, int]]) -> None:
    check(pool, sizes, build=True)


def stages() -> onnx.ModelProto:
    """Pools one after the other, as a network for larger pictures has them."""
    net = Net()
    x = "x"
    for _ in range(3):
        x = net.op("Relu", net.conv(net.pool(x)))
    return net.proto(net.op("GlobalAveragePool", x))


@pytest.mark.parametrize(("h", "w"), [(1, 5), (16, 2)])
def test_pictures_smaller_than_all_strides(h: int, w: int) -> None:
    proto = stages()
    mod = compiler.from_onnx(proto)
    assert not compiler.assumptions(mod)
    x = np.random.default_rng(h).normal(size=(2, 2, h, w)).astype(np.float32)
    want = run_onnxruntime(proto, {"x": x})
    assert_close(compiler.evaluate(mod, x), want)
    text = mod.astext(show_meta_data=True)
    assert compiler.parse(text).astext(show_meta_data=True) == text


@pytest.mark.thorough
def test_compiled_pictures_smaller_than_all_strides() -> None:
    mod = compiler.from_onnx(stages())
    exe = compiler.build(mod)
    for h, w in ((1, 5), (16, 2), (9, 40)):
        x = np.random.default_rng(h).normal(size=(2, 2, h, w)).astype(np.float32)
        assert_close(exe(x), [compiler.evaluate(mod, x)])
