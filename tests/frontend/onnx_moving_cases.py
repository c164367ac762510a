"""Operators that move elements."""

from __future__ import annotations

import numpy as np
from onnx_cases import CUBE, IMAGE, case, f, i, scalar, w
from onnx_models import Const

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
