"""Attributes that are left out, and operands that exporters seldom write."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import check, model

from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate

OPSET = 20
VECTOR = ("s", "s", "s", "v")
ATTRIBUTES = [
    ("LeakyRelu", "alpha", ()), ("HardSigmoid", "alpha", ()), ("HardSigmoid", "beta", ()),
    ("Elu", "alpha", ()), ("ThresholdedRelu", "alpha", ()),
    ("Shrink", "lambd", ()), ("Selu", "alpha", ()), ("Selu", "gamma", ()),
    ("BatchNormalization", "epsilon", VECTOR), ("InstanceNormalization", "epsilon", VECTOR[:2]),
    ("LayerNormalization", "epsilon", ("t",)), ("Gemm", "alpha", ("t",)), ("Gemm", "beta", ("t",)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attribute", "more"), ATTRIBUTES)
def test_a_default_is_the_number_that_the_schema_has(
    op: str, attribute: str, more: tuple[str, ...]
) -> None:
    """It is one of float32: 1e-5 of float64 is another."""
    default = onnx.defs.get_schema(op, OPSET, "").attributes[attribute].default_value.f
    rng = np.random.default_rng(0)
    shape = (4, 4) if op in ("Gemm", "LayerNormalization") else (2, 4, 5)
    x = rng.normal(0, 1, shape)
    weights = {"s": rng.normal(0, 1, 4), "v": rng.uniform(0.5, 2, 4), "t": rng.normal(0, 1, (4, 4))}
    if op == "LayerNormalization":
        weights["t"] = weights["s"]

    def result(**attrs: float) -> np.ndarray:
        node = helper.make_node(op, ["x", *more], ["y"], **attrs)
        used = {n: weights[n] for n in set(more)}
        doubles = {"x": onnx.TensorProto.DOUBLE}
        return evaluate(from_onnx(model([node], {"x": shape}, ["y"], used, OPSET, doubles)), x)

    np.testing.assert_array_equal(result(), result(**{attribute: default}))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_integers_are_resized_by_fractions(dtype: type[np.integer]) -> None:
    x = np.arange(60).reshape(1, 3, 4, 5).astype(dtype)
    scales = np.float32([1, 1, 4, 2])
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    code = {"x": helper.np_dtype_to_tensor_dtype(x.dtype)}
    check(model([node], {"x": x.shape}, ["y"], {"scales": scales}, 18, code), {"x": x})


@pytest.mark.parametrize("shape", [(5,), (1, 5), (4, 1), (1, 1)])
def test_scales_of_a_layer_norm_that_broadcast(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, s = (rng.normal(0, 1, k).astype(np.float32) for k in ((3, 4, 5), shape))
    node = helper.make_node("LayerNormalization", ["x", "s", "s"], ["y"], axis=1)
    check(model([node], {"x": x.shape}, ["y"], {"s": s}, 17), {"x": x})


@pytest.mark.parametrize(("opset", "dtype"), [(9, "float32"), (11, "bool"), (13, "bool")])
def test_the_mask_of_dropout_has_the_dtype_of_its_opset(opset: int, dtype: str) -> None:
    node = helper.make_node("Dropout", ["x"], ["y", "mask"])
    mod = from_onnx(model([node], {"x": [3]}, ["y", "mask"], opset=opset))
    mask = evaluate(mod, np.float32([1, 2, 3]))[1]
    assert mask.dtype == dtype
    assert mask.all()
