"""Built-in lowerings of described formats ("library" lowering: scalar calls and table look-ups).

- `softposit`: posit8_es0, posit16_es1 and posit32_es2 call SoftPosit's C functions;
- `bfloat16`: float32 arithmetic and integer rounding;
- `common.look_up_pair`: a table of all pairs of operands, for the other formats of up to 8 bits;
- `logarithmic`: integer arithmetic and a table of corrections, for wider logarithmic formats;
- `through_float64`: float64 arithmetic and one rounding, for all others;
- `stochastic`: the same for stochastic rounding, with random bits from the place;
- `compare`, `functions`: order and functions of one operand, for all.

Every one gives the bits of `datatypes.arithmetic.oracle`.
"""

from __future__ import annotations

from compiler.arithmetic.stochastic import PLACED, Place
from compiler.errors import LoweringError
from compiler.tensor.expr import COMPARISONS, BinOp, Call, Cast, Expr
from datatypes.arithmetic import oracle
from datatypes.builtin import (
    bfloat16,
    common,
    compare,
    functions,
    logarithmic,
    mixed,
    softposit,
    stochastic,
    through_float64,
)
from datatypes.formats import Format
from datatypes.lowering import stored


def lower(fmt: Format, node: Expr, place: Place | None = None) -> Expr | None:
    """`node`, whose operands are `Stored`, on storage integers; None where there is no lowering.

    A format that rounds stochastically does so at `place`; without one, conversions go to the
    nearest value (of constants), and arithmetic has no lowering.
    """
    if fmt.rounding == "stochastic":
        if place is not None:
            return stochastic.lower(fmt, node, place)
        fmt = oracle.functions_format(fmt)
        name = node.op if isinstance(node, BinOp) else node.fn if isinstance(node, Call) else ""
        if name in PLACED and fmt.table(name) is None:
            return None
    if isinstance(node, Cast):
        return _cast(fmt, node)
    if fmt.storage_only:
        raise LoweringError(f"{fmt.name} only stores values; compute in another format")
    if isinstance(node, Call) and (
        node.fn == "sum" or (node.fn == "fma" and mixed.is_mixed(node.args))
    ):
        return mixed.add_into(fmt, node.args)
    if isinstance(node, Call) and node.fn == "fma":
        return through_float64.multiply_add(fmt, *map(stored, node.args))
    if isinstance(node, Call):
        return functions.lower(fmt, node.fn, stored(node.args[0])) if node.args else None
    if not isinstance(node, BinOp):
        return None
    a, b = stored(node.a), stored(node.b)
    if fmt.table(node.op) is not None:
        return common.look_up_pair(fmt, node.op, a, b)
    if fmt.name == bfloat16.NAME:
        return bfloat16.binary(node.op, a, b)
    if node.op in COMPARISONS or node.op in ("Max", "Min"):
        return compare.lower(fmt, node.op, a, b)
    if fmt.name in softposit.PREFIXES:
        return softposit.binary(fmt, node.op, a, b)
    if fmt.nbits <= common.PAIR_BITS:
        return common.look_up_pair(fmt, node.op, a, b)
    if fmt.logarithmic:
        return logarithmic.binary(fmt, node.op, a, b)
    return through_float64.binary(fmt, node.op, a, b)


def _cast(fmt: Format, node: Cast) -> Expr | None:
    if node.dtype.is_custom and node.dtype.name == fmt.name:
        if fmt.name == bfloat16.NAME and str(node.value.dtype) == "float32":
            return bfloat16.encode(node.value)
        return through_float64.encode_any(fmt, node.value)
    if fmt.name == bfloat16.NAME and str(node.dtype) == "float32":
        return bfloat16.decode(stored(node.value))
    return through_float64.decode_any(fmt, stored(node.value), node.dtype)
