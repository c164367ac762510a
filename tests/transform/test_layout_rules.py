"""A registered rule lays out convolutions whose weights are parameters, and what is around them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule
from compiler.transform import AlterOpLayout, PassContext, VerifyInstrument, layout_rules


@pytest.fixture(scope="module", autouse=True)
def rule() -> Iterator[None]:
    """Blocks of four channels, wherever they fit."""
    before = dict(layout_rules._rules)
    compiler.register_alter_op_layout(
        "nn.conv2d", lambda attrs, types, lanes, target: compiler.OpLayout(4, 4, 4)
    )
    yield
    layout_rules._rules.clear()
    layout_rules._rules.update(before)


def network(inputs: int, outputs: int, dtype: str, bias: bool, shape: tuple[int, ...]) -> IRModule:
    """A convolution with weights that are a parameter, and a constant added to its result."""
    b = FunctionBuilder()
    x = b.param("x", (2, inputs, 6, 5), dtype)
    args = [b.param("w", (outputs, inputs, 3, 3), "int8" if dtype == "uint8" else dtype)]
    out = "int32" if dtype == "uint8" else dtype
    if bias:
        args.append(b.param("bias", (outputs,), out))
    y = b.call("nn.conv2d", x, *args, out_dtype=out if dtype == "uint8" else "")
    sizes = [n if k else 1 for n, k in zip((2, outputs, 4, 3), shape, strict=True)]
    c = np.random.default_rng(1).integers(-9, 9, sizes).astype(out)
    return IRModule({"main": b.finish(b.call("add", y, Constant.of(c)))})


@pytest.mark.thorough
@settings(max_examples=12, deadline=None)
@given(
    inputs=st.sampled_from([3, 4, 8]),
    outputs=st.sampled_from([4, 6, 12]),
    dtype=st.sampled_from(["float32", "uint8"]),
    bias=st.booleans(),
    shape=st.tuples(*[st.integers(0, 1)] * 4),
)
def test_weights_that_are_parameters(
    inputs: int, outputs: int, dtype: str, bias: bool, shape: tuple[int, ...]
) -> None:
    mod = network(inputs, outputs, dtype, bias, shape)
    with PassContext(instruments=[VerifyInstrument()]):
        out = AlterOpLayout("llvm")(mod)
    fits = inputs % 4 == 0 and outputs % 4 == 0
    assert ("NCHW4c" in str(out)) == fits
    rng = np.random.default_rng(0)
    data = [
        rng.integers(0 if str(p.type.dtype) == "uint8" else -9, 9, p.type.shape).astype(
            p.type.dtype.storage
        )
        for p in mod.main.params
    ]
    want = compiler.evaluate(mod, *data)  # integers, which float32 holds: every order agrees
    assert np.array_equal(compiler.evaluate(out, *data), want)
    assert np.array_equal(compiler.build(mod)(*data), want)


def test_a_constant_is_laid_out_once_and_at_build_time() -> None:
    mod = network(4, 4, "float32", False, (0, 1, 1, 1))
    text = str(AlterOpLayout("llvm")(mod))
    assert text.count("layout_transform(meta[Constant][0]") == 1
    assert "layout_transform(meta" not in str(compiler.optimize(mod))
