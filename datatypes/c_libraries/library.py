"""C libraries whose functions compiled code calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
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
    if not os.path.isfile(path):
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


def libraries_of(names: Iterable[str]) -> list[Path]:
    """The loaded libraries that hold the C functions of these names; names of none are passed over.

    It is the one whose function compiled code calls: where a name is in several, the first loaded.
    """
    found = {key for name in names if _loaded and (key := _holder(name)) in _loaded}
    return sorted(map(Path, found))


def _holder(symbol: str) -> str:
    """Path of the file that a C function is in; empty if there is none."""
    import llvmlite.binding as llvm

    address = llvm.address_of_symbol(symbol) if symbol.isidentifier() else None
    about = _SymbolInfo()
    if address is None or not _dladdr(ctypes.c_void_p(address), ctypes.byref(about)):
        return ""
    return str(Path(os.fsdecode(about.file or b"")).resolve())


class _SymbolInfo(ctypes.Structure):
    """What `dladdr` fills in (dlfcn.h, Dl_info)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _dladdr(address: ctypes.c_void_p, about: object) -> int:
    function = ctypes.CDLL(None).dladdr
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
    return int(function(address, about))


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
