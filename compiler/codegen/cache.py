"""Object code kept on disk between processes.

An entry's name is a hash of everything that shapes the code: the program (see `key`), the target,
the versions of LLVM and llvmlite, and the compiler's own source files; a process whose source files
changed after it began to read them has entries of its own. Entries are written under another name
and moved into place, and carry a checksum: processes may share the folder, and may be killed. A
damaged entry is as good as none, and is replaced. Where the folder cannot be used there is no
caching; nor where somebody else could have put code into it (it is another user's, or others can
write to it), which a warning says.

The folder is DTYPELAB_CACHE_DIR (empty or "0": no caching), else `dtypelab` in the user's cache
folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
import time
import uuid
from pathlib import Path

from compiler._lazy import IMPORTED_AT
from compiler.files.private_folder import is_private
from compiler.target.registry import Target

VARIABLE = "DTYPELAB_CACHE_DIR"
LIMIT = 256 << 20
"""Bytes that the entries may take together; beyond it the least recently used ones go."""

_SUFFIX, _PARTIAL = ".obj", ".part"
_ABANDONED = 3600.0  # seconds after which a partial file is one of a killed process
_stats = {"compiled": 0, "loaded": 0, "reused": 0}
lock = threading.RLock()
"""Held while code is compiled and linked."""
_sizes: dict[Path, int] = {}  # what we believe each folder holds


def folder() -> Path | None:
    """Where entries are kept; None: nowhere."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) if given not in ("", "0") else None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification says to pass over relative ones
        return Path(base) / "dtypelab"
    try:
        return Path.home() / ".cache" / "dtypelab"
    except RuntimeError:  # no home folder
        return None


def key(target: Target, *program: str) -> str:
    """The name of the entry for what `program` says, compiled for `target`.

    `program` may be LLVM text, or any text from which the code follows, given the source files of
    this compiler.
    """
    parts = (
        *versions(),
        _edited(),
        *target.machine,
        *program,
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def versions() -> tuple[str, ...]:
    """What code depends on besides the program and the target: our source files, llvmlite, LLVM."""
    import llvmlite
    import llvmlite.binding as llvm

    ours = digest_of(Path(__file__).parents[1])
    return (ours, llvmlite.__version__, ".".join(map(str, llvm.llvm_version_info)))


def digest_of(package: Path) -> str:
    """A hash of a package's source files: an edited compiler is another compiler."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@functools.cache
def _edited() -> str:
    """Empty; of a process whose source files were edited while it read them, another text each
    time: what it runs is not what `versions` read."""
    edited = changed_since(Path(__file__).parents[1], IMPORTED_AT)
    return uuid.uuid4().hex if edited else ""


def changed_since(package: Path, moment: float) -> bool:
    """Whether a source file of a package was written between a moment (in seconds of the epoch)
    and now."""
    now = time.time()
    return any(moment < path.stat().st_mtime <= now for path in package.rglob("*.py"))


def count(event: str) -> None:
    """Note that code was "compiled", "loaded" from the disk, or "reused"."""
    _stats[event] += 1


def statistics() -> dict[str, int]:
    """How many pieces of code this process compiled, loaded from the disk, and had already."""
    return dict(_stats)


def load(name: str) -> bytes | None:
    """The content of an entry, None if there is none that is whole."""
    where = _trusted()
    if where is None:
        return None
    path = where / (name + _SUFFIX)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[32:]
    if data[:32] != _checksum(name, content):
        return None
    with contextlib.suppress(OSError):  # the time of the last use
        os.utime(path)
    return content


def store(name: str, content: bytes) -> None:
    """Keep an entry, if that is possible."""
    where = folder()
    if where is None:
        return
    partial = ""
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _trusted() is None:
            return
        handle, partial = tempfile.mkstemp(_PARTIAL, dir=where)
        with os.fdopen(handle, "wb") as file:
            file.write(_checksum(name, content) + content)
        os.replace(partial, where / (name + _SUFFIX))
    except OSError:  # read-only, full, not a folder
        if partial:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        return
    if where in _sizes:
        _sizes[where] += len(content) + 32
    if where not in _sizes or _sizes[where] > LIMIT:
        _sizes[where] = _trim(where)


def clear() -> int:
    """Remove every entry; returns how many there were. Files of others are left alone."""
    where, removed = _trusted(), 0
    if where is not None:
        for _, _, path in _files(where):
            with contextlib.suppress(OSError):
                path.unlink()
                removed += path.suffix == _SUFFIX
        _sizes.pop(where, None)
    return removed


def usage() -> tuple[int, int]:
    """How many entries there are, and their bytes."""
    where = folder()
    sizes = [] if where is None else [n for _, n, p in _files(where) if p.suffix == _SUFFIX]
    return len(sizes), sum(sizes)


def _trusted() -> Path | None:
    """The folder, if it is there and nobody else can have put anything into it."""
    where = folder()
    try:
        return where if where and is_private(where, "the cache of compiled code") else None
    except OSError:
        return None


def _checksum(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + content).digest()


def _files(where: Path) -> list[tuple[float, int, Path]]:
    """Time of last use, size and path of our files, the least recently used first."""
    out = []
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for e in entries:
            if e.name.endswith((_SUFFIX, _PARTIAL)):
                with contextlib.suppress(OSError):  # another process removed it
                    facts = e.stat()
                    out.append((facts.st_mtime, facts.st_size, Path(e.path)))
    return sorted(out)


def _trim(where: Path) -> int:
    """Remove what killed processes left, and what goes beyond the limit; returns what is left. A
    quarter of the limit is freed at a time, so that this is rarely needed."""
    files = _files(where)
    total = sum(size for _, size, _ in files)
    goal = LIMIT if total <= LIMIT else LIMIT * 3 // 4
    for used, size, path in files:
        abandoned = path.suffix == _PARTIAL and used < time.time() - _ABANDONED
        if abandoned or total > goal:
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
    return total
