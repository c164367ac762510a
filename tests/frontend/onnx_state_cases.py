"""Operators on quantized integers, and recurrent networks."""

from __future__ import annotations

import numpy as np
from onnx_cases import IMAGE, case, f, positive, rng, scalar, w
from onnx_models import Const
from seven_bits import seven_bits

# ---- quantized integers --------------------------------------------------------------------------
BYTES = rng.integers(0, 256, (2, 4, 6, 5)).astype(np.uint8)
SIGNED = Const(rng.integers(-128, 128, (3, 4, 3, 2)).astype(np.int8))
MULTIPLIED = Const(seven_bits(SIGNED.data))


def u8(value: int) -> Const:
    """A uint8 scalar."""
    return Const(np.uint8(value).reshape(()))


_zeros8 = Const(np.zeros(3, np.int8))
case("quantize", "QuantizeLinear", IMAGE, scalar(0.02), u8(100))
case(
    "quantize_int16",
    "QuantizeLinear",
    IMAGE,
    scalar(0.0001),
    Const(np.int16(5).reshape(())),
    opset=21,
)
case(
    "quantize_axis",
    "QuantizeLinear",
    IMAGE,
    w([0.1, 0.01, 0.02, 0.03]),
    Const(np.array([1, -2, 3, -4], np.int8)),
    axis=1,
)
case(
    "quantize_run_time",
    "QuantizeLinear",
    IMAGE,
    np.array(0.01, np.float32),
    np.array(7, np.uint8),
    dynamic=False,
)
case(
    "quantize_blocks",
    "QuantizeLinear",
    f(3, 8),
    w(positive(3, 2)),
    axis=1,
    block_size=4,
    opset=21,
    dynamic=False,
)
case("dequantize", "DequantizeLinear", BYTES, scalar(0.3), u8(9))
case(
    "dequantize_axis",
    "DequantizeLinear",
    BYTES,
    w([0.1, 0.2, 0.3, 0.4]),
    Const(np.array([1, 2, 3, 4], np.uint8)),
)
case(
    "dequantize_blocks",
    "DequantizeLinear",
    BYTES,
    w(positive(2, 2, 6, 5)),
    axis=1,
    block_size=2,
    opset=21,
    dynamic=False,
)
case("dynamic_quantize", "DynamicQuantizeLinear", IMAGE, outputs=3)
case(
    "matmul_integer",
    "MatMulInteger",
    BYTES[0, 0],
    Const(MULTIPLIED.data[0, 0, 0:1].repeat(5, 0)),
    u8(120),
    dynamic=False,
)
case(
    "conv_integer",
    "ConvInteger",
    BYTES,
    Const(SIGNED.data.view(np.uint8)),
    u8(130),
    u8(77),
    pads=[1, 0, 1, 1],
)
case(
    "qlinear_conv",
    "QLinearConv",
    BYTES,
    scalar(0.02),
    u8(120),
    MULTIPLIED,
    w([0.1, 0.2, 0.3]),
    _zeros8,
    scalar(0.9),
    u8(128),
    Const(np.array([900, -800, 70], np.int32)),
    pads=[1, 1, 0, 1],
)
case(
    "qlinear_matmul",
    "QLinearMatMul",
    BYTES[0, 0],
    scalar(0.02),
    u8(120),
    Const(rng.integers(0, 256, (5, 3)).astype(np.uint8)),
    scalar(0.1),
    u8(125),
    scalar(0.3),
    u8(100),
    dynamic=False,
)

# ---- recurrent networks --------------------------------------------------------------------------
SEQUENCE = f(5, 3, 4)
_lengths = Const(np.array([5, 2, 3], np.int32))
for _op, _gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    _weights = [w(f(2, _gates * 2, k)) for k in (4, 2)]
    _bias = w(f(2, _gates * 4))
    _state = [w(f(2, 3, 2))] * (2 if _op == "LSTM" else 1)
    _outputs = 3 if _op == "LSTM" else 2
    case(
        f"{_op}_both",
        _op,
        SEQUENCE,
        *_weights,
        _bias,
        _lengths,
        *_state,
        hidden_size=2,
        direction="bidirectional",
        outputs=_outputs,
        dynamic=False,
    )
    _one = [w(v.data[:1]) for v in (*_weights, _bias)]
    case(
        f"{_op}_reverse",
        _op,
        SEQUENCE,
        *_one,
        hidden_size=2,
        direction="reverse",
        outputs=_outputs,
        dynamic=False,
    )
case(
    "GRU_linear_before_reset",
    "GRU",
    SEQUENCE,
    w(f(1, 6, 4)),
    w(f(1, 6, 2)),
    w(f(1, 12)),
    hidden_size=2,
    linear_before_reset=1,
    outputs=2,
    dynamic=False,
)
case(
    "LSTM_peepholes",
    "LSTM",
    SEQUENCE,
    w(f(1, 8, 4)),
    w(f(1, 8, 2)),
    None,
    None,
    None,
    None,
    w(f(1, 6)),
    hidden_size=2,
    outputs=3,
    dynamic=False,
)
