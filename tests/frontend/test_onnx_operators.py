"""Every imported operator, with the attributes exporters use, against onnxruntime."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from onnx_models import Case, Const, assert_close, check, run_onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, NotImplemented

from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret import evaluate
from compiler.pipeline import build

_rng = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    """Normal float32 values."""
    return _rng.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    """float32 values in 0.5 .. 2."""
    return _rng.uniform(0.5, 2, shape).astype(np.float32)


def w(value: Any) -> Const:
    """A float32 weight."""
    return Const(np.asarray(value, np.float32))


def i(*values: int) -> Const:
    """An int64 vector."""
    return Const(np.array(values, np.int64))


def scalar(value: float) -> Const:
    """A float32 scalar."""
    return Const(np.float32(value).reshape(()))


IMAGE = f(2, 4, 9, 8)
SIGNAL = f(2, 4, 11)
MATRIX = f(3, 5)
CUBE = f(2, 3, 4)

CASES: dict[str, Case] = {}


def case(name: str, op: str, *operands: Any, opset: int = 17, outputs: int = 1,
         dynamic: bool = True, **attrs: Any) -> None:  # fmt: skip
    assert name not in CASES
    CASES[name] = Case(op, operands, attrs, opset, outputs, dynamic)


# ---- convolution, matrix products ----------------------------------------------------------------
case("conv", "Conv", IMAGE, w(f(6, 4, 3, 3)))
case("conv_bias_strides", "Conv", IMAGE, w(f(6, 4, 3, 2)), w(f(6)), strides=[2, 3])
case("conv_groups", "Conv", IMAGE, w(f(6, 2, 3, 3)), group=2, pads=[1, 1, 1, 1])
case("conv_depthwise", "Conv", IMAGE, w(f(4, 1, 3, 3)), group=4, pads=[0, 1, 2, 1])
case("conv_dilated", "Conv", IMAGE, w(f(5, 4, 3, 3)), dilations=[2, 3], pads=[1, 2, 3, 4])
for _mode in ("SAME_UPPER", "SAME_LOWER", "VALID"):
    case(f"conv_{_mode}", "Conv", IMAGE, w(f(3, 4, 4, 3)), auto_pad=_mode, strides=[2, 2])
    case(f"maxpool_{_mode}", "MaxPool", IMAGE, kernel_shape=[3, 2], auto_pad=_mode, strides=[2, 2])
case("conv_1d", "Conv", SIGNAL, w(f(6, 4, 3)), w(f(6)), strides=[2], pads=[1, 2], dilations=[2])
case("conv_weights_as_input", "Conv", IMAGE, f(6, 4, 3, 3))
case("conv_1d_weights_as_input", "Conv", SIGNAL, f(6, 4, 3))
case("gemm", "Gemm", MATRIX, w(f(5, 4)))
case("gemm_transposed", "Gemm", MATRIX, w(f(4, 5)), w(f(4)), transB=1)
case("gemm_scaled", "Gemm", f(5, 3), w(f(4, 5)), w(f(4)), transA=1, transB=1, alpha=0.5, beta=2.0,
     dynamic=False)  # fmt: skip
case("gemm_row", "Gemm", MATRIX, w(f(5, 4)), w(f(1, 4)))
case("gemm_scalar_c", "Gemm", MATRIX, w(f(5, 4)), w(f(1)))
case("gemm_column", "Gemm", MATRIX, w(f(5, 4)), w(f(3, 1)), dynamic=False)
case("gemm_all_inputs", "Gemm", MATRIX, f(5, 4), f(4), alpha=0.5, beta=2.0)
case("gemm_beta_0", "Gemm", MATRIX, w(f(5, 4)), w(f(4)), beta=0.0)
case("matmul_weights", "MatMul", CUBE, w(f(4, 5)))
case("matmul", "MatMul", f(2, 3, 4), f(2, 4, 5))
case("matmul_broadcast", "MatMul", f(2, 1, 3, 4), f(3, 4, 5))
case("matmul_vector_left", "MatMul", f(4), w(f(4, 5)), dynamic=False)
case("matmul_vector_right", "MatMul", f(2, 3, 4), f(4))
case("matmul_vectors", "MatMul", f(4), f(4), dynamic=False)

# ---- normalization -------------------------------------------------------------------------------
_stats = [w(f(4)), w(f(4)), w(f(4)), w(positive(4))]
case("batch_norm", "BatchNormalization", IMAGE, *_stats, epsilon=1e-3)
case("batch_norm_9", "BatchNormalization", IMAGE, *_stats, opset=9)
case("batch_norm_2d", "BatchNormalization", f(5, 4), *_stats)
case("batch_norm_3d", "BatchNormalization", SIGNAL, *_stats)
case("layer_norm", "LayerNormalization", CUBE, w(f(4)), w(f(4)), epsilon=1e-3)
case("layer_norm_no_bias", "LayerNormalization", CUBE, w(f(4)))
case("layer_norm_two_axes", "LayerNormalization", CUBE, w(f(3, 4)), w(f(3, 4)), axis=1)
case("softmax", "Softmax", CUBE)
case("softmax_axis", "Softmax", CUBE, axis=1)
case("softmax_flattens", "Softmax", CUBE, axis=1, opset=11)
case("softmax_11", "Softmax", MATRIX, opset=11)
case("log_softmax", "LogSoftmax", CUBE, axis=2)
case("log_softmax_flattens", "LogSoftmax", CUBE, axis=0, opset=9, dynamic=False)

# ---- elementwise ---------------------------------------------------------------------------------
for _op in ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Floor", "Ceil", "Erf", "HardSwish",
            "Identity", "Dropout", "LeakyRelu", "HardSigmoid"):  # fmt: skip
    case(_op.lower(), _op, CUBE)
case("log", "Log", positive(2, 3))
case("sqrt", "Sqrt", positive(2, 3))
case("neg_int", "Neg", np.arange(-3, 3, dtype=np.int32))
case("leaky_relu_alpha", "LeakyRelu", CUBE, alpha=0.3)
case("hard_sigmoid_alpha", "HardSigmoid", CUBE, alpha=0.5, beta=0.1)
case("gelu", "Gelu", CUBE, opset=20)
case("gelu_tanh", "Gelu", CUBE, opset=20, approximate="tanh")
for _op in ("Add", "Sub", "Mul", "Div"):
    case(_op.lower(), _op, CUBE, f(2, 3, 4))
    case(f"{_op.lower()}_broadcast", _op, CUBE, w(positive(3, 1)))
    case(f"{_op.lower()}_int", _op, np.arange(1, 7, dtype=np.int32), Const(np.full(1, 3, np.int32)))
case("sum_three", "Sum", CUBE, w(f(4)), f(2, 3, 4))
case("sum_one", "Sum", CUBE)
case("max_three", "Max", CUBE, w(f(3, 1)), f(2, 3, 4))
case("min", "Min", CUBE, w(f(4)))
for _op in ("Equal", "Less", "Greater"):
    case(_op.lower(), _op, np.arange(6, dtype=np.float32), w([3]))
case("where", "Where", CUBE > 0, CUBE, w(f(4)))
case("clip_attributes", "Clip", CUBE, opset=9, min=-0.5, max=0.5)
case("clip_attribute_min", "Clip", CUBE, opset=9, min=-0.5)
case("clip_none", "Clip", CUBE, opset=9)
case("clip_inputs", "Clip", CUBE, scalar(-0.5), scalar(0.25))
case("clip_min", "Clip", CUBE, scalar(0))
case("clip_max", "Clip", CUBE, None, scalar(0.25))
case("clip_run_time", "Clip", CUBE, scalar(-1), np.array(0.5, np.float32))
case("clip_run_time_min", "Clip", CUBE, np.array(0.5, np.float32))
case("clip_int", "Clip", np.arange(-5, 5, dtype=np.int32), Const(np.int32(-2).reshape(())),
     Const(np.int32(3).reshape(())))  # fmt: skip
for _e in (1, 2, 3, 0.5, 1.7, -1):
    case(f"pow_{_e}", "Pow", positive(2, 3), scalar(_e))
case("pow_negative_base", "Pow", CUBE, scalar(2))
case("pow_tensors", "Pow", positive(2, 3), positive(2, 3))
case("pow_int_exponent", "Pow", positive(2, 3), i(4, 5, 6))
case("cast_to_int", "Cast", CUBE * 3, to=6)
case("cast_to_double", "Cast", CUBE, to=11)
case("cast_from_bool", "Cast", CUBE > 0, to=1)

# ---- pooling and reductions ----------------------------------------------------------------------
case("maxpool", "MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2])
case("maxpool_pads", "MaxPool", IMAGE - 5, kernel_shape=[3, 3], pads=[1, 0, 1, 2], strides=[2, 1])
case("maxpool_ceil", "MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
case("maxpool_dilated", "MaxPool", IMAGE, kernel_shape=[2, 3], dilations=[3, 2])
case("maxpool_1d", "MaxPool", SIGNAL, kernel_shape=[3], strides=[2], pads=[1, 1])
case("avgpool", "AveragePool", IMAGE, kernel_shape=[2, 3])
case("avgpool_pads", "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 0])
case("avgpool_counts_pads", "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 0],
     count_include_pad=1)  # fmt: skip
case("avgpool_ceil", "AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1,
     opset=19)  # fmt: skip
case("avgpool_1d", "AveragePool", SIGNAL, kernel_shape=[4], strides=[3])
case("global_average", "GlobalAveragePool", IMAGE)
case("global_average_1d", "GlobalAveragePool", SIGNAL)
case("global_max", "GlobalMaxPool", IMAGE)
for _op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"):
    _low = _op.lower()
    _old = {"opset": 11}
    case(f"{_low}_attribute", _op, CUBE, axes=[-1, 1], **_old)
    case(f"{_low}_dropped", _op, CUBE, axes=[0], keepdims=0, dynamic=False, **_old)
    case(f"{_low}_all", _op, CUBE, keepdims=0, dynamic=False, **_old)
    case(f"{_low}_input", _op, CUBE, i(2), keepdims=0, opset=18)
    case(f"{_low}_noop", _op, CUBE, noop_with_empty_axes=1, opset=18)

# ---- moving elements -----------------------------------------------------------------------------
case("reshape", "Reshape", CUBE, i(2, -1))
case("reshape_zero", "Reshape", CUBE, i(0, 4, 3))
case("reshape_minus_first", "Reshape", CUBE, i(-1, 6))
case("flatten", "Flatten", CUBE)
case("flatten_2", "Flatten", CUBE, axis=2)
case("flatten_0", "Flatten", CUBE, axis=0)
case("flatten_negative", "Flatten", CUBE, axis=-1)
case("transpose", "Transpose", CUBE)
case("transpose_perm", "Transpose", CUBE, perm=[1, 0, 2])
case("concat", "Concat", CUBE, w(f(2, 2, 4)), f(2, 1, 4), axis=1, dynamic=False)
case("concat_last", "Concat", CUBE, f(2, 3, 2), axis=-1)
case("split_attribute", "Split", CUBE, axis=2, split=[1, 3], opset=11, outputs=2)
case("split_equal", "Split", f(6, 4), axis=1, opset=11, outputs=2)
case("split_input", "Split", CUBE, i(1, 2, 1), axis=-1, outputs=3)
case("split_num_outputs", "Split", f(2, 7), axis=1, num_outputs=3, opset=18, outputs=3)
case("split_one", "Split", CUBE, i(3), axis=1)
case("slice_attributes", "Slice", f(4, 5, 6), opset=9, starts=[1, -3], ends=[3, 100], axes=[1, 2])
case("slice_no_axes", "Slice", f(4, 5), opset=9, starts=[1, 0], ends=[3, 4], dynamic=False)
case("slice_inputs", "Slice", f(4, 5, 6), i(-100, 1), i(4, 2**63 - 1), i(2, 1))
case("slice_steps", "Slice", f(4, 5, 6), i(0, 1), i(6, 5), i(2, 1), i(2, 3))
case("slice_backwards", "Slice", f(4, 5, 6), i(-1, 3), i(-(2**63), 0), i(2, 1), i(-1, -2))
case("slice_everything", "Slice", f(4, 5), i(0), i(2**63 - 1), i(0))
case("squeeze_attribute", "Squeeze", f(2, 1, 3, 1), axes=[1], opset=11)
case("squeeze_input", "Squeeze", f(2, 1, 3, 1), i(-1, 1))
case("squeeze_all", "Squeeze", f(2, 1, 3, 1))
case("unsqueeze_attribute", "Unsqueeze", CUBE, axes=[0, 4], opset=11)
case("unsqueeze_input", "Unsqueeze", CUBE, i(-1, 0))
case("gather", "Gather", CUBE, i(2, 0, -1), axis=1)
case("gather_scalar", "Gather", CUBE, Const(np.int64(1).reshape(())), axis=2)
case("gather_matrix", "Gather", f(5, 3), Const(np.array([[0, 4], [2, 1]], np.int32)), dynamic=False)
case("gather_run_time", "Gather", CUBE, np.array([3, -1], np.int64), axis=2)
case("pad_attributes", "Pad", CUBE, opset=9, pads=[0, 1, 2, 0, 2, 1], value=1.5)
case("pad_inputs", "Pad", CUBE, i(0, 1, 2, 0, 2, 1), scalar(-1))
case("pad_reflect", "Pad", CUBE, i(0, 1, 2, 0, 2, 1), mode="reflect")
case("pad_edge", "Pad", CUBE, i(0, 1, 2, 0, 2, 1), mode="edge")
case("pad_axes", "Pad", CUBE, i(1, 2), None, i(-1), opset=18)
case("pad_negative", "Pad", CUBE, i(0, -1, 2, 0, 0, -1))
case("pad_nothing", "Pad", CUBE, i(0, 0, 0, 0, 0, 0))
_zoom = w([1, 1, 2, 3])
case("upsample_9", "Upsample", IMAGE, _zoom, opset=9)
case("resize_10", "Resize", IMAGE, w([1, 1, 1.5, 2]), opset=10)
case("resize_scales", "Resize", IMAGE, None, _zoom, mode="nearest")
case("resize_sizes", "Resize", IMAGE, None, None, i(2, 4, 13, 5), dynamic=False)
case("resize_axes", "Resize", IMAGE, None, None, i(13, 5), axes=[2, 3], opset=18)
for _c in ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel"):
    for _r in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
        case(f"resize_{_c}_{_r}", "Resize", IMAGE, None, w([1, 1, 1.7, 0.6]),
             coordinate_transformation_mode=_c, nearest_mode=_r)  # fmt: skip
case("expand", "Expand", f(2, 1, 4), i(3, 1))
case("expand_rank", "Expand", f(3, 1), i(2, 3, 4), dynamic=False)
case("shape", "Shape", CUBE)
case("shape_part", "Shape", f(2, 3, 4, 5), start=1, end=-1)
case("constant_of_shape", "ConstantOfShape", i(2, 3))
case("reshape_to_scalar", "Reshape", f(1, 1), i(), dynamic=False)
case("constant_of_no_shape", "ConstantOfShape", i())
case("concat_empty", "Concat", i(), i(2, 3), axis=0)
case("expand_scalar", "Expand", np.array(2, np.float32), i(2, 3), dynamic=False)
case("reduce_no_axes", "ReduceSum", CUBE, i(), keepdims=0, dynamic=False)
case("add_scalars", "Add", np.array(2, np.float32), np.array(3, np.float32), dynamic=False)
case("squeeze_nothing", "Squeeze", f(2, 3))
case("gather_constants", "Gather", Const(f(5, 3)), np.array([4, 0], np.int64), axis=0)
case("unsqueeze_scalar", "Unsqueeze", np.array(2, np.float32), i(0), dynamic=False)


# ---- three spatial axes, transposed convolution, other pooling ----------------------------------
VOLUME = f(2, 4, 5, 6, 7)
case(
    "conv_3d",
    "Conv",
    VOLUME,
    w(f(6, 2, 2, 3, 2)),
    w(f(6)),
    group=2,
    strides=[2, 1, 2],
    pads=[1, 0, 2, 0, 1, 1],
    dilations=[2, 1, 1],
)
case(
    "maxpool_3d",
    "MaxPool",
    VOLUME,
    kernel_shape=[2, 3, 2],
    strides=[2, 2, 1],
    pads=[0, 1, 0, 1, 1, 1],
)
case(
    "avgpool_3d",
    "AveragePool",
    VOLUME,
    kernel_shape=[3, 2, 3],
    pads=[1, 0, 1, 0, 1, 1],
    ceil_mode=1,
    strides=[2, 2, 2],
)
case("conv_transpose", "ConvTranspose", IMAGE, w(f(4, 3, 3, 2)), w(f(3)), strides=[2, 3])
case(
    "conv_transpose_groups",
    "ConvTranspose",
    IMAGE,
    w(f(4, 3, 3, 3)),
    group=2,
    pads=[1, 0, 2, 1],
    dilations=[1, 2],
    strides=[2, 1],
)
case(
    "conv_transpose_padding",
    "ConvTranspose",
    IMAGE,
    w(f(4, 2, 2, 3)),
    strides=[3, 2],
    output_padding=[1, 1],
    pads=[2, 2, 1, 0],
    dynamic=False,
)
case(
    "conv_transpose_shape",
    "ConvTranspose",
    IMAGE,
    w(f(4, 2, 3, 3)),
    strides=[2, 2],
    output_shape=[18, 17],
    dynamic=False,
)
case("conv_transpose_1d", "ConvTranspose", SIGNAL, w(f(4, 3, 4)), strides=[3], pads=[1, 2])
case(
    "conv_transpose_run_time",
    "ConvTranspose",
    f(1, 2, 4, 4),
    f(2, 3, 3, 3),
    strides=[2, 2],
    dynamic=False,
)
for _storage in (0, 1):
    case(
        f"maxpool_positions_{_storage}",
        "MaxPool",
        f(2, 3, 7, 6),
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 1],
        storage_order=_storage,
        outputs=2,
        dynamic=False,
    )
case("lppool", "LpPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1], p=3)
case("global_lppool", "GlobalLpPool", IMAGE, p=1)
case("lp_norm", "LpNormalization", CUBE, axis=1, p=1)
case("instance_norm", "InstanceNormalization", IMAGE, w(f(4)), w(f(4)))
case("lrn", "LRN", IMAGE, size=3, alpha=0.3, beta=0.6, bias=1.5)
# ---- quantized integers --------------------------------------------------------------------------
BYTES = _rng.integers(0, 256, (2, 4, 6, 5)).astype(np.uint8)
SIGNED = Const(_rng.integers(-128, 128, (3, 4, 3, 2)).astype(np.int8))


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
    Const(SIGNED.data[0, 0, 0:1].repeat(5, 0)),
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
    SIGNED,
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
    Const(_rng.integers(0, 256, (5, 3)).astype(np.uint8)),
    scalar(0.1),
    u8(125),
    scalar(0.3),
    u8(100),
    dynamic=False,
)

for _mode in ("linear", "cubic"):
    case(f"resize_{_mode}", "Resize", IMAGE, None, w([1, 1, 1.5, 0.6]), mode=_mode, dynamic=False)
    case(
        f"resize_{_mode}_corners",
        "Resize",
        IMAGE,
        None,
        None,
        i(2, 4, 13, 5),
        mode=_mode,
        coordinate_transformation_mode="align_corners",
        dynamic=False,
    )
    case(
        f"resize_{_mode}_antialias",
        "Resize",
        IMAGE,
        None,
        None,
        i(2, 4, 5, 3),
        mode=_mode,
        antialias=1,
        exclude_outside=1,
        opset=18,
        dynamic=False,
    )
case("tile", "Tile", CUBE, i(2, 1, 3), dynamic=False)
case("reverse_sequence", "ReverseSequence", CUBE, i(3, 1), time_axis=1, batch_axis=0, dynamic=False)
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


# ---- images read at computed positions, blocks ---------------------------------------------------
GRID = _rng.uniform(-1.4, 1.4, (2, 5, 6, 2)).astype(np.float32)
for _mode in ("nearest", "linear", "cubic"):
    for _padding in ("zeros", "border", "reflection"):
        for _aligned in (0, 1):
            case(f"GridSample_{_mode}_{_padding}_{_aligned}", "GridSample", IMAGE, GRID, opset=20,
                 mode=_mode, padding_mode=_padding, align_corners=_aligned)  # fmt: skip
case("GridSample_old", "GridSample", IMAGE, GRID, opset=16, mode="bicubic")
VOLUME = f(2, 3, 4, 5, 6)
case("GridSample_3d", "GridSample", VOLUME, 0.9 * f(2, 3, 4, 2, 3),
     opset=20, mode="linear")  # fmt: skip
REGIONS = np.float32([[1, 1, 6, 7], [-3, 2, 30, 5], [4, 4, 4, 4], [0.3, 0.7, 5.1, 3.2]])
for _mode in ("avg", "max"):
    for _half in ("half_pixel", "output_half_pixel"):
        case(f"RoiAlign_{_mode}_{_half}", "RoiAlign", IMAGE, REGIONS, i(0, 1, 1, 0), opset=16,
             mode=_mode, coordinate_transformation_mode=_half, output_height=3, output_width=2,
             sampling_ratio=2, spatial_scale=0.7, dynamic=False)  # fmt: skip
case("DeformConv", "DeformConv", IMAGE, w(f(6, 2, 3, 2)), f(2, 24, 4, 4), w(f(6)),
     positive(2, 12, 4, 4), opset=19, group=2, offset_group=2, strides=[2, 2], pads=[1, 0, 0, 1],
     dilations=[1, 2])  # fmt: skip
case("Col2Im", "Col2Im", f(2, 3 * 6, 16), i(7, 6), i(3, 2), opset=18, strides=[2, 1],
     pads=[1, 0, 1, 0], dilations=[1, 2])  # fmt: skip
for _mode in ("DCR", "CRD"):
    case(f"DepthToSpace_{_mode}", "DepthToSpace", f(2, 12, 3, 4), blocksize=2, mode=_mode)
case("SpaceToDepth", "SpaceToDepth", f(2, 3, 4, 6), blocksize=2)
case("Pad_wrap", "Pad", f(2, 3, 4), i(0, 1, 2, 0, 5, 3), opset=19, mode="wrap")
case("Split_constant", "Split", w(f(4, 6)), i(1, 3), axis=0, outputs=2, dynamic=False)


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    c = CASES[name]
    check(c.model(), c.arrays)


@pytest.mark.parametrize("name", [k for k, c in CASES.items() if c.dynamic and c.arrays])
def test_operator_with_a_symbolic_dimension(name: str) -> None:
    c = CASES[name]
    check(c.model(symbolic=True), c.arrays)


@pytest.mark.parametrize("name", CASES)
def test_compiled_operator(name: str) -> None:
    c = CASES[name]
    proto = c.model(symbolic=c.dynamic and bool(c.arrays))
    assert_close(build(from_onnx(proto))(**c.arrays), run_onnxruntime(proto, c.arrays))


@pytest.mark.parametrize(("opset", "least"), [(11, 140), (14, 160), (22, 175)])
def test_operators_in_other_opsets(opset: int, least: int) -> None:
    done = 0
    for c in CASES.values():
        other = dataclasses.replace(c, opset=opset)
        if c.op == "LayerNormalization" and opset < 17:
            continue
        proto = other.model()
        try:
            want = run_onnxruntime(proto, c.arrays)
        except (Fail, InvalidGraph, NotImplemented):
            continue  # this opset writes the operator in another way
        assert_close(evaluate(from_onnx(proto), dict(c.arrays)), want)
        done += 1
    assert done >= least
