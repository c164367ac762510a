"""Outputs that are either whole or absent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from compiler.errors import ConfigError


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], *, locked: bool = False) -> Iterator[Path]:
    """A temporary path beside `path` to write to; renamed onto it on success, removed on failure.

    The temporary name keeps the suffix, which some writers look at. A caller who holds a lock says
    `locked`: the name is then always the same, and `remove_leftover` finds what a kill left.

    Raises:
        ConfigError: the folder is missing or cannot be written.
    """
    final = Path(path)
    check_writable(final)
    if locked:
        temporary = _locked_temporary(final)
        temporary.touch()
    else:
        prefix = f".{final.stem}."
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=final.suffix, dir=final.parent)
        os.close(handle)
        temporary = Path(name)
    try:
        # mkstemp makes private files; an output gets the permissions any new file would.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftover(path: str | os.PathLike[str]) -> None:
    """Remove what a killed writer left of `atomic_path(path, locked=True)`; under the same lock."""
    _locked_temporary(Path(path)).unlink(missing_ok=True)


def _locked_temporary(final: Path) -> Path:
    return final.with_name(f".{final.stem}.new{final.suffix}")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Find out before any work whether a file can be written at `path`.

    Raises:
        ConfigError: the folder is missing or cannot be written, or `path` is a folder.
    """
    final = Path(path)
    folder = final.parent
    if not folder.is_dir():
        raise ConfigError(f"cannot write {final}: there is no folder {folder}; create it first")
    if final.is_dir():
        raise ConfigError(f"cannot write {final}: it is a folder; give a file name")
    try:
        # Only trying tells: permission bits know nothing of read-only mounts or of being root.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write {final}: the folder {folder} is not writable ({error.strerror})"
        ) from error


def sha256(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
