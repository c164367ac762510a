"""Runs one operator through its reference and its loop nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import compiler
from compiler.arithmetic.arrays import arithmetic
from compiler.interpret import loop_nests
from compiler.interpret.graph import resolve_attrs
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.op.opdef import OpDef
from compiler.scheduling.tile import is_product
from compiler.symbolic import Index, Var
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.stmt import PrimFunc, stores
from compiler.types.dtypes import INT64, Array, DType
from compiler.types.tensor_types import TensorType, TupleType

N = Var("n")


def lowered(op: OpDef, attrs: Any, types: Sequence[TensorType]) -> PrimFunc:
    """The operator's loop nest."""
    b = PrimBuilder("f")
    out = op.lower(b, attrs, *(b.input(f"p{k}", t.shape, t.dtype) for k, t in enumerate(types)))
    return b.finish(out if isinstance(out, tuple) else [out])


def contracted(func: PrimFunc) -> bool:
    """Whether products are added up, which compiled code may contract where the target can."""
    return any(is_product(s) and s.update == "Add" for s in stores(func.body))


def known(t: TensorType, dims: Mapping[Var, int]) -> tuple[int, ...]:
    """The shape with numbers for symbolic dimensions."""
    return tuple(d.value(dims) if isinstance(d, Index) else d for d in t.shape)


def reference(
    name: str, args: Sequence[Array], dtypes: Sequence[DType] | None = None, **attrs: Any
) -> Any:
    """The operator's reference on storage arrays."""
    op = get_op(name)
    first = dtypes[0] if dtypes else DType.parse(args[0].dtype)
    return op.reference(arithmetic(first), op.make_attrs(**attrs), *args)


def check_agreement(
    name: str,
    attrs: Mapping[str, Any],
    types: Sequence[TensorType],
    args: Sequence[Array],
    dims: Mapping[Var, int] | None = None,
) -> list[Array]:
    """Infer; run the reference, the loop nest interpreted, and compiled code; all must agree.

    Returns the reference's results.
    """
    op, dims = get_op(name), dims or {}
    made = op.make_attrs(**attrs)
    result = op.infer_type(made, types)
    fields = result.fields if isinstance(result, TupleType) else (result,)
    want = op.reference(
        arithmetic(types[0].dtype if types else INT64), resolve_attrs(made, dims), *args
    )
    wanted = [np.asarray(w) for w in (want if isinstance(want, tuple) else (want,))]
    for w, t in zip(wanted, fields, strict=True):
        assert isinstance(t, TensorType)
        assert (w.shape, w.dtype) == (known(t, dims), t.dtype.storage)
    func = lowered(op, made, types)
    got = [np.zeros(w.shape, w.dtype) for w in wanted]
    loop_nests.run(func, [*args, *got], dims)
    compiled = run_compiled(name, attrs, types, args)
    for g, c, w in zip(got, compiled, wanted, strict=True):
        assert_same(g, w, tolerant=False)
        assert (c.shape, c.dtype) == (w.shape, w.dtype)
        assert_same(c, w, tolerant=w.dtype == np.float32 and contracted(func))
    return wanted


def run_compiled(
    name: str, attrs: Mapping[str, Any], types: Sequence[TensorType], args: Sequence[Array]
) -> list[Array]:
    """The operator alone in a module, compiled for this host."""
    b = FunctionBuilder()
    y = b.call(name, *(b.param(f"p{k}", t.shape, t.dtype) for k, t in enumerate(types)), **attrs)
    fields = len(y.type.fields) if isinstance(y.type, TupleType) else 0
    outputs = [b.get(y, k) for k in range(fields)] or [y]
    got = compiler.build(IRModule({"main": b.finish(*outputs)}))(*args)
    return got if isinstance(got, list) else [got]


def assert_same(got: Array, want: Array, tolerant: bool) -> None:
    """Equal bits (signs of zero apart), or float32 within a few units in the last place."""
    if tolerant:
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)
