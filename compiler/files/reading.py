"""Files that a user names to be read: files only, and no larger than a limit.

A FIFO or a device would be waited for, or read, for ever; a small archive may be unpacked to more
than a machine has. The limits can be raised by the environment variable DTYPELAB_FILE_LIMIT (bytes,
or with a unit: 64MiB, 8GiB).
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import Any

from compiler.errors import ConfigError, DtypelabError

VARIABLE = "DTYPELAB_FILE_LIMIT"
TEXT = 256 << 20
"""Bytes of a text (a plan, a specification, results), unless the variable says otherwise."""
ARRAYS = 16 << 30
"""Bytes of the arrays of an archive, unpacked, unless the variable says otherwise."""

DEEPEST = 50
"""How deep objects and lists of JSON may be nested."""
_PART = 1 << 20
"""Bytes of one read."""

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a disk"),
    (stat.S_ISSOCK, "a socket"),
)

AnyPath = str | os.PathLike[str]


def limit(default: int = TEXT) -> int:
    """Bytes that may be read: `default`, unless the environment variable says otherwise.

    Raises:
        ConfigError: the variable is no size.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return default
    found = re.fullmatch(r"(\d{1,15})\s*([A-Za-z]*)", given.strip())
    if found is None or found[2].lower() not in _UNITS:
        raise ConfigError(f"{VARIABLE}={given!r} is no size; write 1073741824 or 1GiB")
    return int(found[1]) * _UNITS[found[2].lower()]


def open_file(
    path: AnyPath, what: str, error: type[DtypelabError] = ConfigError, most: int | None = TEXT
) -> io.BufferedReader:
    """A file opened to read its bytes; `what` names it in messages ("the plan").

    Raises:
        error: there is none, it is no file (but a FIFO, a device, a folder ...), or is larger than
            `limit(most)`; `most` None: however large it is.
        ConfigError: the environment variable is no size.
    """
    allowed = None if most is None else limit(most)
    try:
        check_file(path, what, error)  # before it is opened: opening some devices does something
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as e:
        raise error(_unreadable(path, what, e)) from None
    file = os.fdopen(descriptor, "rb")
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):  # it has been replaced since
        file.close()
        raise error(f"cannot read {what} {path}: it is no file")
    if allowed is not None and facts.st_size > allowed:
        file.close()
        raise error(_too_large(path, what, facts.st_size, allowed))
    return file


def check_file(path: AnyPath, what: str, error: type[DtypelabError] = ConfigError) -> None:
    """Check that a path is that of a file.

    Raises:
        error: there is none, or it is something else.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as e:
        raise error(_unreadable(path, what, e)) from None
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise error(f"cannot read {what} {path}: it is {name}; give the name of a file")


def read_bytes(
    path: AnyPath, what: str, error: type[DtypelabError] = ConfigError, most: int = TEXT
) -> bytes:
    """The bytes of a file.

    Raises:
        error: as `open_file`.
    """
    allowed = limit(most)
    with open_file(path, what, error, most) as file:
        try:
            content = bytearray()
            # A read of all that a file may hold would allocate that, however little it holds.
            while len(content) <= allowed and (part := file.read(_PART)):
                content += part
        except OSError as e:
            raise error(_unreadable(path, what, e)) from None
    if part is None:  # files of the kernel may have nothing to say yet
        raise error(f"cannot read {what} {path}: it is not a plain file")
    if len(content) > allowed:
        raise error(_too_large(path, what, len(content), allowed))
    return bytes(content)


def read_text(path: AnyPath, what: str, error: type[DtypelabError] = ConfigError) -> str:
    """The text of a UTF-8 file, without a byte order mark; line ends become newlines.

    Raises:
        error: as `open_file`, or it is no UTF-8.
    """
    try:
        text = read_bytes(path, what, error).decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = e.object[: e.start].count(b"\n") + 1
        raise error(f"cannot read {what} {path}: line {line} is not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_toml(text: str, where: str, located: bool = False) -> dict[str, Any]:
    """What TOML text says.

    Args:
        where: what errors call it; `located`: a path, behind which they say the line.

    Raises:
        ConfigError: it is not TOML, or nested too deep.
    """
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deep") from None
    except ValueError as e:  # a number may have more digits than Python reads
        if not located:
            raise ConfigError(f"{where} is not TOML: {e}") from None
        # The parser says either "(at line 3, column 5)" or "(at end of document)".
        found = re.search(r"at line (\d+)", str(e))
        line = int(found[1]) if found else text.count("\n") + 1
        raise ConfigError(f"{where}:{line}: not valid TOML: {e}") from e


def parse_json(text: str, where: str, error: type[DtypelabError] = ConfigError) -> Any:
    """What JSON text says; an object that has a key twice says nothing.

    Raises:
        error: it is not JSON, nested too deep, or a key is there twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(n for k, n in enumerate(names) if n in names[:k])
            raise error(f"{where} has the key {twice!r} twice; leave one out")
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise error(f"{where} is nested too deep") from None
    except ValueError as e:  # a number may have more digits than Python reads
        raise error(f"{where} is not JSON: {e}") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [v for held in level for v in _held(held)]
    if level:
        raise error(f"{where} is nested too deep")
    return value


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _unreadable(path: AnyPath, what: str, e: OSError | ValueError) -> str:
    reason = e.strerror if isinstance(e, OSError) else e
    shown = path if isinstance(e, OSError) else repr(os.fspath(path))
    return f"cannot read {what} {shown}: {reason or e}"


def _too_large(path: AnyPath, what: str, size: int, most: int) -> str:
    return (
        f"cannot read {what} {path}: it has {size} bytes, more than {most}; if you trust it, "
        f"raise the limit with {VARIABLE}"
    )
