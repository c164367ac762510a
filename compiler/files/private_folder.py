"""Whether a folder is this user's alone to write, so that what is run from it is this user's."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

from compiler.errors import DtypelabWarning
from compiler.files.printable import printable

_warned: set[Path] = set()


def problem(folder: Path) -> str:
    """Why somebody else may have put something into an existing folder; empty if nobody can have.

    Raises:
        OSError: there is no such folder, or it cannot be looked at.
    """
    facts = folder.stat()  # of what a link leads to
    if not stat.S_ISDIR(facts.st_mode):
        return "is not a folder"
    if facts.st_uid != os.geteuid():
        return "belongs to another user"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return ""


def is_private(folder: Path, what: str) -> bool:
    """Whether nobody else can have written to an existing folder; if somebody can, a warning says
    so, once. `what` is what the folder is for ("the cache of compiled code").

    Raises:
        OSError: there is no such folder, or it cannot be looked at.
    """
    found = problem(folder)
    if found and folder not in _warned:
        _warned.add(folder)
        # No line of the caller's has to do with it, and none is shown of a file in brackets.
        text = printable(f"{what} is not used: {folder} {found}")
        warnings.warn_explicit(text, DtypelabWarning, "<dtypelab>", 1)
    return not found
