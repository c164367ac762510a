"""C libraries whose functions compiled code calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

from compiler.errors import DtypelabError

_loaded: dict[str, ctypes.CDLL] = {}


def load_library(source: str | os.PathLike[str] | ModuleType) -> ctypes.CDLL:
    """Make the C functions of a shared library callable from compiled code, and from Python.

    Names of functions are global: those of all loaded libraries must differ.

    Args:
        source: path of a shared library, or a module that is, or contains, a compiled extension
            (`import softposit; load_library(softposit)`).

    Returns:
        The library, as `ctypes` sees it. Loading it again returns the same one.

    Raises:
        DtypelabError: there is no such file, it is not a shared library, or the module contains no
            compiled extension.
    """
    path = _extension_of(source) if isinstance(source, ModuleType) else Path(source)
    if not path.is_file():
        raise DtypelabError(f"there is no library {path}; give the path of a shared library")
    key = str(path.resolve())
    if key not in _loaded:
        import llvmlite.binding as llvm

        try:
            llvm.load_library_permanently(key)
            _loaded[key] = ctypes.CDLL(key)
        except (RuntimeError, OSError) as error:
            raise DtypelabError(
                f"{path} does not load ({error}); compile it as a shared library, e.g. with "
                "`cc -shared -fPIC`"
            ) from None
    return _loaded[key]


def require_symbol(name: str) -> None:
    """Raise unless compiled code can call the C function `name`.

    Raises:
        DtypelabError: no loaded library has it.
    """
    import llvmlite.binding as llvm

    if llvm.address_of_symbol(name) is None:
        raise DtypelabError(
            f"no loaded library has the C function {name!r}; call datatypes.load_library first, or "
            "correct the name"
        )


def _extension_of(module: ModuleType) -> Path:
    """File of the compiled extension that `module` is, or that it imported."""
    for candidate in (module, *_imported(module)):
        file = getattr(candidate, "__file__", None) or ""
        if file.endswith(tuple(EXTENSION_SUFFIXES)):
            return Path(file)
    raise DtypelabError(
        f"module {module.__name__!r} has no compiled extension; give the path of a shared library"
    )


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    return (value for value in vars(module).values() if isinstance(value, ModuleType))
