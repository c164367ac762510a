"""The registry: datatypes by name and type code, and the lowering functions of their operations.

The vocabulary is that of TVM's Bring Your Own Datatypes (G. Smith and others, 2020). A lowering
function takes one scalar operation and returns an expression that does the same on storage
integers: a call of a C function, a table look-up, or any other expression. It may use the datatype
itself, as long as that comes to an end; what it returns is lowered again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from compiler.errors import DtypelabError, LoweringError, unknown
from compiler.lowering.tables import forget
from compiler.tensor.expr import BinOp, Call, Cast, Expr, FloatImm
from compiler.types.dtypes import DType, register_custom

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


def register(name: str, type_code: int | None = None) -> int:
    """Register a datatype, so that `custom[NAME]BITS` parses for every width.

    Args:
        name: an identifier that no other datatype or built-in format has.
        type_code: 150 to 255; without it, one that is free.

    Returns:
        The type code.

    Raises:
        DtypelabError: the name or the code is taken or not possible.
    """
    from datatypes.custom_type import RegisteredType, described

    if not name.isidentifier() or not name.isascii():
        raise DtypelabError(f"{name!r} cannot name a datatype; use letters, digits and underscores")
    if name in BUILTIN_TYPES or described(name) is not None:
        raise DtypelabError(f"{name!r} is a built-in type; choose another name")
    if name in _codes:
        raise DtypelabError(f"datatype {name!r} is already registered, with code {_codes[name]}")
    holders = {code: holder for holder, code in _codes.items()}
    if type_code is None:
        order = [*range(FIRST_AUTOMATIC, LAST_CODE + 1), *range(FIRST_CODE, FIRST_AUTOMATIC)]
        type_code = next((code for code in order if code not in holders), None)
        if type_code is None:
            raise DtypelabError(f"all type codes up to {LAST_CODE} are taken")
    elif not FIRST_CODE <= type_code <= LAST_CODE:
        raise DtypelabError(
            f"type code {type_code} of {name!r} must be {FIRST_CODE} to {LAST_CODE}, or left out"
        )
    elif type_code in holders:
        raise DtypelabError(f"type code {type_code} is taken by datatype {holders[type_code]!r}")
    register_custom(RegisteredType(name))
    _codes[name] = type_code
    return type_code


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


def register_op(
    lower_func: LowerFunc,
    op_name: str,
    target: str,
    src_type_name: str,
    dest_type_name: str | None = None,
    intrinsic_name: str | None = None,
) -> None:
    """Say how one operation of a datatype is lowered; a later registration replaces an earlier one.

    Args:
        lower_func: scalar operation -> expression; see `create_lower_func`.
        op_name: one of OPERATIONS.
        target: kind of target: `llvm`.
        src_type_name: name of the datatype; for Cast, of the type converted from, which may be
            `float`, `int`, `uint` or `bool`. A built-in format may be named too.
        dest_type_name: for Cast only, name of the type converted to.
        intrinsic_name: for Call only, the function (`exp`, or `tir.exp` as in TVM).

    Raises:
        DtypelabError: an unknown operation, target or type, an argument that is not for it, or a C
            function that no loaded library has.
    """
    global _changes
    if op_name not in OPERATIONS:
        raise DtypelabError(unknown("operation", op_name, OPERATIONS))
    if target not in TARGETS:
        raise DtypelabError(unknown("target", target, TARGETS))
    if not callable(lower_func):
        raise DtypelabError(f"the lowering of {op_name} must be a function of one expression")
    if (op_name == "Cast") != (dest_type_name is not None):
        raise DtypelabError(f"{op_name}: dest_type_name is for Cast, and Cast needs it")
    if (op_name == "Call") != (intrinsic_name is not None):
        raise DtypelabError(f"{op_name}: intrinsic_name is for Call, and Call needs it")
    types = [src_type_name] if dest_type_name is None else [src_type_name, dest_type_name]
    custom_types = [name for name in types if name not in BUILTIN_TYPES]
    for name in custom_types:
        _require_type(name)
    if not custom_types:
        raise DtypelabError(f"{op_name} of {' and '.join(types)} has no custom datatype in it")
    check = getattr(lower_func, "check", None)
    if check is not None:
        check()
    function = (intrinsic_name or "").removeprefix("tir.")
    operation = Operation(op_name, target, src_type_name, dest_type_name or "", function)
    _lowerings[operation] = lower_func
    _changes += 1
    for name in custom_types:
        forget(name)


def register_min_func(func: MinFunc, type_name: str) -> None:
    """Say what the smallest finite value of a datatype is; max-pooling starts from it.

    Args:
        func: width in bits -> the value: a number, or an expression of the datatype, such as a
            FloatImm or what `create_min_lower_func` makes.
        type_name: name of the datatype.

    Raises:
        DtypelabError: no such datatype.
    """
    global _changes
    _require_type(type_name)
    _minimums[type_name] = func
    _changes += 1


# ---- what datatypes.custom_type looks up ---------------------------------------------------------
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


def _require_type(name: str) -> None:
    from datatypes.custom_type import described

    if name not in _codes and described(name) is None:
        raise DtypelabError(
            f"{unknown('datatype', name, [*_codes, *BUILTIN_TYPES])}; "
            f"register it with datatypes.register({name!r})"
        )
