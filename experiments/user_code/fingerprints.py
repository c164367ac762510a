"""What a user's Python functions and objects mean, as a hash: two of one name can be told apart.

A function counts with its code, its defaults, what it closes over and the globals that it reads,
as far as these are the user's own too; functions of installed packages count by their names, as the
versions of packages have columns of their own. Where a function stands (file, line, comments)
does not count, nor does Python's hash seed.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import adapters

_STANDARD = str(Path(sysconfig.get_path("stdlib")).resolve())
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
_MEMBERS = (types.FunctionType, staticmethod, classmethod, property, *_PLAIN)


@dataclass
class Fingerprint:
    """Gathers what values mean; `texts` are the strings in them, such as names of C functions."""

    texts: set[str] = field(default_factory=set)
    _seen: dict[int, int] = field(default_factory=dict)
    #: What was seen is kept alive, so that its `id` stays its own.
    _kept: list[Any] = field(default_factory=list)

    def of(self, value: Any) -> str:
        """Hexadecimal SHA-256 of what `value` means."""
        return hashlib.sha256(repr(self._plain(value)).encode()).hexdigest()

    def _plain(self, value: Any) -> Any:
        """The value as nested tuples of texts and numbers."""
        if isinstance(value, str):
            self.texts.add(value)
        if isinstance(value, _PLAIN):
            return type(value).__name__, repr(value)
        if id(value) in self._seen:
            return "again", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return type(value).__name__, self._compound(value)

    def _compound(self, value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            array = np.ascontiguousarray(value)
            if array.dtype == object:
                return str(array.dtype), array.shape, self._all(array.ravel().tolist())
            return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()
        if isinstance(value, list | tuple):
            return self._all(value)
        if isinstance(value, set | frozenset):
            return tuple(sorted(Fingerprint(self.texts).of(v) for v in value))
        if isinstance(value, Mapping):
            return tuple((self._plain(k), self._plain(v)) for k, v in value.items())
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.MethodType):
            return self._plain(value.__func__), self._plain(value.__self__)
        if isinstance(value, functools.partial):
            return self._all((value.func, value.args, value.keywords))
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, type):
            return self._type(value)
        if is_dataclass(value):
            return self._type(type(value)), tuple(
                (f.name, self._plain(getattr(value, f.name))) for f in fields(value)
            )
        named = (getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
        return self._type(type(value)), named, self._plain(_state(value))

    def _all(self, values: Iterable[Any]) -> Any:
        return tuple(self._plain(v) for v in values)

    def _function(self, f: types.FunctionType) -> Any:
        cells = [cell.cell_contents for cell in f.__closure__ or () if _filled(cell)]
        held = self._all((f.__defaults__, f.__kwdefaults__, cells))
        if _installed(f.__module__, f.__globals__.get("__file__")):
            return f.__module__, f.__qualname__, held
        source = adapters.sha256_of(f.__globals__)
        if source is not None:
            return source, f.__qualname__, held
        names = sorted(_names(f.__code__))
        read = {n: f.__globals__[n] for n in names if n in f.__globals__}
        for module in [m for m in read.values() if isinstance(m, types.ModuleType)]:
            if not _installed(module.__name__, getattr(module, "__file__", None)):
                read |= {f"{module.__name__}.{n}": getattr(module, n, None) for n in names}
        return self._code(f.__code__), held, self._plain(read)

    def _code(self, code: types.CodeType) -> Any:
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
        return code.co_code.hex(), names, counts, self._all(code.co_consts)

    def _type(self, kind: type) -> Any:
        name = (kind.__module__, kind.__qualname__)
        module = sys.modules.get(kind.__module__)
        if _installed(kind.__module__, getattr(module, "__file__", None)):
            return name
        own = {
            k: v
            for k, v in vars(kind).items()
            if isinstance(v, _MEMBERS)
            and k not in ("__module__", "__doc__", "__qualname__", "__firstlineno__")
        }
        return kind.__qualname__, tuple((k, self._member(v)) for k, v in sorted(own.items()))

    def _member(self, member: Any) -> Any:
        if isinstance(member, property):
            return self._all((member.fget, member.fset))
        return self._plain(getattr(member, "__func__", member))


def _state(value: Any) -> Any:
    """What an object would be copied from."""
    try:
        reduced = value.__reduce_ex__(2)
    except (TypeError, AttributeError, NotImplementedError):  # a lock, an open file ...
        return dict(getattr(value, "__dict__", {}))
    if isinstance(reduced, str):
        return reduced
    return tuple(list(part) if isinstance(part, Iterator) else part for part in reduced)


def _names(code: types.CodeType) -> set[str]:
    """Names that code, and the code in it, may look up."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # not filled yet
        return False


def _installed(module: str | None, file: str | None) -> bool:
    """Whether code belongs to Python, to an installed package or to this program."""
    if module is None:
        return False
    if module.partition(".")[0] in adapters.OURS or module in sys.builtin_module_names:
        return True
    if file is None:
        return False
    path = Path(file).resolve()
    packages = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(packages) or str(path).startswith(_STANDARD)
