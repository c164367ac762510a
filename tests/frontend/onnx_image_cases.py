"""Operators on images and other spatial tensors, and matrix products."""

from __future__ import annotations

import numpy as np
from onnx_cases import CUBE, IMAGE, MATRIX, SIGNAL, case, f, i, positive, rng, w

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
# ---- images read at computed positions, blocks ---------------------------------------------------
GRID = rng.uniform(-1.4, 1.4, (2, 5, 6, 2)).astype(np.float32)
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
