"""The registry: datatypes by name and type code, and the lowering functions of their operations.

This is the data; `datatypes.custom.registration` fills it, `datatypes.custom.custom_type` is what
it means.

The vocabulary is that of TVM's Bring Your Own Datatypes (G. Smith and others, 2020). A lowering
function takes one scalar operation and returns an expression that does the same on storage
integers: a call of a C function, a table look-up, or any other expression. It may use the datatype
itself, as long as that comes to an end; what it returns is lowered again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from compiler.errors import DtypelabError, LoweringError, unknown
from compiler.tensor.expr import BinOp, Call, Cast, Expr, FloatImm
from compiler.types.dtypes import DType

LowerFunc = Callable[[Expr], Expr]
MinFunc = Callable[[int], "Expr | float"]

OPERATIONS = (
    "Add", "Sub", "Mul", "Div", "Max", "Min", "LT", "LE", "GT", "GE", "EQ", "NE",
    "Cast", "FloatImm", "Call",
)  # fmt: skip
BUILTIN_TYPES = ("float", "int", "uint", "bool")
TARGETS = ("llvm",)
FIRST_CODE, LAST_CODE = 150, 255
FIRST_AUTOMATIC = 192
"""Codes below are given out last, so that a datatype that asks for one finds it free."""


@dataclass(frozen=True)
class Operation:
    """What a lowering function is registered for.

    Attributes:
        name: one of OPERATIONS.
        target: kind of target, such as `llvm`.
        source: name of the operands' type; `float`, `int`, `uint` and `bool` are built in.
        dest: Cast: name of the type converted to; else empty.
        function: Call: name of the function; else empty.
    """

    name: str
    target: str
    source: str
    dest: str = ""
    function: str = ""

    @staticmethod
    def of(node: Expr, target: str) -> Operation:
        """The operation of an expression that a custom datatype takes part in."""
        if isinstance(node, BinOp):
            return Operation(node.op, target, type_name_of(node.a.dtype))
        if isinstance(node, Cast):
            source, dest = type_name_of(node.value.dtype), type_name_of(node.dtype)
            return Operation("Cast", target, source, dest)
        if isinstance(node, FloatImm):
            return Operation("FloatImm", target, type_name_of(node.dtype))
        if isinstance(node, Call):
            return Operation("Call", target, type_name_of(node.dtype), function=node.fn)
        raise LoweringError(f"{type(node).__name__} is no operation of a datatype")

    def how_to_register(self) -> str:
        """The call of `register_op` that would give this operation a lowering."""
        words = [self.name, self.target, self.source, *([self.dest] if self.dest else [])]
        call = "datatypes.register_op(lower_func, " + ", ".join(f'"{w}"' for w in words)
        return call + (f', intrinsic_name="{self.function}")' if self.function else ")")

    def __str__(self) -> str:
        return self.function or (f"Cast to {self.dest}" if self.dest else self.name)


_codes: dict[str, int] = {}
_lowerings: dict[Operation, LowerFunc] = {}
_minimums: dict[str, MinFunc] = {}
_changes = 0


def registered_types() -> dict[str, int]:
    """Name -> type code of the datatypes that were registered (built-in formats have no code)."""
    return dict(_codes)


def type_code(name: str) -> int:
    """Type code of a registered datatype.

    Raises:
        DtypelabError: there is none of this name.
    """
    if name not in _codes:
        raise DtypelabError(unknown("registered datatype", name, _codes))
    return _codes[name]


def type_name(code: int) -> str:
    """Name of the registered datatype with a type code.

    Raises:
        DtypelabError: no datatype has this code.
    """
    for name, held in _codes.items():
        if held == code:
            return name
    raise DtypelabError(f"no datatype has type code {code}; see datatypes.registered_types()")


def lowering(operation: Operation) -> LowerFunc | None:
    """The lowering function registered for an operation."""
    return _lowerings.get(operation)


def customized(name: str) -> bool:
    """Whether any function was registered for the datatype called `name`."""
    return name in _minimums or any(name in (o.source, o.dest) for o in _lowerings)


def minimum(name: str) -> MinFunc | None:
    """The function registered by `register_min_func`."""
    return _minimums.get(name)


def registered(names: Collection[str]) -> dict[str, LowerFunc | MinFunc]:
    """Everything that was registered for datatypes called so, by what it is for, in order of that:
    conversions from one to another count where both are among `names`."""
    own = {*names} - {*BUILTIN_TYPES}
    found: dict[str, LowerFunc | MinFunc] = {
        f"minimum {name}": f for name, f in _minimums.items() if name in own
    }
    for o, function in _lowerings.items():
        types = {o.source, o.dest} - {*BUILTIN_TYPES, ""}
        if types <= own:
            words = (o.name, o.target, o.source, o.dest, o.function)
            found[" ".join(filter(None, words))] = function
    return dict(sorted(found.items()))


def changes() -> int:
    """How many registrations there were: what was compiled before may be out of date after one."""
    return _changes


def type_name_of(dtype: DType) -> str:
    """A dtype's name in registrations, without its width."""
    return dtype.name if dtype.is_custom else dtype.kind


# ---- what datatypes.custom.registration adds -----------------------------------------------------
def add_type(name: str, code: int) -> None:
    """Note a datatype and its type code."""
    _codes[name] = code


def add_lowering(operation: Operation, lower_func: LowerFunc) -> None:
    """Note the lowering function of an operation, in place of an earlier one."""
    global _changes
    _lowerings[operation] = lower_func
    _changes += 1


def add_minimum(name: str, func: MinFunc) -> None:
    """Note what tells the smallest finite value of a datatype."""
    global _changes
    _minimums[name] = func
    _changes += 1
