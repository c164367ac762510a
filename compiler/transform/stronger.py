"""The optimizations that builds leave out by default: from level 3 or 4 on, or where the
PassContext requires them."""

from __future__ import annotations

from compiler.passes.manager import Pass
from compiler.transform.canonicalize_ops import CanonicalizeOps
from compiler.transform.combine_parallel_batch_matmul import CombineParallelBatchMatmul
from compiler.transform.combine_parallel_conv2d import CombineParallelConv2D
from compiler.transform.combine_parallel_dense import CombineParallelDense
from compiler.transform.eliminate_common import EliminateCommonSubexpr
from compiler.transform.fold_scale_axis import FoldScaleAxis


def stronger() -> list[Pass]:
    """The passes, in order; they run before anything depends on a target."""
    return [
        CanonicalizeOps(),
        FoldScaleAxis(),
        EliminateCommonSubexpr(),
        CombineParallelConv2D(),
        CombineParallelDense(),
        CombineParallelBatchMatmul(),
    ]
