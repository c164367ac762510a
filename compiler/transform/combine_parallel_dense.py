"""CombineParallelDense: dense layers on the same data become one with all their units."""

from __future__ import annotations

from compiler.ir.expr import Call, tensor_type
from compiler.op.nn.dense import DENSE
from compiler.transform.combine_parallel import Branch, CombineParallel


class CombineParallelDense(CombineParallel):
    """Combines dense layers that differ in weights, bias and units only, as in attention's
    queries, keys and values."""

    name = "CombineParallelDense"
    operator = DENSE

    def branch(self, call: Call) -> Branch | None:
        """Weights and biases are joined along the units."""
        data, weight = tensor_type(call.args[0]), tensor_type(call.args[1])
        units = weight.shape[0]
        if not isinstance(units, int):
            return None
        return Branch(len(call.args), (0, 0), data.rank - 1, units)
