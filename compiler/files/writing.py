"""Outputs that are either whole or absent, and that take the place of nothing but a file; and
folders of them.

A file gets its new content at once, and keeps its permissions; where a link leads to it, the link
stays. What is no file (a device, a FIFO, an open descriptor such as /dev/stdout) is written to,
once the content is whole, and stays what it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from compiler.errors import ConfigError

AnyPath: TypeAlias = str | os.PathLike[str]

PATIENCE = 5.0
"""Seconds for which a FIFO is waited for until somebody reads it."""

#: Temporary -> the output that it will be: for messages, as a writer may be given the former.
_meant: dict[Path, AnyPath] = {}

_MOST_LINKS = 40
_DESCRIPTORS = re.compile(r"/proc/\d+(/task/\d+)?/fd")
_STEM = (
    40  # characters of a name that its temporary has too: names may not be longer than 255 bytes
)


@contextlib.contextmanager
def atomic_path(path: AnyPath, *, locked: bool = False) -> Iterator[Path]:
    """A temporary path to write to, beside `path`; on success it is renamed onto it (or its content
    written to what is no file), on failure removed.

    The temporary name keeps the suffix, which some writers look at. A caller who holds a lock says
    `locked`: the name is then always the same, and `remove_leftover` finds what a kill left.

    Raises:
        ConfigError: as `check_writable`, or what is written cannot be (a full disk).
    """
    check_writable(path)
    final = behind_links(path)
    stream = _is_stream(final)
    temporary: Path | None = None
    try:
        if locked:
            temporary = _locked_temporary(final)
            temporary.unlink(missing_ok=True)  # a link of this name would be written through
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        else:
            folder = None if stream else final.parent
            prefix = f".{final.stem[:_STEM]}."
            handle, name = tempfile.mkstemp(prefix=prefix, suffix=final.suffix, dir=folder)
            os.close(handle)
            temporary = Path(name)
        if not stream:
            _take_permissions(temporary, final)
        _meant[temporary] = _meant.get(Path(path), path)
        yield temporary
        if stream:
            _write_through(temporary, final)
            return
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(final)
    except OSError as error:
        named = _meant.get(Path(path), path)
        raise ConfigError(f"cannot write {named}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            _meant.pop(temporary, None)
            temporary.unlink(missing_ok=True)


def write_whole(path: AnyPath, content: bytes) -> None:
    """Write a file, or to what is no file; see `atomic_path`.

    Raises:
        ConfigError: it cannot be written.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def check_folder(folder: Path, names: Iterable[str]) -> None:
    """Find out before any work whether `write_folder` can write files of these names.

    Raises:
        ConfigError: as `check_writable`.
    """
    try:
        there = folder.is_dir()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot write {str(folder)!r}: {said}") from None
    for path in [folder / name for name in names] if there else [folder]:
        check_writable(path)


def write_folder(
    folder: Path, files: Mapping[str, bytes], instead_of: Collection[str] = ()
) -> None:
    """Write files into a folder, which is made if it is not there: all of them, or none. They are
    written beside it first, or into a folder of its own in it, so that a full disk or an interrupt
    leaves it as it was.

    Args:
        folder: where.
        files: name -> content.
        instead_of: names of files that are removed from it unless they are written.

    Raises:
        ConfigError: they cannot be written.
    """
    check_folder(folder, files)
    final = behind_links(folder)
    made: Path | None = None
    try:
        # In a folder that is there: what it is in may be on another disk, or not be ours.
        near = final if final.is_dir() else final.parent
        made = Path(tempfile.mkdtemp(prefix=f".{final.name[:_STEM]}.", dir=near))
        for name, content in files.items():
            write_whole(made / name, content)
        if final.is_dir():
            for name in files:
                (made / name).replace(behind_links(folder / name))
            for name in set(instead_of) - set(files):
                (folder / name).unlink(missing_ok=True)
        else:
            mask = os.umask(0)
            os.umask(mask)
            made.chmod(0o777 & ~mask)
            made.rename(final)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(made), str(folder))) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def remove_leftover(path: AnyPath) -> None:
    """Remove what a killed writer left of `atomic_path(path, locked=True)`; under the same lock."""
    _locked_temporary(behind_links(path)).unlink(missing_ok=True)


def check_writable(path: AnyPath, *, appended: bool = False) -> None:
    """Find out before any work whether `path` can be written.

    Args:
        appended: whether the file is read again and appended to, which only a file can be.

    Raises:
        ConfigError: the folder is missing or cannot be written, or `path` is a folder, a socket, a
            disk, or may not be written.
    """
    if str(path) == "-":
        raise ConfigError("cannot write -: give a name, or /dev/stdout for the standard output")
    final = behind_links(path)
    if final.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; give a file name")
    kind = _mode(final)
    if kind is not None and (stat.S_ISSOCK(kind) or stat.S_ISBLK(kind)):
        what = "a socket" if stat.S_ISSOCK(kind) else "a disk"
        raise ConfigError(f"cannot write {path}: it is {what}; give a file name")
    if _is_stream(final):
        if appended:
            raise ConfigError(f"cannot write {path}: it must be a file, to be appended to")
        if not os.access(final, os.W_OK):
            raise ConfigError(f"cannot write {path}: permission denied")
        return
    folder = final.parent
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {folder}; create it first")
    if kind is not None and not os.access(final, os.W_OK):
        raise ConfigError(f"cannot write {path}: it is read-only")
    try:
        # Only trying tells: permission bits know nothing of read-only mounts or of being root.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: the folder {folder} is not writable ({error.strerror})"
        ) from error


def check_outputs(outputs: Iterable[AnyPath | None], inputs: Iterable[AnyPath | None]) -> None:
    """Find out before any work whether every output can be written, and is a file of its own: none
    of the inputs, whatever name or link it has there, nor another output.

    Raises:
        ConfigError: as `check_writable`, or two of the files are one.
    """
    read = [path for path in inputs if path is not None]
    earlier: list[AnyPath] = []
    for path in outputs:
        if path is None:
            continue
        check_writable(path)
        for other in read:
            if _same(path, other):
                raise ConfigError(
                    f"the output {path} is the input {other}: it would be lost; give another name"
                )
        for other in earlier:
            if _same(path, other) or behind_links(path) == behind_links(other):
                raise ConfigError(f"two outputs are one file, {path}: give another name")
        earlier += [] if _is_stream(behind_links(path)) else [path]


def behind_links(path: AnyPath) -> Path:
    """The absolute path of what links lead to; of a descriptor (/dev/stdout), that in /proc.

    Raises:
        ConfigError: they lead in a circle, or it is no path.
    """
    place = Path(path)
    if "\0" in str(place):
        raise ConfigError(f"{str(path)!r} is no path of a file: it has a null character")
    try:
        for _ in range(_MOST_LINKS):
            folder = Path(os.path.realpath(place.parent))
            place = folder / place.name
            if place.name == ".." or _DESCRIPTORS.fullmatch(str(folder)):
                return place
            if not place.is_symlink():
                return place
            place = folder / os.readlink(place)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} is no path of a file: {error.strerror}") from None
    raise ConfigError(f"cannot write {path}: its links lead in a circle")


def _same(a: AnyPath, b: AnyPath) -> bool:
    """Whether two paths are one file."""
    try:
        first, second = os.stat(a), os.stat(b)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(first.st_mode) and os.path.samestat(first, second)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _is_stream(final: Path) -> bool:
    """Whether something is written to, not replaced."""
    mode = _mode(final)
    descriptor = _DESCRIPTORS.fullmatch(str(final.parent)) is not None
    return mode is not None and (descriptor or not stat.S_ISREG(mode))


def _take_permissions(temporary: Path, final: Path) -> None:
    """Give a new file the permissions and the owner of the one it replaces; without one, those that
    any new file would get (temporary files are private)."""
    try:
        old = final.stat()
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        return
    with contextlib.suppress(OSError):  # only root may give files away
        os.chown(temporary, old.st_uid, old.st_gid)
    temporary.chmod(stat.S_IMODE(old.st_mode))


def _write_through(temporary: Path, final: Path) -> None:
    descriptor = _opened(final)
    try:
        with temporary.open("rb") as source:
            while content := source.read(1 << 20):
                while content:
                    content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)


def _opened(final: Path) -> int:
    """A descriptor to write to something that is no file."""
    if str(final.parent) == f"/proc/{os.getpid()}/fd":
        # Opened anew, it would begin at its start and not where this process is.
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        return os.dup(int(final.name))
    until = time.monotonic() + PATIENCE
    while True:
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_APPEND
            descriptor = os.open(final, flags)
        except OSError as error:
            if error.errno != errno.ENXIO or not final.is_fifo():
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "it is a FIFO that nobody reads") from None
            time.sleep(0.02)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _locked_temporary(final: Path) -> Path:
    return final.with_name(f".{final.stem}.new{final.suffix}")
