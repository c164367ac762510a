"""A folder for the temporary files of code of a user, which is removed with all that it left."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: The folder of `shared`: a list that has it once a process has asked for it.
_shared: list[Path] | None = None
#: Where temporary files were before this process had a folder of its own.
_outer: Path | None = None


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Processes that run code of a user in here have one folder, as a later one may be told of what
    an earlier one wrote: a model that an adapter makes, for example."""
    global _shared
    if _shared is not None:
        yield
        return
    _shared = []
    try:
        yield
    finally:
        for folder in _shared:
            remove(folder)
        _shared = None


def folder() -> tuple[Path | None, bool]:
    """A folder for a process, and whether it is for that one only, to be removed after it; None
    where none can be made."""
    if _shared:
        return _shared[0], False
    try:
        made = Path(tempfile.mkdtemp(prefix="dtypelab-"))
    except OSError:  # full, read-only
        return None, False
    if _shared is not None:
        _shared.append(made)
    return made, _shared is None


def use(folder: Path) -> None:
    """Let this process, and those that it starts, have their temporary files there."""
    global _outer
    _outer = outer()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def outer() -> Path:
    """Where temporary files that stay belong."""
    return _outer or Path(tempfile.gettempdir())


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as that is possible."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    for where, folders, _ in os.walk(folder):  # some cannot be entered as they are
        for name in folders:
            path = Path(where, name)
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
