"""Single operators on machines elsewhere: what `tests/op` runs here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import compiler
from compiler.arithmetic.arrays import arithmetic
from compiler.interpret.graph import resolve_attrs
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.types.dtypes import INT64
from compiler.types.tensor_types import TensorType, TupleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "op"))

from op_case import Case, values
from op_harness import N, assert_same, contracted, known, lowered
from test_every_op import BATCH, RUNS, label, types_of

__all__ = ["RUNS", "check_on", "label"]


def check_on(target: str, run: tuple[Case, Any]) -> None:
    """An operator alone, compiled for `target`, gives the bits of its reference; sums of products
    of float32, which may be contracted, are within a few units in the last place."""
    case, which = run
    types, dims = types_of(case, case.operand_dtypes(which)), {N: BATCH}
    rng = np.random.default_rng(0)
    args = [values(rng, TensorType.of(known(t, dims), t.dtype), case.low, case.high) for t in types]
    op = get_op(case.op)
    made = op.make_attrs(**case.attrs)
    want = op.reference(
        arithmetic(types[0].dtype if types else INT64), resolve_attrs(made, dims), *args
    )
    wanted = [np.asarray(w) for w in (want if isinstance(want, tuple) else (want,))]
    b = FunctionBuilder()
    params = [b.param(f"p{k}", t.shape, t.dtype) for k, t in enumerate(types)]
    y = b.call(case.op, *params, **case.attrs)
    fields = len(y.type.fields) if isinstance(y.type, TupleType) else 0
    outputs = [b.get(y, k) for k in range(fields)] or [y]
    got = compiler.build(IRModule({"main": b.finish(*outputs)}), target=target)(*args)
    loose = contracted(lowered(op, made, types))
    for g, w in zip(got if isinstance(got, list) else [got], wanted, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        assert_same(g, w, tolerant=w.dtype == np.float32 and loose)
