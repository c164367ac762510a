"""What an ONNX value becomes while a model is imported, and constants made from numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.frontend.external_data import is_mapped
from compiler.ir.expr import Constant, Var
from compiler.symbolic import Index, IntLike, Quasi, dim
from compiler.types.dtypes import Array, DType, custom
from compiler.types.tensor_types import TensorType

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A small integer tensor whose elements are dimensions, some of them symbolic.

    Exporters compute the operands of Reshape and its like from Shape; kept as such a value, the
    computation is done during import. `data` is an object array of `Dim`.
    """

    data: Array
    dtype: DType


Imported = Var | Constant | Symbolic

MOST_ATOMS = 64
"""Size of a dimension's expression; each operation on it may square it."""


def numbers(c: Constant) -> Array:
    """What a constant's elements are; those of a custom dtype as float64."""
    return custom(c.dtype.name).decode(c.data, c.dtype) if c.dtype.is_custom else c.data


def constant_of(values: npt.ArrayLike, dtype: DType) -> Constant:
    """A constant of these numbers; those of a custom dtype are rounded to the nearest."""
    if not dtype.is_custom:
        return Constant.of(np.asarray(values), dtype)
    return Constant(custom(dtype.name).encode(np.asarray(values, np.float64), dtype), dtype)


def scalar(value: float, like: TensorType) -> Constant:
    """A scalar constant of the dtype of `like`."""
    return constant_of(value, like.dtype)


def transposed(c: Constant) -> Constant:
    """A constant matrix transposed; one in a mapped file stays there."""
    turned = c.data.T
    return Constant(turned if is_mapped(turned) else np.ascontiguousarray(turned), c.dtype, c.name)


def atoms_in(x: IntLike) -> int:
    """How many atoms an expression has, those inside others too; it stops counting at the limit."""
    count, todo = 0, [x]
    while todo and count <= MOST_ATOMS:
        part = todo.pop()
        for a in part.terms if isinstance(part, Index) else ():
            count += 1
            if isinstance(a, Quasi):
                todo += [a.a, a.b]
    return count


def symbolic(data: Any, dtype: DType) -> Symbolic | Constant:
    """Dimensions as an imported value: a Constant when all of them are known.

    Raises:
        UnsupportedError: one is made of too many others.
    """
    a = np.asarray(data, dtype=object)
    out = np.empty(a.shape, dtype=object)
    flat: list[IntLike] = [dim(x) for x in a.reshape(-1)]
    out.reshape(-1)[:] = flat
    if all(isinstance(x, int) for x in flat):
        return Constant(out.astype(dtype.storage), dtype)
    if any(atoms_in(x) > MOST_ATOMS for x in flat):
        raise UnsupportedError("dimensions that are that complicated; use shapes=...")
    return Symbolic(out, dtype)
