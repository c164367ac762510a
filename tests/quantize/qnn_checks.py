"""What the tests of integer operators share: one call by every path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import compiler
from compiler.arithmetic.arrays import arithmetic
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.tensor.builder import PrimBuilder
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


def limits(dtype: str, bits: int = 8) -> dict[str, Any]:
    """Attributes of a result of `bits` bits."""
    low, high = RANGES[dtype]
    return {"out_dtype": dtype, "qmin": low >> (8 - bits), "qmax": high >> (8 - bits)}


def reference(name: str, *args: Any, **attrs: Any) -> Array:
    """What the operator's reference gives."""
    op = get_op(name)
    arrays = [np.asarray(a) for a in args]
    ar = arithmetic(DType.parse(arrays[0].dtype))
    return np.asarray(op.reference(ar, op.make_attrs(**attrs), *arrays))


def check(name: str, *args: Any, **attrs: Any) -> Array:
    """The reference's result, compared with the interpreted and the compiled loop nest."""
    op, arrays = get_op(name), [np.asarray(a) for a in args]
    made = op.make_attrs(**attrs)
    types = [TensorType.of(a.shape, DType.parse(a.dtype)) for a in arrays]
    t = op.infer_type(made, types)
    assert isinstance(t, TensorType)
    want = reference(name, *arrays, **attrs)
    assert (want.shape, want.dtype) == (t.shape, t.dtype.storage)
    b = PrimBuilder("f")
    func = b.finish([op.lower(b, made, *(b.input("p", u.shape, u.dtype) for u in types))])
    got = np.zeros(want.shape, want.dtype)
    loop_nests.run(func, [*arrays, got])
    np.testing.assert_array_equal(got, want)
    check_compiled(name, arrays, want, ["llvm"], **attrs)
    return want


def check_compiled(
    name: str, arrays: Sequence[Array], want: Array, targets: Sequence[str], **attrs: Any
) -> None:
    """Compare compiled calls with what is wanted."""
    f = FunctionBuilder()
    params = [f.param(f"p{k}", a.shape, str(a.dtype)) for k, a in enumerate(arrays)]
    y = f.call(name, *params, **attrs)
    mod = IRModule({"main": f.finish(y)})
    for target in targets:
        np.testing.assert_array_equal(compiler.build(mod, target=target)(*arrays), want)
