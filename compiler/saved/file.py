"""The file of an executable: a zip archive of a manifest, machine code, constants and text.

The manifest says first for which version and CPU the code is; anything else is read only where both
fit. Constants are raw bytes whose sizes are checked against the manifest before they are used.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.codegen import cache
from compiler.errors import ModelError
from compiler.files.writing import atomic_path
from compiler.runtime.kernels import aligned_copy
from compiler.target.cuda import ON_LOOPS
from compiler.target.registry import Target, host
from compiler.types.dtypes import Array

FORMAT = 2
"""Number of the layout of these files."""
LARGEST_TEXT = 256 << 20
"""Bytes that a manifest or a text may have, unpacked."""


class Writer:
    """Collects the parts of a file."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self._arrays: dict[int, str] = {}

    def add(self, kind: str, content: bytes) -> str:
        """Name of a part with this content."""
        for name, held in self.parts.items():
            if name.startswith(kind) and held == content:
                return name
        name = f"{kind}/{len(self.parts)}"
        self.parts[name] = content
        return name

    def array(self, a: Array) -> list[Any]:
        """How the manifest names a constant."""
        if id(a) not in self._arrays:
            self._arrays[id(a)] = f"constant/{len(self.parts)}"
            self.parts[self._arrays[id(a)]] = a.tobytes()
        return [self._arrays[id(a)], a.dtype.str, list(a.shape)]

    def write(self, path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> None:
        """Write the file, in place of what is there.

        Raises:
            ConfigError: it cannot be written; what is there stays.
        """
        with atomic_path(path) as whole, zipfile.ZipFile(whole, "w") as archive:
            archive.writestr("manifest.json", json.dumps(manifest), zipfile.ZIP_DEFLATED)
            for name, content in self.parts.items():
                packed = zipfile.ZIP_STORED if name[0] == "c" else zipfile.ZIP_DEFLATED
                archive.writestr(name, content, packed)


@dataclass(frozen=True)
class Reader:
    """An open file whose version and CPU fit."""

    path: str
    archive: zipfile.ZipFile
    manifest: Mapping[str, Any]

    def content(self, name: str, size: int | None = None) -> bytes:
        """A part; of `size` bytes, where that is known.

        Raises:
            ValueError: it has another size, or is too large.
        """
        info = self.archive.getinfo(name)
        if info.file_size != size if size is not None else info.file_size > LARGEST_TEXT:
            raise ValueError(f"{name} has {info.file_size} bytes")
        return self.archive.read(info)

    def array(self, given: Sequence[Any]) -> Array:
        """A constant that the manifest names."""
        name, dtype, shape = given
        kind = np.dtype(str(dtype))
        if kind.hasobject or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"{name} cannot be of dtype {dtype} and shape {shape}")
        content = self.content(name, math.prod(shape) * kind.itemsize)
        return aligned_copy(np.frombuffer(content, kind).reshape(shape))


def header(target: Target) -> dict[str, Any]:
    """What a file says about its version and CPU."""
    _, *machine = target.machine
    return {
        "format": FORMAT,
        "compiler": list(cache.versions()),
        "target": [target.text, *machine],
        "needs": sorted(host().enabled if target.generator == ON_LOOPS else target.enabled),
    }


def target_of(path: str, manifest: Mapping[str, Any]) -> Target:
    """The target of a file's code.

    Raises:
        ModelError: the file is of another version of the compiler, or for another CPU.
    """
    if manifest["format"] != FORMAT or manifest["compiler"] != list(cache.versions()):
        raise ModelError(f"{path} was saved by another version of dtypelab: build the model again")
    text, triple, cpu, features = map(str, manifest["target"])
    elsewhere = Target.anywhere(text)
    if elsewhere.elsewhere and elsewhere.machine[1:] == (triple, cpu, features):
        return elsewhere
    here = host()
    missing = sorted(set(manifest["needs"]) - here.enabled)
    if triple != here.triple or missing:
        lacks = f"needs {', '.join(missing)}" if missing else f"is for {triple}"
        raise ModelError(f"{path} is for another CPU ({lacks}): build the model again here")
    if elsewhere.generator == ON_LOOPS:
        raise ModelError(f"{path} is for the CPU {cpu}: build the model again here")
    return Target(text, triple, cpu, features, frozenset(map(str, manifest["needs"])))
