"""Scalar expressions of loop nests.

Node names follow TVM's TIR where a datatype's lowering functions see them: `BinOp.op` is `Add`,
`Sub`, `Mul`, ...; `Cast` has `value` and `dtype`; `FloatImm` is a floating constant; `Call` names a
pure scalar function; `CallExtern` names a C symbol. Nodes are immutable and compared by identity.
"""

from compiler.tensor.expr.named import At, Let, LetVar, let
from compiler.tensor.expr.node import (
    BINARY,
    COMPARISONS,
    SYMBOLS,
    BinOp,
    Call,
    CallExtern,
    Cast,
    Expr,
    ExprLike,
    FloatImm,
    IntImm,
    Select,
    binary,
    call,
    cast,
    const,
    lowest,
    maximum,
    minimum,
    rewrite,
    select,
    walk,
)
from compiler.tensor.expr.reads import (
    Buffer,
    Gather,
    IndexValue,
    Load,
    index_condition,
    index_value,
    index_vars,
    loads,
    subst,
)

__all__ = [
    "BINARY", "COMPARISONS", "SYMBOLS", "At", "BinOp", "Buffer", "Call", "CallExtern", "Cast",
    "Expr", "ExprLike", "FloatImm", "Gather", "IndexValue", "IntImm", "Let", "LetVar", "Load",
    "Select", "binary", "call", "cast", "const", "index_condition", "index_value", "index_vars",
    "let", "loads", "lowest", "maximum", "minimum", "rewrite", "select", "subst", "walk",
]  # fmt: skip
