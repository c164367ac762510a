"""What compiled code makes of the operations of a custom datatype: expressions of built-in dtypes.

The datatypes themselves, and what must be known of their values, are in `compiler.types.dtypes`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from compiler.errors import LoweringError
from compiler.tensor.expr import Expr
from compiler.types.dtypes import Array, CustomDType, DType, custom


@runtime_checkable
class LoweredDType(CustomDType, Protocol):
    """A custom datatype whose scalar operations are expressions on storage integers."""

    def lower(self, node: Expr, target: str) -> Expr:
        """Rewrite one scalar operation whose operands already are storage integers.

        `node` still carries the custom dtype; the result has no custom dtype in it.

        Raises:
            compiler.errors.LoweringError: the operation has no lowering for this dtype and target.
        """
        ...


@runtime_checkable
class VectorDType(LoweredDType, Protocol):
    """A custom datatype that may have a *vector* lowering: its values are held in lanes (float32 or
    float64 numbers equal to them; NaN for NaN and NaR), and every operation is an expression of
    ordinary float and integer operations whose result is rounded to the datatype.

    `dtype` is without a lane in every argument. Operands of custom dtype are given as
    `compiler.lowering.custom_dtypes.Lane`; what comes back is an expression of the lane's dtype (a
    comparison: bool; a cast to a built-in dtype: that). A lane may be -0.0 where the datatype has
    no signed zero; it encodes as zero.
    """

    def lanes(self, dtype: DType) -> DType | None:
        """FLOAT32 or FLOAT64; None if `dtype` has no vector lowering."""
        ...

    def lanes_reason(self, dtype: DType) -> str:
        """Why these lanes, or why none: words that continue "because"."""
        ...

    def slow_sums(self, dtype: DType) -> str:
        """Why sums of products of ordinary numbers are slow in lanes, in words that continue
        "because"; empty where they are not."""
        ...

    def vector(self, node: Expr, deferred: bool, keeps_nan: bool = True) -> Expr:
        """One scalar operation (BinOp, Cast, Call) on lanes.

        Args:
            node: the operation, with the custom dtype in it.
            deferred: Add and Mul in a sum may be cheaper and give NaN where they are not sure of
                the result, as long as the NaN stays; such a sum is done again without `deferred`.
            keeps_nan: whether operations keep the sign and the bits of NaN, see `TargetKind`.
        """
        ...

    def from_bits(self, bits: Expr, dtype: DType) -> Expr:
        """The lane of a code, which is an expression of the storage integer's dtype."""
        ...

    def to_bits(self, value: Expr, dtype: DType) -> Expr:
        """The code of a lane; the inverse of `from_bits`."""
        ...

    def lane_array(self, codes: Array, dtype: DType) -> Array:
        """Lanes of an array of codes."""
        ...


def lowered(kind: CustomDType) -> LoweredDType:
    """A custom datatype that compiled code can compute with.

    Raises:
        LoweringError: nothing is known of it but its values.
    """
    if not isinstance(kind, LoweredDType):
        raise LoweringError(f"custom datatype {kind.name!r} has no lowering: it cannot be compiled")
    return kind


def lane_of(dtype: DType) -> DType | None:
    """FLOAT32 or FLOAT64; None if the custom dtype has no vector lowering."""
    kind = custom(dtype.name)
    return kind.lanes(dtype) if isinstance(kind, VectorDType) else None
