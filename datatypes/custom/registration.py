"""Registration of datatypes, of the lowering functions of their operations and of their smallest
values: what is checked before the registry has it."""

from __future__ import annotations

from compiler.errors import DtypelabError, unknown
from compiler.lowering.tables import forget
from compiler.types.block_names import names_blocks
from compiler.types.dtypes import register_custom
from datatypes import registry
from datatypes.custom.custom_type import RegisteredType, described
from datatypes.registry import (
    BUILTIN_TYPES,
    FIRST_AUTOMATIC,
    FIRST_CODE,
    LAST_CODE,
    OPERATIONS,
    TARGETS,
    LowerFunc,
    MinFunc,
    Operation,
    registered_types,
)


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
    codes = registered_types()
    if not name.isidentifier() or not name.isascii():
        raise DtypelabError(f"{name!r} cannot name a datatype; use letters, digits and underscores")
    if name in BUILTIN_TYPES or described(name) is not None:
        raise DtypelabError(f"{name!r} is a built-in type; choose another name")
    if names_blocks(name):
        raise DtypelabError(f"{name!r} names a block format; choose another name")
    if name in codes:
        raise DtypelabError(f"datatype {name!r} is already registered, with code {codes[name]}")
    holders = {code: holder for holder, code in codes.items()}
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
    registry.add_type(name, type_code)
    return type_code


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
    registry.add_lowering(operation, lower_func)
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
    _require_type(type_name)
    registry.add_minimum(type_name, func)


def _require_type(name: str) -> None:
    codes = registered_types()
    if name not in codes and described(name) is None:
        raise DtypelabError(
            f"{unknown('datatype', name, [*codes, *BUILTIN_TYPES])}; "
            f"register it with datatypes.register({name!r})"
        )
