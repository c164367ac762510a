"""Elementwise compiled functions on arrays: how an operation of a datatype is run outside a graph.

For a datatype of which only lowering functions are known, this is what its operations mean.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from compiler.tensor.expr import COMPARISONS, BinOp, Call, Expr, cast
from compiler.types.dtypes import BOOL, Array, DType
from datatypes.registry import changes

Body = Callable[..., Expr]


@dataclass(frozen=True)
class Elementwise:
    """A compiled function of arrays; `tables` are the look-up tables it reads."""

    entry: Callable[..., None]
    result: DType
    tables: tuple[Array, ...]

    def __call__(self, *arrays: Array) -> Array:
        """Storage arrays of one shape -> storage array of that shape."""
        first = arrays[0] if arrays else np.zeros(())
        out = np.empty(first.shape, self.result.storage)
        operands = [np.ascontiguousarray(a) for a in arrays]
        self.entry(*(a.ctypes.data for a in (*operands, out, *self.tables)), out.size)
        return out


def operate(op: str, dtype: DType, *operands: Array) -> Array:
    """`op` (an operation, or a function's name) on storage arrays of `dtype`, which broadcast.

    Raises:
        LoweringError: the datatype has no lowering for it.
    """
    arrays = np.broadcast_arrays(*(np.asarray(a, dtype.storage) for a in operands))
    return _operation(op, dtype, len(arrays), changes())(*arrays)


def convert(values: Array, source: DType, dest: DType) -> Array:
    """Storage array of `dest` for a storage array of `source`.

    Raises:
        LoweringError: the datatype has no lowering for it.
    """
    return _conversion(source, dest, changes())(np.asarray(values, source.storage))


def constant(value: Expr) -> Array:
    """Storage array of shape () of an expression without operands.

    Raises:
        LoweringError: the datatype has no lowering for it.
    """
    return compile_elementwise("constant", (), value.dtype, lambda: value)()


# A registration changes what is compiled, hence the count of changes in the keys.
@lru_cache(maxsize=512)
def _operation(op: str, dtype: DType, count: int, _changes: int) -> Elementwise:
    def body(*xs: Expr) -> Expr:
        if count == 1:
            return Call(op, xs, dtype)
        return BinOp(op, xs[0], xs[1], BOOL if op in COMPARISONS else dtype)

    result = BOOL if op in COMPARISONS else dtype
    return compile_elementwise(op.lower(), (dtype,) * count, result, body)


@lru_cache(maxsize=128)
def _conversion(source: DType, dest: DType, _changes: int) -> Elementwise:
    return compile_elementwise("cast", (source,), dest, lambda x: cast(x, dest))


def compile_elementwise(
    name: str, inputs: Sequence[DType], result: DType, body: Body, target: str = "llvm"
) -> Elementwise:
    """Compile `out[i] = body(a[i], b[i], ...)` for a target that this host can run, with the
    pipeline's stages for loop nests; its loop runs as it is written."""
    from compiler.passes.pipeline import run
    from compiler.runtime.kernels import Scheduled
    from compiler.runtime.loader import loader_of
    from compiler.runtime.nests import Nest
    from compiler.symbolic import Var
    from compiler.target.intrinsics.emission import program_text
    from compiler.target.registry import Target
    from compiler.tensor.builder import PrimBuilder
    from compiler.types.names import digest

    builder, n, chosen = PrimBuilder(name), Var("n"), Target.parse(target)
    operands = [builder.input(f"x{k}", (n,), dtype) for k, dtype in enumerate(inputs)]
    out = builder.compute("out", (n,), result, lambda i: body(*(x[i] for x in operands)))
    nest = Nest(builder.finish([out]), chosen, arranged=True)
    nest = run(nest, "schedule", "custom datatypes in loops")
    symbol = f"elementwise_{name}_{digest(program_text(nest.func))}"
    made = Scheduled(nest.func, nest.tables, symbol).code(chosen)
    address = loader_of(chosen).compiled(made, chosen)
    pointers: list[Any] = [ctypes.c_void_p] * (len(inputs) + 1 + len(nest.tables))
    entry = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64)(address)
    return Elementwise(entry, result, tuple(t.data for t in nest.tables if t.data is not None))
