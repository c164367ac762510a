"""QONNX models imported: what they compute, by QONNX's definitions written out in numpy, and by the
qonnx package where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.errors import UnsupportedError
from compiler.ir.expr import IRModule
from compiler.transform.analysis import cost
from compiler.types.dtypes import Array

onnx = pytest.importorskip("onnx")
GENERAL = "qonnx.custom_op.general"


def rounding_node(op: str, *inputs: Any, x: Array, domain: str = GENERAL, **attrs: Any) -> Any:
    """A model of one node whose first operand is the input x."""
    from onnx import helper, numpy_helper

    names = ["x"]
    stored = []
    for k, value in enumerate(inputs):
        stored.append(numpy_helper.from_array(np.asarray(value, np.float32), f"c{k}"))
        names.append(f"c{k}")
    node = helper.make_node(op, names, ["y"], domain=domain, **attrs)
    kind = onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, x.shape) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], stored)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def quantized(x: Array, scale: Array, zero: float, bits: int, **attrs: Any) -> Array:
    """Quant, by its definition."""
    signed, narrow = attrs["signed"], attrs["narrow"]
    half = 2 ** (bits - 1)
    low, high = (-half + narrow, half - 1) if signed else (0, 2 * half - 1 - narrow)
    q = np.clip((x / scale).astype(np.float32) + np.float32(zero), low, high)
    q = {"ROUND": np.rint, "CEIL": np.ceil, "FLOOR": np.floor}[attrs["rounding_mode"]](q)
    return np.asarray((q - np.float32(zero)) * scale, np.float32)


def both(model: Any, x: Array) -> Array:
    """What a model computes, compiled as interpreted."""
    mod = compiler.from_onnx(model)
    got = np.asarray(compiler.build(mod)(x))
    np.testing.assert_array_equal(got, compiler.evaluate(mod, x))
    return got


@given(st.data())
@settings(max_examples=6, deadline=None)
def test_quant_is_what_it_is_defined_to_be(data: st.DataObject) -> None:
    draw = data.draw
    bits = draw(st.integers(2, 12))
    signed = draw(st.booleans())
    attrs = {
        "signed": int(signed),
        "narrow": draw(st.integers(0, 1)),
        "rounding_mode": draw(st.sampled_from(["ROUND", "CEIL", "FLOOR"])),
    }
    channels = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = (1, 3, 1, 1) if channels else ()
    scale = np.asarray(2.0 ** rng.integers(-4, 3, shape), np.float32)
    zero = 0 if signed else draw(st.sampled_from([0, 2, 2 ** (bits - 1)]))
    x = rng.normal(0, 2.0**bits / 3, (2, 3, 5, 4)).astype(np.float32)
    x = np.where(rng.random(x.shape) < 0.3, np.rint(x * 2) / 2, x).astype(np.float32) * scale
    want = quantized(x, scale, zero, bits, **attrs)
    op = draw(st.sampled_from(["Quant", "IntQuant"]))
    got = both(rounding_node(op, scale, zero, bits, x=x, **attrs), x)
    if zero and attrs["rounding_mode"] == "ROUND":  # x / s + z may round once more
        assert (got != want).mean() < 0.01
        assert np.abs((got - want) / scale).max() <= 1
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("zero", [0, 4])
def test_the_qonnx_package_says_the_same(zero: int) -> None:
    module = pytest.importorskip("qonnx.custom_op.general.intquant")
    x = np.linspace(-9, 9, 289, dtype=np.float32).reshape(1, 289)
    for bits, signed, narrow in ((4, 1, 1), (8, 1, 0), (3, 0, 0), (8, 0, 1)):
        numbers = (np.float32(v) for v in (0.25, zero, bits))
        want = module.int_quant(x, *numbers, signed, narrow, "ROUND")
        attrs = {"signed": signed, "narrow": narrow, "rounding_mode": "ROUND"}
        model = rounding_node("Quant", 0.25, zero, bits, x=x, **attrs)
        np.testing.assert_array_equal(both(model, x), want)


@pytest.mark.parametrize("domain", [GENERAL, "onnx.brevitas"])
def test_bipolar_quant_gives_the_sign_times_a_scale(domain: str) -> None:
    x = np.asarray([[-2.0, -0.0, 0.0, 0.5]], np.float32)
    got = both(rounding_node("BipolarQuant", 0.75, x=x, domain=domain), x)
    np.testing.assert_array_equal(got, [[-0.75, 0.75, 0.75, 0.75]])
    one = both(rounding_node("Quant", 0.75, 0, 1, x=x, signed=1, narrow=0), x)
    np.testing.assert_array_equal(one, got)


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("float8_e4m3fn", (4, 3, 7, 448.0)),
        ("float8_e5m2", (5, 2, 15, 57344.0)),
        ("float6_e3m2fn", (3, 2, 3, 28.0)),
        ("float4_e2m1fn", (2, 1, 1, 6.0)),
    ],
)
def test_float_quant_is_a_registered_format(name: str, widths: tuple[float, ...]) -> None:
    high = widths[-1]
    spread = np.linspace(-1.3, 1.3, 501)
    x = (np.concatenate([spread, spread / 64, spread / 999]) * high)[None].astype(np.float32)
    flags = {"has_inf": 0, "has_nan": 0, "has_subnormal": 1, "saturation": 1}
    got = both(rounding_node("FloatQuant", 0.5, *widths, x=x, **flags), x)
    clipped = np.clip(x / np.float32(0.5), -high, high)
    want = datatypes.decode(name, datatypes.encode(name, clipped)) * 0.5
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("Quant", (1, 0.5, 8), {}, "zero point of 0.5; both must be integers"),
        ("Quant", (1, 0, 8), {"rounding_mode": "HALF_DOWN"}, "rounding_mode HALF_DOWN; supported"),
        ("Quant", (1, 0, [4, 8]), {}, "a bit width that differs"),
        ("FloatQuant", (1, 4, 3, 7, 480.0), {}, "up to 480, which is no registered format"),
        ("FloatQuant", (1, 4, 3, 7, 448.0), {"saturation": 0}, "supported: ROUND, saturating"),
        ("Trunc", (1, 0, 8, 4), {}, "unsupported operators.*Trunc"),
    ],
)
def test_what_is_not_supported_is_named(
    op: str, inputs: tuple[Any, ...], attrs: dict[str, Any], message: str
) -> None:
    x = np.zeros((1, 2), np.float32)
    given = {"signed": 1, "narrow": 0, **attrs} if op == "Quant" else attrs
    with pytest.raises(UnsupportedError, match=message):
        compiler.from_onnx(rounding_node(op, *inputs, x=x, **given))


def brevitas_like() -> tuple[Any, IRModule]:
    """Input, weights and result of a layer quantized, as Brevitas exports one."""
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(2)
    constants = {
        "w": rng.normal(0, 0.3, (6, 9)).astype(np.float32),
        "ws": np.full((6, 1), 2.0**-5, np.float32),
        "s": np.float32(2.0**-3),
        "zero": np.float32(0),
        "four": np.float32(4),
        "eight": np.float32(8),
        "b": np.linspace(-1, 1, 6, dtype=np.float32),
    }
    narrow, wide = ({"signed": 1, "narrow": k, "rounding_mode": "ROUND"} for k in (1, 0))
    nodes = [
        helper.make_node("Quant", ["x", "s", "zero", "eight"], ["xq"], domain=GENERAL, **wide),
        helper.make_node("Quant", ["w", "ws", "zero", "four"], ["wq"], domain=GENERAL, **narrow),
        helper.make_node("Gemm", ["xq", "wq", "b"], ["y"], transB=1),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node(
            "Quant", ["r", "s", "zero", "four"], ["z"], domain=GENERAL,
            signed=0, narrow=0, rounding_mode="ROUND",
        ),
    ]  # fmt: skip
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, ["n", 9])],
        [helper.make_tensor_value_info("z", kind, ["n", 6])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(GENERAL, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    return constants, compiler.from_onnx(model)


def test_layers_between_quants_are_computed_on_integers() -> None:
    c, mod = brevitas_like()
    assert cost(mod).integer_share == 1
    x = np.random.default_rng(0).normal(0, 4, (5, 9)).astype(np.float32)
    attrs = {"signed": 1, "rounding_mode": "ROUND"}
    xq = quantized(x, c["s"], 0, 8, narrow=0, **attrs)
    wq = quantized(c["w"], c["ws"], 0, 4, narrow=1, **attrs)
    y = np.maximum(xq @ wq.T + c["b"], 0)
    want = quantized(y, c["s"], 0, 4, signed=0, narrow=0, rounding_mode="ROUND")
    got = compiler.build(mod)(x)
    apart = np.abs(got - want) / c["s"]
    assert apart.max() <= 1  # the bias is an integer there
    assert (apart > 0).mean() < 0.1
    np.testing.assert_array_equal(got, compiler.evaluate(mod, x))
