"""Recurrent networks whose length, batch or lengths of sequences are known at run time only."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import assert_close, model, run_onnxruntime

import compiler
from compiler.errors import InputError
from compiler.frontend import converters_recurrent

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
INPUTS, HIDDEN = 2, 3


def network(
    op: str, direction: str, lengths: bool, start: bool, steps: Any = "t", **attrs: Any
) -> onnx.ModelProto:
    """One layer over x [steps, batch, 2], with all its results."""
    rng = np.random.default_rng(len(op + direction))
    count, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    weights = {
        "w": rng.normal(size=(count, gates * HIDDEN, INPUTS)).astype(np.float32),
        "r": rng.normal(size=(count, gates * HIDDEN, HIDDEN)).astype(np.float32),
        "b": rng.normal(size=(count, 2 * gates * HIDDEN)).astype(np.float32),
    }
    shapes: dict[str, list[Any]] = {"x": [steps, "n", INPUTS]}
    if lengths:
        shapes["lengths"] = ["n"]
    if start:
        shapes["h"] = [count, "m", HIDDEN]
    operands = ["x", "w", "r", "b", "lengths" if lengths else "", "h" if start else ""]
    outputs = ["y", "last", "cell"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(
        op, operands, outputs, name="layer", direction=direction, hidden_size=HIDDEN, **attrs
    )
    return model([node], shapes, outputs, weights, dtypes={"lengths": TensorProto.INT32})


def values(proto: onnx.ModelProto, steps: int, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(steps)
    out: dict[str, np.ndarray] = {}
    for i in proto.graph.input:
        if i.name == "lengths":
            out[i.name] = rng.integers(0, steps + 1, batch).astype(np.int32)
        else:
            size = (steps, batch, INPUTS)
            if i.name == "h":
                size = (i.type.tensor_type.shape.dim[0].dim_value, batch, HIDDEN)
            out[i.name] = rng.normal(size=size).astype(np.float32)
    return out


CASES = list(product(GATES, ("forward", "reverse", "bidirectional"), (False, True), (False, True)))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_open_lengths_give_what_onnxruntime_gives(case: tuple[Any, ...]) -> None:
    proto = network(*case)
    mod = compiler.from_onnx(proto)
    compiler.verify(mod)
    assert len(compiler.assumptions(mod)) == case[3]  # n = m
    for steps, batch in ((4, 2), (7, 3), (1, 1)):
        x = values(proto, steps, batch)
        for got, want in zip(compiler.evaluate(mod, **x), run_onnxruntime(proto, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_compiled_layers_give_the_reference(op: str) -> None:
    proto = network(op, "bidirectional", True, True)
    mod = compiler.from_onnx(proto)
    exe = compiler.build(mod)
    for steps, batch in ((5, 2), (2, 3)):
        x = values(proto, steps, batch)
        for got, want in zip(exe(**x), compiler.evaluate(mod, **x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    wrong = {**x, "h": x["h"][:, :1]}
    with pytest.raises(InputError, match=rf"does not fit: node 'layer' \({op}\)"):
        exe(**wrong)


def test_a_loop_is_what_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = network("LSTM", "bidirectional", False, True, steps=5)
    written = compiler.from_onnx(proto)
    monkeypatch.setattr(converters_recurrent, "MOST_STEPS", 4)
    looped = compiler.from_onnx(proto)
    assert "loop" in looped.astext()
    assert "loop" not in written.astext()
    x = values(proto, 5, 2)
    for a, b in zip(compiler.evaluate(looped, **x), compiler.evaluate(written, **x), strict=True):
        np.testing.assert_array_equal(a, b)


def tagger(direction: str = "bidirectional") -> onnx.ModelProto:
    """Words by number, batch first, embedded, a bidirectional LSTM, a label for each."""
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.normal(size=(11, INPUTS)),
        "w": rng.normal(size=(2, 4 * HIDDEN, INPUTS)),
        "r": rng.normal(size=(2, 4 * HIDDEN, HIDDEN)),
        "out": rng.normal(size=(2 * HIDDEN, 5)),
    }
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["embedded"]),
        helper.make_node("Transpose", ["embedded"], ["first"], perm=[1, 0, 2]),
        helper.make_node(
            "LSTM", ["first", "w", "r"], ["states"], direction=direction, hidden_size=HIDDEN
        ),
        helper.make_node("Transpose", ["states"], ["moved"], perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["moved", "shape"], ["both"]),
        helper.make_node("MatMul", ["both", "out"], ["scores"]),
        helper.make_node("LogSoftmax", ["scores"], ["labels"], axis=-1),
    ]
    given = {k: v.astype(np.float32) for k, v in weights.items()}
    given["shape"] = np.array([0, 0, 2 * HIDDEN])
    shapes = {"words": ["batch", "length"]}
    return model(nodes, shapes, ["labels"], given, dtypes={"words": TensorProto.INT64})


def test_a_tagger_of_sentences_of_any_length() -> None:
    proto = tagger()
    mod = compiler.from_onnx(proto)
    assert compiler.assumptions(mod) == ()
    exe = compiler.build(mod)
    for batch, length in ((2, 6), (1, 9)):
        words = {"words": np.random.default_rng(length).integers(0, 11, (batch, length))}
        want = run_onnxruntime(proto, words)
        assert_close(exe(**words), want)
        assert_close(compiler.evaluate(mod, **words), want)
