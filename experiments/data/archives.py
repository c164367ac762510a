"""Arrays out of .npz archives that may come from anywhere: no pickles, and no more than a limit."""

from __future__ import annotations

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError
from compiler.files.reading import ARRAYS, VARIABLE, limit, open_file

_MAGIC = b"\x93NUMPY"
_SUFFIX = ".npy"
_CHUNK = 1 << 24
# What zipfile, its decompressors and numpy's reader of headers raise for damaged files.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(ValueError, TypeError, LookupError, NotImplementedError, RuntimeError, SyntaxError),
    *(MemoryError, OverflowError, AttributeError, tokenize.TokenError),
)


def arrays_of(path: str | Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file, by name.

    Raises:
        ConfigError: it is no file or no such archive, holds pickled objects, or its arrays are
            larger than `compiler.files.reading.limit`.
    """
    with open_file(path, "the arrays of", most=ARRAYS) as source:
        try:
            start = source.read(len(_MAGIC))
            source.seek(0)
            if start == _MAGIC:  # a lone array, whatever the file is called
                raise ConfigError(
                    f"{path} is not an .npz archive but a single array; use numpy.savez"
                )
            with zipfile.ZipFile(source) as archive:
                members = archive.infolist()
                _check_size(path, sum(m.file_size for m in members))
                found: dict[str, NDArray[Any]] = {}
                for member in members:
                    name = member.filename.removesuffix(_SUFFIX)
                    if name in found:
                        raise ConfigError(f"{path} holds two arrays called {name!r}")
                    with archive.open(member) as part:
                        found[name] = _array(part, member.file_size, name)
                return found
        except _DAMAGE as error:
            what = str(error) or type(error).__name__
            raise ConfigError(f"{path} is not an .npz archive of plain arrays: {what}") from error


def array_of(path: str | Path) -> NDArray[Any]:
    """The array of a .npy file.

    Raises:
        ConfigError: as `arrays_of`.
    """
    with open_file(path, "the array of", most=ARRAYS) as source:
        size = source.seek(0, 2)
        source.seek(0)
        _check_size(path, size)
        try:
            return _array(source, size, "it")
        except _DAMAGE as error:
            what = str(error) or type(error).__name__
            raise ConfigError(f"{path} is not a .npy file of a plain array: {what}") from error


def write_npz(file: str | Path | IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by names of any kind (`numpy.savez` has parameters called file and
    allow_pickle)."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}{_SUFFIX}", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _check_size(path: str | Path, size: int) -> None:
    if size > limit(ARRAYS):
        raise ConfigError(
            f"the arrays of {path} take {size} bytes, more than {limit(ARRAYS)}; if you trust it, "
            f"raise the limit with {VARIABLE}"
        )


def _array(part: IO[bytes], size: int, name: str) -> NDArray[Any]:
    """The array in a member of `size` bytes, which must hold what its header says: memory is taken
    before they are read."""
    version = np.lib.format.read_magic(part)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:  # (3, 0) only has names of fields that are not latin-1
        raise ValueError(f"{name} is of version {version}, which plain arrays are not")
    shape, fortran, dtype = read_header(part)
    if dtype.hasobject:
        raise ValueError(
            f"{name} holds Python objects, which are not loaded: save texts as np.array(..., str)"
        )
    if dtype.itemsize == 0 or dtype.subdtype:  # numpy would make elements of a byte, or more axes
        raise ValueError(f"{name} has elements of {dtype}, which are none of plain arrays")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"{name} does not hold an array of shape {shape}")
    flat = np.empty(math.prod(shape), dtype)
    left = flat.view(np.uint8).data
    while len(left):
        chunk = part.read(min(len(left), _CHUNK))
        if not chunk:
            raise ValueError(f"{name} is cut short")
        left[: len(chunk)] = chunk
        left = left[len(chunk) :]
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
