"""Files of outputs and inputs; see `compiler.files.writing` and `compiler.files.reading`."""

from __future__ import annotations

import hashlib

from compiler.files.reading import ARRAYS, AnyPath, open_file
from compiler.files.writing import (
    atomic_path,
    check_outputs,
    check_writable,
    remove_leftover,
    write_whole,
)

__all__ = [
    "atomic_path",
    "check_outputs",
    "check_writable",
    "remove_leftover",
    "sha256",
    "write_whole",
]


def sha256(path: AnyPath) -> str:
    """Hexadecimal SHA-256 of a file's bytes.

    Raises:
        ConfigError: it is no file.
    """
    with open_file(path, "the file", most=ARRAYS) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
