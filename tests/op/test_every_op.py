"""Every operator: its inferred type, its reference and its loop nest say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler.dtypes import Array, DType
from compiler.interpret import resolve_attrs
from compiler.ir.types import TensorType, TupleType
from compiler.op.arithmetic import FUNCTIONS, arithmetic
from compiler.op.opdef import OpDef, all_ops, get_op
from compiler.symbolic import Index, Var
from compiler.tensor import interp
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Call, walk
from compiler.tensor.stmt import PrimFunc, stores

from op_cases import CASES, Case, values

N = Var("n")
BATCH = 2
RUNS = [(c, d) for c in CASES for d in c.dtypes]


def _label(run: tuple[Case, Any]) -> str:
    case, dtypes = run
    return f"{case.op}-{'x'.join(map(str, case.shapes))}-{dtypes}".replace(" ", "")


def types_of(case: Case, dtypes: tuple[DType, ...]) -> list[TensorType]:
    return [
        TensorType.of([N if d == "n" else d for d in shape], dtype)
        for shape, dtype in zip(case.shapes, dtypes, strict=True)
    ]


def at_batch(t: TensorType) -> TensorType:
    shape = [d.value({N: BATCH}) if isinstance(d, Index) else d for d in t.shape]
    return TensorType.of(shape, t.dtype)


def lowered(op: OpDef, attrs: Any, types: list[TensorType]) -> PrimFunc:
    b = PrimBuilder("f")
    out = op.lower(b, attrs, *(b.input(f"p{k}", t.shape, t.dtype) for k, t in enumerate(types)))
    return b.finish(out if isinstance(out, tuple) else [out])


def inexact(func: PrimFunc) -> bool:
    """Whether float32 functions are called, which references and kernels round differently."""
    return any(
        isinstance(n, Call) and n.fn in {*FUNCTIONS, "pow"} - {"sqrt", "floor", "ceil", "round"}
        for s in stores(func.body)
        for n in walk(s.value)
    )


def checked_ops() -> set[str]:
    """All but the integer operators qnn.*, which have tests of their own."""
    return {n for n in all_ops() if not n.startswith("qnn.")}


def test_every_op_has_a_case() -> None:
    missing = checked_ops() - {c.op for c in CASES}
    assert not missing, f"add cases to tests/op/op_cases.py for {sorted(missing)}"


def test_every_op_is_documented() -> None:
    assert [n for n in checked_ops() if not all_ops()[n].doc] == []


@pytest.mark.parametrize("run", RUNS, ids=_label)
def test_type_reference_and_loops_agree(run: tuple[Case, Any]) -> None:
    case, which = run
    dtypes = case.operand_dtypes(which)
    op = get_op(case.op)
    attrs = op.make_attrs(**case.attrs)
    types = types_of(case, dtypes)
    result = op.infer_type(attrs, types)
    results = list(result.fields) if isinstance(result, TupleType) else [result]

    rng = np.random.default_rng(0)
    args = [values(rng, at_batch(t), case.low, case.high) for t in types]
    want: Any = op.reference(arithmetic(dtypes[0]), resolve_attrs(attrs, {N: BATCH}), *args)
    wanted = [np.asarray(w) for w in want] if isinstance(want, tuple) else [np.asarray(want)]
    for w, t in zip(wanted, results, strict=True):
        assert isinstance(t, TensorType)
        assert (w.shape, w.dtype) == (at_batch(t).static_shape, t.dtype.storage)

    func = lowered(op, attrs, types)
    got = [np.zeros(w.shape, w.dtype) for w in wanted]
    interp.run(func, [*args, *got], {N: BATCH})
    for g, w in zip(got, wanted, strict=True):
        same(g, w, tolerant=inexact(func) and g.dtype == np.float32)


def same(got: Array, want: Array, tolerant: bool) -> None:
    if tolerant:
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)
