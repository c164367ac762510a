"""The tutorial on Relax: a perceptron of any batch size, from ONNX to one executable."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import compiler
from compiler.codegen import cache

RNG = np.random.default_rng(0)
SIZES = [(128, 784), (64, 128), (10, 64)]


def exported() -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """The perceptron of the tutorial; the batch dimension is called d."""
    weights, nodes, last = [], [helper.make_node("Flatten", ["data"], ["flat"])], "flat"
    for k, (units, inputs) in enumerate(SIZES, 1):
        weights.append((RNG.standard_normal((units, inputs)) / inputs**0.5).astype(np.float32))
        weights.append(RNG.standard_normal(units).astype(np.float32))
        names = [last, f"fc{k}_weight", f"fc{k}_bias"]
        nodes.append(helper.make_node("Gemm", names, [f"fc{k}"], transB=1))
        last = f"act{k}"
        act = "Relu" if k < len(SIZES) else "Softmax"
        nodes.append(helper.make_node(act, [f"fc{k}"], [last]))
    names = [f"fc{k}_{what}" for k in (1, 2, 3) for what in ("weight", "bias")]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["d", 1, 28, 28])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["d", 10])],
        [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return model, weights


def expected(x: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    y = x.reshape(len(x), -1)
    for k in range(0, len(weights), 2):
        y = y @ weights[k].T + weights[k + 1]
        if k + 2 < len(weights):
            y = np.maximum(y, 0)
    e = np.exp(y - y.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


@pytest.mark.parametrize("kind", ["graph", "vm"])
def test_one_build_of_the_perceptron_serves_every_batch(kind: str) -> None:
    model, weights = exported()
    mod = compiler.from_onnx(model)
    text = mod.astext()
    assert "%data: Tensor[(d, 1, 28, 28), float32]" in text
    assert "-> Tensor[(d, 10), float32]" in text
    exe = compiler.create_executor(kind, mod).evaluate()
    stats, listed = exe.stats(), exe.as_text()
    print(stats, listed, sep="\n")
    assert "data: Tensor[(d, 1, 28, 28), float32] -> act3: Tensor[(d, 10), float32]" in stats
    assert "constants: " in stats
    if kind == "graph":
        assert "dimensions: d" in stats
        assert "bytes" in stats.split("workspace: ")[1].splitlines()[0]
    else:
        assert "bind r0: Tensor[(d, 1, 28, 28), float32]" in listed
        assert "r1 = run region0(r0)" in listed
    assert listed.count("dense") >= 3
    assert "input data" in listed
    compiled = cache.statistics()["compiled"]
    for batch in (1, 2, 64):
        x = RNG.random((batch, 1, 28, 28)).astype(np.float32)
        np.testing.assert_allclose(exe(x), expected(x, weights), rtol=1e-4, atol=1e-6)
    assert cache.statistics()["compiled"] == compiled
