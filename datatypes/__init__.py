"""Custom datatypes: number formats as data, and what the compiler needs to compute in them.

Importing this package makes every format's name a dtype: `custom[posit16_es1]16` parses.
"""

from __future__ import annotations

from compiler._lazy import lazy
from compiler.dtypes import CustomDType, resolvers

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "datatypes.formats": ["Format", "decode", "define", "encode", "get", "list_formats"],
        "datatypes.library": ["load_library"],
        "datatypes.lowering": [
            "create_lower_func",
            "create_min_lower_func",
            "lower_call_pure_extern",
            "lower_ite",
        ],
        "datatypes.registry": [
            "register",
            "register_min_func",
            "register_op",
            "registered_types",
            "type_code",
            "type_name",
        ],
        "datatypes.retype": ["change_dtype"],
    },
)


def _format(name: str) -> CustomDType | None:
    """The datatype of the built-in format called `name`, which needs no registration."""
    from datatypes.registered import described

    return described(name)


resolvers.append(_format)
