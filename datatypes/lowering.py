"""Ready-made lowering functions, under the names TVM gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.errors import LoweringError
from compiler.tensor.expr import (
    COMPARISONS,
    BinOp,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    Select,
    const,
)
from compiler.types.dtypes import FLOAT32, DType
from datatypes.c_libraries.library import require_symbol
from datatypes.registry import LowerFunc, MinFunc, Operation

Widths = Mapping["int | tuple[int, int]", str]


def create_lower_func(extern_func_map: Widths) -> LowerFunc:
    """Lowering to calls of C functions, on and returning storage integers by value.

    Args:
        extern_func_map: width in bits -> C symbol; for Cast, (source bits, destination bits) ->
            symbol. Comparisons go by the width of their operands, and return C's `bool`. The
            function for FloatImm takes a `float`.

    Returns:
        The lowering function; it raises LoweringError for a width that is not in the map.
    """
    return LibraryCalls(dict(extern_func_map))


@dataclass(frozen=True)
class LibraryCalls:
    """What `create_lower_func` makes: a lowering to the C functions in `functions`."""

    functions: dict[int | tuple[int, int], str]

    def __call__(self, node: Expr) -> Expr:
        """The call for an operation."""
        key, args, result = _signature(node)
        if key not in self.functions:
            raise LoweringError(
                f"{Operation.of(node, 'llvm')} of {_custom_dtype(node)} has no C function for "
                f"{_width(key)} bits, only for {', '.join(map(_width, self.functions)) or 'none'}; "
                f"add {key}: SYMBOL to what create_lower_func is given"
            )
        return CallExtern(self.functions[key], tuple(map(stored, args)), result)

    def check(self) -> None:
        """Raise a DtypelabError unless loaded libraries have all the functions."""
        for symbol in self.functions.values():
            require_symbol(symbol)


def create_min_lower_func(extern_func_map: Mapping[int, str], type_name: str) -> MinFunc:
    """For `register_min_func`: C functions without arguments that return the smallest value.

    Args:
        extern_func_map: width in bits -> C symbol.
        type_name: name of the datatype.
    """
    functions = dict(extern_func_map)

    def lower(num_bits: int) -> Expr:
        dtype = DType("custom", num_bits, type_name)
        if num_bits not in functions:
            raise LoweringError(
                f"the minimum of {dtype} has no C function, only for "
                f"{', '.join(map(str, functions)) or 'no'} bits; add {num_bits}: SYMBOL to what "
                "create_min_lower_func is given"
            )
        return CallExtern(functions[num_bits], (), dtype.storage_dtype)

    return lower


def call_pure_extern(dtype: DType | str, symbol: str, *args: Expr) -> Expr:
    """Call of a C function without side effects, for lowering functions of your own.

    Args:
        dtype: what it returns: a built-in dtype, or the datatype (its storage integer).
        symbol: its name; the library that has it must be loaded (`load_library`).
        args: operands; those of a custom datatype are passed as their storage integers.
    """
    return CallExtern(symbol, tuple(map(stored, args)), DType.parse(dtype))


def lower_ite(node: Expr) -> Expr:
    """Lowers `if_then_else(condition, a, b)` to a choice between storage integers."""
    if not isinstance(node, Call) or len(node.args) != 3:
        raise LoweringError(f"lower_ite is for Call of if_then_else, not {node!r}")
    condition, a, b = map(stored, node.args)
    return Select(condition, a, b)


def lower_call_pure_extern(node: Expr) -> Expr:
    """Lowers the call of a function to the C function of the same name, on storage integers."""
    if not isinstance(node, (Call, CallExtern)):
        raise LoweringError(f"lower_call_pure_extern is for calls, not {node!r}")
    symbol = node.fn if isinstance(node, Call) else node.symbol
    return CallExtern(symbol, tuple(map(stored, node.args)), node.dtype.storage_dtype)


def stored(operand: Expr) -> Expr:
    """The storage integer of an operand of custom dtype; other operands as they are."""
    from compiler.lowering.custom_dtypes import Stored

    return operand.bits if isinstance(operand, Stored) else operand


def _signature(node: Expr) -> tuple[int | tuple[int, int], tuple[Expr, ...], DType]:
    """(key in the map, arguments, result) of the C function for an operation."""
    result = node.dtype.storage_dtype
    if isinstance(node, Cast):
        return (node.value.dtype.bits, node.dtype.bits), (node.value,), result
    if isinstance(node, FloatImm):
        return node.dtype.bits, (const(node.value, FLOAT32),), result
    if isinstance(node, Call):
        return node.dtype.bits, node.args, result
    if isinstance(node, BinOp):
        bits = node.a.dtype.bits if node.op in COMPARISONS else node.dtype.bits
        return bits, (node.a, node.b), result
    raise LoweringError(f"create_lower_func makes no lowering of {type(node).__name__}")


def _custom_dtype(node: Expr) -> DType:
    dtypes = [node.dtype, *(child.dtype for child in node.children())]
    return next((dtype for dtype in dtypes if dtype.is_custom), node.dtype)


def _width(key: int | tuple[int, int]) -> str:
    return f"{key[0]} to {key[1]}" if isinstance(key, tuple) else str(key)


__all__: list[str] = [
    "call_pure_extern", "create_lower_func", "create_min_lower_func", "lower_call_pure_extern",
    "lower_ite", "stored",
]  # fmt: skip
