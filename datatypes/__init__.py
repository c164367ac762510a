"""Custom datatypes: number formats as data, and what the compiler needs to compute in them.

Importing this package makes every format a dtype: `posit16_es1` parses, as `custom[posit16_es1]16`.
The compiler does so itself when a name is asked for that it does not know: this package is one of
the providers of formats that the metadata names (see `compiler.types.providers`).
"""

from __future__ import annotations

from compiler._lazy import lazy
from compiler.types.dtypes import CustomDType, notations, resolvers
from compiler.types.providers import libraries

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "datatypes.custom.codec": ["decode", "encode"],
        "datatypes.custom.defining": ["define"],
        "datatypes.formats": ["Format", "get", "list_formats", "to_ml_dtypes"],
        "datatypes.c_libraries.library": ["load_library"],
        "datatypes.hardware.generate": ["hardware"],
        "datatypes.lowering": [
            "call_pure_extern",
            "create_lower_func",
            "create_min_lower_func",
            "lower_call_pure_extern",
            "lower_ite",
        ],
        "datatypes.custom.registration": ["register", "register_min_func", "register_op"],
        "datatypes.registry": ["registered_types", "type_code", "type_name"],
        "datatypes.retype.change_dtype": ["change_dtype"],
    },
)


def _format(name: str) -> CustomDType | None:
    """The datatype of the built-in format called `name`, which needs no registration."""
    from datatypes.custom.custom_type import described

    return described(name)


def _notation(name: str) -> str | None:
    """`custom[NAME]BITS` for the name of a built-in format."""
    if not name.isidentifier():
        return None
    from datatypes.custom.custom_type import described

    found = described(name)
    return f"custom[{name}]{found.fmt.nbits}" if found and found.fmt else None


def _library(function: str) -> None:
    """Load SoftPosit's library if a C function is one of its."""
    from datatypes.c_libraries.softposit import SIGNATURES

    if function in SIGNATURES:
        from datatypes.builtin.softposit import load_functions

        load_functions()


libraries.append(_library)
resolvers.append(_format)
notations.append(_notation)
