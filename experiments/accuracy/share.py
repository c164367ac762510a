"""How much of a network's multiplication is done in integers, counted on what will run."""

from __future__ import annotations

from compiler.ir.expr import Call, IRModule, tensor_type
from compiler.op.opdef import OpDef
from compiler.symbolic import Index

EIGHT_BITS = ("int8", "uint8")


def integer_share(module: IRModule) -> float:
    """Share of the multiply-accumulates of convolutions, dense layers and matrix products that
    multiply 8-bit integers and add them up as int32, from 0 to 1; 1 if there are none.

    Symbolic dimensions (the batch size) count as 1.

    Args:
        module: a realized graph with inferred types, without control flow.
    """
    integer = total = 0
    for b in module.main.bindings:
        if not isinstance(b.value, Call) or not isinstance(b.value.op, OpDef):
            continue
        op = b.value.op
        if op.macs is None:
            continue
        types = [tensor_type(a) for a in b.value.args]
        result = tensor_type(b.var)
        count = Index.of(op.macs(b.value.attrs, types, result))
        macs = int(count.value(dict.fromkeys(count.vars(), 1)))
        total += macs
        in_bytes = all(str(t.dtype) in EIGHT_BITS for t in types[:2])
        integer += macs * (in_bytes and str(result.dtype) == "int32")
    return integer / total if total else 1.0
