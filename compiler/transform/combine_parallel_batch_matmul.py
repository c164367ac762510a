"""CombineParallelBatchMatmul: products of the same matrices become one with all their columns."""

from __future__ import annotations

from compiler.ir.expr import Call, tensor_type
from compiler.op.nn.dense import MATMUL
from compiler.transform.combine_parallel import Branch, CombineParallel


class CombineParallelBatchMatmul(CombineParallel):
    """Combines (batched) matrix products whose first operand is the same and whose second ones
    differ in values and columns only."""

    name = "CombineParallelBatchMatmul"
    operator = MATMUL

    def branch(self, call: Call) -> Branch | None:
        """Second operands are joined along their columns."""
        data, second = (tensor_type(a) for a in call.args)
        *rest, columns = second.shape
        if second.rank < 2 or not isinstance(columns, int):
            return None
        last = max(data.rank, second.rank) - 1 if data.rank > 1 else second.rank - 2
        return Branch(tuple(rest), (second.rank - 1,), last, columns)
