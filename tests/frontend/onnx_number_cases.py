"""Operators that compute every element, normalize or reduce."""

from __future__ import annotations

import numpy as np
from onnx_cases import CUBE, IMAGE, MATRIX, SIGNAL, case, f, i, positive, scalar, w
from onnx_models import Const

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
