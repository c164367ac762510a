"""onnxruntime's operators that stand for several, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contrib import agrees, contrib, normal
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import InputError, ModelError, UnsupportedError
from compiler.types.dtypes import Array


def operators(mod: compiler.IRModule) -> list[str]:
    return [str(b.value.op) for b in mod.main.bindings if isinstance(b.value, compiler.Call)]


@pytest.mark.parametrize("op", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
@pytest.mark.parametrize("bias", [False, True])
def test_activations(op: str, bias: bool) -> None:
    if bias != (op == "BiasGelu") and op != "FastGelu":
        return
    x = {"x": normal(0, 2, 3, 8, scale=3)} | ({"b": normal(1, 8)} if bias else {})
    agrees(op == "FastGelu", *contrib(op, x, **({"alpha": 1.5} if op == "QuickGelu" else {})))


@settings(max_examples=8, deadline=None)
@given(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2), st.integers(1, 9))
def test_norms_of_sums(simplified: bool, bias: bool, both: bool, skipped: int, size: int) -> None:
    op = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    shape = ((2, 3, size), (1, 3, size), (3, size))[skipped]
    operands: dict[str, Array | None] = {
        "x": normal(0, 2, 3, size), "skip": normal(1, *shape), "gain": normal(2, size) + 1,
    }  # fmt: skip
    if not simplified:
        operands["offset"] = normal(3, size)
    if bias:
        operands["bias"] = normal(4, size)
    outputs = ["y", "", "", "total"] if both else ["y"]
    stored = ["gain", "offset"][: 2 - simplified]
    mod = agrees(size < 3, *contrib(op, operands, outputs, epsilon=1e-3, weights=stored))
    assert ("nn.rms_norm" if simplified else "nn.layer_norm") in operators(mod)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_simplified_layer_norm(domain: str) -> None:
    x = {"x": normal(0, 2, 3, 8), "gain": normal(1, 8)}
    proto, arrays = contrib(
        "SimplifiedLayerNormalization", x, domain=domain, weights=["gain"], axis=-1, epsilon=1e-5
    )
    if not domain:
        agrees(True, proto, arrays)
    assert operators(compiler.from_onnx(proto)) == ["nn.rms_norm"]


def test_shorter_floats_are_normalized_in_float32() -> None:
    x = {"x": normal(0, 2, 3, 8, scale=300).astype(np.float16), "gain": np.ones(8, np.float16)}
    proto, arrays = contrib("SimplifiedLayerNormalization", x, domain="", axis=-1)
    got = compiler.build(compiler.from_onnx(proto))(**arrays)
    wide = arrays["x"].astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=1e-3)


def embedded(segments: bool, mask: bool, given: bool, length: Any = 5) -> Any:
    ids = np.random.default_rng(0).integers(0, 7, (2, 5)).astype(np.int32)
    size = 6
    operands: dict[str, Array | None] = {
        "ids": ids, "segments": (ids % 2).astype(np.int32) if segments else None,
        "words": normal(1, 7, size), "places": normal(2, 9, size),
        "kinds": normal(3, 2, size) if segments else None,
        "gain": normal(4, size), "offset": normal(5, size),
        "mask": (np.arange(5) < [[3], [5]]).astype(np.int32) if mask else None,
        "at": np.arange(4, -1, -1, dtype=np.int32)[None].repeat(2, 0) if given else None,
    }  # fmt: skip
    weights = [k for k in ("words", "places", "kinds", "gain", "offset") if operands[k] is not None]
    shapes = {k: ["b", length] for k in ("ids", "segments", "mask", "at")}
    return contrib("EmbedLayerNormalization", operands, ["y", "count", "sum"], weights=weights,
                   shapes=shapes, epsilon=1e-6)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_embeddings(segments: bool, mask: bool, given: bool) -> None:
    agrees(given, *embedded(segments, mask, given, "s"))


def test_words_without_segments_are_of_the_first() -> None:
    """With a table of segments; without one, segments say nothing."""
    ids = np.random.default_rng(0).integers(0, 7, (2, 5)).astype(np.int32)
    operands: dict[str, Array | None] = {
        "ids": ids, "segments": None, "words": normal(1, 7, 6), "places": normal(2, 9, 6),
        "kinds": normal(3, 2, 6), "gain": normal(4, 6), "offset": normal(5, 6),
    }  # fmt: skip
    agrees(True, *contrib("EmbedLayerNormalization", operands, ["y", "count"]))


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    proto, _ = embedded(False, False, False, "s")
    exe = compiler.build(compiler.from_onnx(proto))
    with pytest.raises(InputError, match=r"the_node.*an axis of length 9"):
        exe(ids=np.zeros((1, 10), np.int32))
    with pytest.raises(ModelError, match=r"no position 11 along an axis of length 9"):
        compiler.from_onnx(proto, shapes={"ids": (1, 12)})


def test_statistics_of_training_are_refused() -> None:
    operands = {"x": normal(0, 2, 3, 4), "skip": normal(1, 2, 3, 4), "gain": normal(2, 4)}
    proto, _ = contrib("SkipSimplifiedLayerNormalization", operands, ["y", "mean"])
    with pytest.raises(UnsupportedError, match=r"'the_node'.*output 1 .*training"):
        compiler.from_onnx(proto)
