"""The C functions of SoftPosit, found inside the installed `softposit` package.

The package's extension module `_softposit` exports the library's own C symbols beside the Python
binding (`p16_add`, `convertDoubleToP16`, ...), so compiled code can call them directly. Posits
travel as unsigned integers of their width; `pX2` (es=2, n=2..32) as 32 bits, left-aligned, with n
as an extra argument. There is no function for negation or absolute value: both are integer
operations.

Source: C. Leong, SoftPosit (https://gitlab.com/cerlane/SoftPosit), 0.4.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import Any

from compiler.errors import DtypelabError, unknown

MODULE = "_softposit"
NEEDED = "softposit>=0.3.4.4"

_CTYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "int32": ctypes.c_int32,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "float64": ctypes.c_double,
}


@dataclass(frozen=True)
class Signature:
    """Types of a C function, as numpy names them (`bool` is C's _Bool)."""

    result: str
    arguments: tuple[str, ...]


def _signatures() -> dict[str, Signature]:
    posits = {"p8": "uint8", "p16": "uint16", "p32": "uint32", "pX2": "uint32"}
    found: dict[str, Signature] = {}
    for prefix, posit in posits.items():
        width = ("int32",) if prefix == "pX2" else ()
        for operation, count in (("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("mulAdd", 3)):
            found[f"{prefix}_{operation}"] = Signature(posit, (posit,) * count + width)
        for operation in ("sqrt", "roundToInt"):
            found[f"{prefix}_{operation}"] = Signature(posit, (posit, *width))
        for operation in ("eq", "le", "lt"):
            found[f"{prefix}_{operation}"] = Signature("bool", (posit, posit))
        label = prefix.upper()
        found[f"convertDoubleTo{label}"] = Signature(posit, ("float64", *width))
        found[f"convert{label}ToDouble"] = Signature("float64", (posit,))
        for other, target in posits.items():
            if other != prefix or prefix == "pX2":
                extra = ("int32",) if other == "pX2" else ()
                found[f"{prefix}_to_{other}"] = Signature(target, (posit, *extra))
    # The library lacks this one: pX2 with n=32 already is a p32.
    del found["pX2_to_p32"]
    return found


SIGNATURES: dict[str, Signature] = _signatures()
"""The functions on plain integers and doubles, by C name. All are checked to be there by `load`."""


@cache
def library_path() -> str:
    """Path of the shared library that exports SoftPosit's C functions.

    Raises:
        DtypelabError: the package is not installed, or was installed without its C library.
    """
    spec = importlib.util.find_spec(MODULE)
    if spec is not None and spec.origin is not None:
        return spec.origin
    try:
        version = importlib.metadata.version("softposit")
    except importlib.metadata.PackageNotFoundError:
        raise DtypelabError(f"softposit is not installed; install {NEEDED!r}") from None
    raise DtypelabError(
        f"softposit {version} was installed without its C library; install {NEEDED!r} from source "
        "(it needs a C compiler)"
    )


@cache
def load() -> ctypes.CDLL:
    """The library, with the argument and result types of all `SIGNATURES` declared.

    Raises:
        DtypelabError: there is no library, it does not load, or it lacks some of the functions.
    """
    path = library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise DtypelabError(f"{path} does not load ({error}); reinstall {NEEDED!r}") from error
    missing = [name for name in SIGNATURES if not hasattr(library, name)]
    if missing:
        raise DtypelabError(
            f"{path} lacks {len(missing)} of SoftPosit's C functions, such as {missing[0]}; "
            f"reinstall {NEEDED!r}"
        )
    for name, signature in SIGNATURES.items():
        function = getattr(library, name)
        function.restype = _CTYPES[signature.result]
        function.argtypes = [_CTYPES[argument] for argument in signature.arguments]
    return library


def function(name: str) -> Any:
    """The C function `name` as a Python callable on ints and floats.

    Raises:
        DtypelabError: no such function, or no library (see `load`).
    """
    if name not in SIGNATURES:
        raise DtypelabError(unknown("SoftPosit function", name, SIGNATURES))
    return getattr(load(), name)
