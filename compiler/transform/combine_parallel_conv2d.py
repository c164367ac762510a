"""CombineParallelConv2D: convolutions of the same data become one with all their channels."""

from __future__ import annotations

from compiler.ir.expr import Call, tensor_type
from compiler.op.nn.conv import CONV2D
from compiler.transform.combine_parallel import Branch, CombineParallel


class CombineParallelConv2D(CombineParallel):
    """Combines convolutions without groups that differ in weights, bias and channels only, as in
    Inception's blocks."""

    name = "CombineParallelConv2D"
    operator = CONV2D

    def branch(self, call: Call) -> Branch | None:
        """Weights and biases are joined along the output channels."""
        a, (units, *rest) = call.attrs, tensor_type(call.args[1]).shape
        if a.groups != 1 or a.out_layout != "NCHW" or not isinstance(units, int):
            return None
        return Branch((tuple(rest), len(call.args)), (0, 0), 1, units)
