"""onnxruntime's own operators on quantized data, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import model, run_onnxruntime
from seven_bits import seven_bits

from compiler.build import build
from compiler.errors import ModelError, UnsupportedError
from compiler.frontend.converters_microsoft import DOMAIN, INPUTS
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate
from experiments import zoo
from experiments.data import datasets

_rng = np.random.default_rng(5)


def integers(dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return _rng.integers(info.min, info.max + 1, shape).astype(dtype)


def real(value: float) -> np.ndarray:
    return np.float32(value).reshape(())


U, S = np.uint8, np.int8
X, Y, IMAGE = integers(U, 2, 3, 8), integers(U, 3, 1), integers(U, 2, 3, 6, 5)
POOL = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}


def grid(scale: float, zero_point: int, dtype: Any = U) -> tuple[np.ndarray, np.ndarray]:
    return real(scale), np.asarray(zero_point, dtype)


def packed(bits: int, zeros: bool, n: int = 8, k: int = 80, block: int = 32) -> tuple[Any, ...]:
    count = -(-k // block)
    weights = integers(U, n, count, block * bits // 8)
    scales = _rng.uniform(0.01, 0.1, n * count).astype(np.float32)
    x = _rng.standard_normal((3, k)).astype(np.float32)
    more = (integers(U, n, -(-count * bits // 8)).reshape(-1),) if zeros else ()
    return (x, weights, scales, *more)


def lstm(steps: int, directions: int, batch: int = 1, dtype: Any = U, channel: bool = False,
         state: bool = False) -> tuple[Any, ...]:  # fmt: skip
    """Operands of an LSTM of 5 inputs and 4 states; those that are left out are None."""
    hidden, inputs = 4, 5
    x = _rng.standard_normal((steps, batch, inputs)).astype(np.float32)
    shape = (directions, 4 * hidden) if channel else (directions,)

    def quantized(rows: int) -> tuple[Any, Any, Any]:
        zero = np.full(shape, 128 if dtype is U else 0, dtype)
        scale = _rng.uniform(0.002, 0.006, shape).astype(np.float32)
        size = (directions, rows, 4 * hidden)
        return integers(U, *size) if dtype is U else seven_bits(integers(dtype, *size)), scale, zero

    w, ws, wz = quantized(inputs)
    r, rs, rz = quantized(hidden)
    bias = _rng.uniform(-0.5, 0.5, (directions, 8 * hidden)).astype(np.float32)
    start = _rng.uniform(-1, 1, (directions, batch, hidden)).astype(np.float32)
    held = (start, start / 2) if state else (None, None)
    return (x, w, r, bias, None, *held, None, ws, wz, rs, rz)


LSTMS: dict[str, tuple[tuple[int, int], dict[str, Any], dict[str, Any]]] = {
    "uint8": ((3, 1), {}, {"hidden_size": 4}),
    "int8": ((4, 1), {"dtype": S, "state": True}, {"hidden_size": 4}),
    "channel": ((3, 1), {"channel": True, "dtype": S}, {"hidden_size": 4, "direction": "reverse"}),
    "both": ((3, 2), {"state": True}, {"hidden_size": 4, "direction": "bidirectional"}),
}

# operator, operands (the first array is the input), attributes, result's dtype is float or not
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "add": ("QLinearAdd", (X, *grid(0.02, 120), Y, *grid(0.05, 9), *grid(0.06, 100)), {}),
    "add_int8": ("QLinearAdd", (integers(S, 4, 5), *grid(0.02, -3, S), integers(S, 4, 5),
                                *grid(0.07, 9, S), *grid(0.06, 2, S)), {}),
    "mul": ("QLinearMul", (X, *grid(0.02, 120), Y, *grid(0.05, 9), *grid(0.11, 100)), {}),
    "sigmoid": ("QLinearSigmoid", (X, *grid(0.05, 128), *grid(1 / 256, 0)), {}),
    "softmax": ("QLinearSoftmax", (integers(U, 4, 9), *grid(0.05, 128), *grid(1 / 256, 0)),
                {"axis": -1, "opset": 13}),
    # one input stands out: all steps of the result's grid are taken
    "softmax_254": ("QLinearSoftmax", (np.arange(256, dtype=U).reshape(2, 128),
                                       *grid(0.5, 128), *grid(1 / 255, 0)), {"opset": 13}),
    "softmax_12": ("QLinearSoftmax", (integers(U, 4, 9), *grid(0.05, 128), *grid(1 / 99, 0)),
                   {"opset": 12}),
    "leaky": ("QLinearLeakyRelu", (X, *grid(0.05, 128), *grid(0.03, 70)), {"alpha": 0.2}),
    "concat": ("QLinearConcat", (*grid(0.05, 100), X, *grid(0.02, 120), integers(U, 2, 3, 4),
                                 *grid(0.06, 7)), {"axis": 2}),
    "average": ("QLinearAveragePool", (IMAGE, *grid(0.02, 120), *grid(0.015, 110)), POOL),
    "average_pad": ("QLinearAveragePool", (IMAGE, *grid(0.02, 120), *grid(0.015, 110)),
                    {**POOL, "count_include_pad": 1}),
    "global": ("QLinearGlobalAveragePool", (IMAGE, *grid(0.02, 120), *grid(0.01, 110)), {}),
    "gemm": ("QGemm", (integers(U, 4, 6), *grid(0.02, 120), seven_bits(integers(S, 5, 6)),
                       *grid(0.03, 0, S), np.arange(5, dtype=np.int32) * 90,
                       *grid(0.2, 90)), {"transB": 1}),
    "gemm_float": ("QGemm", (integers(U, 4, 6), *grid(0.02, 120), seven_bits(integers(S, 6, 5)),
                             _rng.uniform(0.01, 0.1, 5).astype(np.float32), np.zeros(5, S)),
                   {"alpha": 0.5}),
    "bits4": ("MatMulNBits", packed(4, False), {"K": 80, "N": 8, "bits": 4, "block_size": 32}),
    "bits4_zeros": ("MatMulNBits", packed(4, True), {"K": 80, "N": 8, "bits": 4, "block_size": 32}),
    "bits8": ("MatMulNBits", packed(8, False), {"K": 80, "N": 8, "bits": 8, "block_size": 32}),
    **{f"lstm_{k}": ("DynamicQuantizeLSTM", lstm(*shape, **how), attrs) for k, (shape, how, attrs)
       in LSTMS.items()},
    "quantize": ("QuantizeLinear", (np.linspace(-3, 9, 12, dtype=np.float32), *grid(0.04, 20)), {}),
    "dequantize": ("DequantizeLinear", (X, *grid(0.04, 20)), {}),
}  # fmt: skip


def proto_of(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    op, operands, attrs = CASES[name]
    first = next(k for k, a in enumerate(operands) if a.ndim > 0)
    names = ["x" if k == first else f"w{k}" for k in range(len(operands))]
    names = [n if a is not None else "" for n, a in zip(names, operands, strict=True)]
    weights = {n: a for n, a in zip(names, operands, strict=True) if n not in ("x", "")}
    x = operands[first]
    node = helper.make_node(op, names, ["y"], domain=DOMAIN, name="the_node", **attrs)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto = model([node], {"x": list(x.shape)}, ["y"], weights, dtypes={"x": kind})
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return proto, {"x": x}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    proto, arrays = proto_of(name)
    (want,) = run_onnxruntime(proto, arrays)
    mod = from_onnx(proto)
    for got in (evaluate(mod, arrays), build(mod)(**arrays)):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype == np.float32:
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
            continue
        # runtimes round ties, and the last bit before them, in their own ways
        away = np.abs(got.astype(int) - want)
        assert away.max() <= 1
        assert (away > 0).mean() <= 0.05


def test_the_softmax_of_integers_has_a_whole_number_of_steps_to_one() -> None:
    """onnxruntime rounds 1 / scale down: 254 steps for the float32 next to 1 / 255."""
    proto, _ = proto_of("softmax_254")
    x = np.array([[255] + [0] * 127, [9] * 128], np.uint8)
    (want,) = run_onnxruntime(proto, {"x": x})
    got = build(from_onnx(proto))(x)
    assert got[0, 0] == want[0, 0] == 254
    np.testing.assert_array_equal(got, want)


def test_every_operator_of_the_domain_has_a_case() -> None:
    """Here, or in the files of those that stand for several, of packed weights and of QONNX."""
    files = [Path(__file__).with_name(f"test_{k}_operators.py") for k in ("attention", "fused")]
    files += [Path(__file__).with_name(f"test_{k}.py") for k in ("packed_weights", "qonnx_import")]
    text = "".join(f.read_text(encoding="utf-8") for f in files)
    elsewhere = {op for op in INPUTS if f'"{op}"' in text}
    assert {c[0] for c in CASES.values()} | elsewhere == set(INPUTS)


def test_a_wrong_number_of_inputs_is_named() -> None:
    proto, _ = proto_of("add")
    del proto.graph.node[0].input[3:]
    with pytest.raises(ModelError, match=r"'the_node'.*3 inputs; it takes 7 to 8"):
        from_onnx(proto)


def test_other_operators_of_the_domain_are_refused_by_name() -> None:
    proto, _ = proto_of("add")
    proto.graph.node[0].op_type = "QLinearSub"
    with pytest.raises(UnsupportedError, match=r"com\.microsoft\.QLinearSub.*'the_node'"):
        from_onnx(proto)


@pytest.mark.thorough
def test_a_network_that_onnxruntime_quantized(tmp_path: Path) -> None:
    """Its QOperator form of a residual network: QLinearConv, QLinearAdd, QLinearGlobalAveragePool
    and QGemm; the classes are the same."""
    from onnxruntime import quantization as q

    x = datasets.load("mnist1k").x[:64]

    class Reader(q.CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter([{"input": x[:32]}])

        def get_next(self) -> Any:
            return next(self.rest, None)

    path = tmp_path / "q.onnx"
    q.quantize_static(
        zoo.FOLDER / "mnist_resnet8.onnx", path, Reader(), quant_format=q.QuantFormat.QOperator
    )
    proto = onnx.load(path)
    used = {n.op_type for n in proto.graph.node if n.domain == DOMAIN}
    assert used >= {"QLinearAdd", "QGemm"}
    (want,) = run_onnxruntime(proto, {"input": x})
    got = build(from_onnx(path))(x)
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()
    assert (got.argmax(1) == want.argmax(1)).mean() >= 0.98
