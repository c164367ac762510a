"""SplitTransposed: transposed convolutions without zeros between their data, in the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import compiler
import quantize
from compiler.errors import DtypelabError
from compiler.ir.expr import Constant, IRModule
from compiler.ir.verifier import verify
from compiler.passes.rewrite import op_name
from compiler.transform import PassContext, Sequential, SplitTransposed
from compiler.types.dtypes import Array, custom
from datatypes import change_dtype

onnx = pytest.importorskip("onnx")
RNG = np.random.default_rng(0)


def transposed(
    data: tuple[int | str, ...], kernel: tuple[int, ...], weight: Array | None = None, **attrs: Any
) -> IRModule:
    """A transposed convolution and a relu."""
    from onnx import helper, numpy_helper

    w = RNG.normal(0, 0.3, kernel).astype(np.float32) if weight is None else weight
    bias = RNG.normal(0, 0.1, w.shape[1] * attrs.get("group", 1)).astype(np.float32)
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", **attrs),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    constants = [numpy_helper.from_array(a, n) for n, a in (("w", w), ("b", bias))]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, data)],
        [helper.make_empty_tensor_value_info("z")], constants,
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17)]
    return compiler.from_onnx(helper.make_model(graph, opset_imports=imports, ir_version=9))


def split(mod: IRModule) -> IRModule:
    """The module after the pass, which is valid."""
    made: IRModule = Sequential([SplitTransposed()], opt_level=2)(mod)
    verify(made)
    return made


def counts(mod: IRModule) -> tuple[int, int]:
    """How many convolutions there are, and how often something is padded."""
    names = [op_name(b.value) for b in mod.main.bindings]
    return names.count("nn.conv2d"), names.count("nn.pad")


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of data and kernel, and attributes."""
    axes = draw(st.sampled_from([1, 2, 2]))
    group = draw(st.sampled_from([1, 1, 2]))

    def numbers(least: int, most: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=axes, max_size=axes))

    data = (draw(st.integers(1, 2)), 2 * group, *numbers(1, 5))
    kernel = (2 * group, draw(st.integers(1, 3)), *numbers(1, 5))
    strides = numbers(1, 4)
    attrs: dict[str, Any] = {"strides": strides, "dilations": numbers(1, 3), "group": group}
    attrs["pads"] = numbers(0, 3) + numbers(0, 3)
    attrs["output_padding"] = [draw(st.integers(0, s - 1)) for s in strides]
    return data, kernel, attrs


def interpreted(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
    data, kernel, attrs = case
    try:
        mod = transposed(data, kernel, **attrs)
    except DtypelabError:
        assume(False)  # nothing is left between the pads
    x = RNG.normal(size=data).astype(np.float32)
    assert same_bits(compiler.evaluate(split(mod), x), compiler.evaluate(mod, x))


@settings(max_examples=3, deadline=None)
@given(cases())
def test_all_kinds_keep_their_bits(case: Any) -> None:
    interpreted(case)


@pytest.mark.thorough
@settings(max_examples=600, deadline=None)
@given(cases())
def test_many_kinds_keep_their_bits(case: Any) -> None:
    interpreted(case)


def compiled_alike(mod: IRModule, x: Array, oracle: bool) -> None:
    """Compiled with the pass and without, it gives the same bits, and where `oracle` those of the
    interpreter."""
    with PassContext(disabled_pass=["SplitTransposed"]):
        want = compiler.build(mod)(x)
    exe = compiler.build(mod)
    assert "interleave" in str(compiler.optimize(mod))
    got = exe(x)
    assert same_bits(got, want)
    if oracle:
        assert same_bits(got, compiler.evaluate(mod, x))


KINDS = [
    ((1, 16, 5, 7), (16, 16, 2, 2), {"strides": [2, 2]}),
    ((2, 6, 5, 4), (6, 5, 3, 3), {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
    ((1, 8, 6, 5), (8, 3, 4, 4), {"strides": [2, 2], "pads": [1] * 4, "group": 2}),
    ((1, 16, 4, 6), (16, 1, 4, 3), {"strides": [2, 1], "group": 16}),
    ((1, 4, 9), (4, 5, 6), {"strides": [3], "dilations": [2], "pads": [2, 3]}),
]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8", "posit8_es1", "float8_e4m3fn exact"])
def test_compiled(kind: Any, dtype: str) -> None:
    data, kernel, attrs = kind
    mod, x = transposed(data, kernel, **attrs), RNG.normal(size=data).astype(np.float32)
    name, *how = dtype.split()
    if dtype == "int8":
        mod = quantize.quantize(mod, [x])
    elif dtype != "float32":
        accumulate = {"accumulate": how[0]} if how else {}
        mod = change_dtype(mod, "float32", name, **accumulate)
    compiled_alike(mod, x, dtype != "float32")


@pytest.mark.thorough
def test_open_sizes() -> None:
    mod = transposed(("n", 4, "h", "w"), (4, 3, 4, 4), strides=[2, 2], pads=[1] * 4)
    assert counts(split(mod)) == (4, 0)
    exe = compiler.build(mod)
    for shape in ((1, 4, 2, 3), (2, 4, 7, 5)):
        x = RNG.normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(exe(x), compiler.evaluate(mod, x), rtol=1e-4, atol=1e-5)
        assert same_bits(compiler.evaluate(split(mod), x), compiler.evaluate(mod, x))


def test_what_follows_is_done_before() -> None:
    """Each element of a result is written twice: by its convolution, and where it belongs."""
    made = split(transposed((1, 4, 4, 4), (4, 4, 2, 2), strides=[2, 2]))
    names = [op_name(b.value) for b in made.main.bindings]
    assert names == ["nn.conv2d", "nn.relu"] * 4 + ["interleave"]


@pytest.mark.parametrize(
    ("kernel", "attrs", "convolutions"),
    [
        ((4, 3, 2, 2), {"strides": [3, 3]}, 1),  # some positions meet no tap
        ((4, 3, 3, 3), {}, 1),
        ((4, 3, 9, 9), {"strides": [9, 9]}, 1),  # 81
        ((4, 3, 8, 8), {"strides": [8, 8]}, 64),
        ((4, 3, 2, 2), {"strides": [2, 1]}, 2),
    ],
)
def test_what_is_split(kernel: tuple[int, ...], attrs: dict[str, Any], convolutions: int) -> None:
    assert counts(split(transposed((1, 4, 3, 3), kernel, **attrs)))[0] == convolutions


@pytest.mark.parametrize("mode", ["fma", '{format = "float32", chunk = 4}', "exact"])
def test_sums_that_go_by_the_number_of_their_terms_stay(mode: str) -> None:
    mod = transposed((1, 4, 3, 3), (4, 3, 2, 2), strides=[2, 2])
    mod = change_dtype(mod, "float32", "posit8_es1", accumulate=mode)
    assert counts(split(mod))[0] == (4 if mode == "exact" else 1)


@pytest.mark.parametrize("dtype", ["float8_e5m2", "posit8_es1"])
def test_weights_that_are_no_numbers_stay(dtype: str) -> None:
    """Products of them and zeros are no zeros."""
    weight = np.full((4, 3, 2, 2), 0.5, np.float32)
    finite = change_dtype(transposed((1, 4, 3, 3), (), weight, strides=[2, 2]), "float32", dtype)
    ((constant,),) = (
        [a for a in b.value.args if isinstance(a, Constant) and a.data.ndim == 4]
        for b in finite.main.bindings
        if op_name(b.value) == "nn.conv2d"
    )
    assert counts(split(finite))[0] == 4
    constant.data.setflags(write=True)
    constant.data[0, 0, 0, 0] = custom(dtype).encode(np.float64([np.nan]), constant.dtype)[0]
    assert counts(split(finite))[0] == 1


def test_zeros_that_are_none_stay() -> None:
    """Data with ones between, or that is cut where it is padded, is no transposed convolution."""
    from compiler.ir.builder import FunctionBuilder

    for value, pads, expected in ((0.0, (0, 0, 0, 0), 4), (1.0, (0, 0, 0, 0), 1)):
        b = FunctionBuilder()
        x = b.param("x", (1, 2, 3, 3))
        for axis in (2, 3):
            shape = [1, 2, 3, 3] if axis == 2 else [1, 2, 6, 3]
            wide = b.call("expand_dims", x, axes=(axis + 1,))
            width = tuple((0, int(k == axis + 1)) for k in range(5))
            wide = b.call("nn.pad", wide, pad_width=width, mode="constant", value=value)
            shape[axis] *= 2
            x = b.call("reshape", wide, newshape=tuple(shape))
        w = RNG.normal(size=(3, 2, 2, 2)).astype(np.float32)
        mod = IRModule({"main": b.finish(b.call("nn.conv2d", x, b.const(w), padding=pads))})
        made = split(mod)
        assert counts(made)[0] == expected
        data = RNG.normal(size=(1, 2, 3, 3)).astype(np.float32)
        assert same_bits(compiler.evaluate(made, data), compiler.evaluate(mod, data))
