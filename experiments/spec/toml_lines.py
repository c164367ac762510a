"""Line numbers for the keys and elements of a TOML document, which `tomllib` does not keep."""

from __future__ import annotations

import re
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r"[ \t]*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([A-Za-z0-9_-]+))[ \t]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" r'"(?:[^"\\]|\\.)*"|' r"'[^']*'", re.DOTALL
)
_SCALAR = re.compile(r"[^,\]}#\r\n]*")


def line_numbers(text: str) -> dict[KeyPath, int]:
    """Map each key path, such as ("latency", "runs") or ("schemes", 2, "n_eval"), to its line.

    `text` must be valid TOML (parse it with `tomllib` first). Lines count from 1.
    """
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Line of `path`, or of the nearest enclosing key that has one; 1 for the document itself."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scanner:
    """One walk over the text; syntax errors are not its business."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.array_tables: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while self.skip_blank() < len(self.text):
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.key_value(table)

    def header(self) -> KeyPath:
        start = self.at
        repeated = self.text.startswith("[[", start)
        self.at += 2 if repeated else 1
        keys = self.dotted_key()
        path: KeyPath = ()
        for depth, key in enumerate(keys, start=1):
            path = (*path, key)
            if repeated and depth == len(keys):
                self.array_tables[path] = self.array_tables.get(path, -1) + 1
            if path in self.array_tables:
                path = (*path, self.array_tables[path])
        self.note(path, start)
        self.at += 2 if repeated else 1
        return path

    def key_value(self, table: KeyPath) -> None:
        start = self.at
        path = (*table, *self.dotted_key())
        self.note(path, start)
        self.at += 1  # the equals sign
        self.value(path)

    def value(self, path: KeyPath) -> None:
        self.skip_blank()
        self.note(path, self.at)
        opening = self.text[self.at]
        if opening == "[":
            self.at += 1
            index = 0
            while self.next_item("]"):
                self.value((*path, index))
                index += 1
        elif opening == "{":
            self.at += 1
            while self.next_item("}"):
                self.key_value(path)
        else:
            token = _STRING if opening in "\"'" else _SCALAR
            found = token.match(self.text, self.at)
            assert found is not None, "the text is not valid TOML"
            self.at = found.end()

    def next_item(self, closing: str) -> bool:
        """Move to the next element; False after stepping over the closing bracket."""
        self.skip_blank()
        if self.text[self.at] == ",":
            self.at += 1
            self.skip_blank()
        if self.text[self.at] == closing:
            self.at += 1
            return False
        return True

    def dotted_key(self) -> tuple[str, ...]:
        keys: list[str] = []
        while True:
            found = _KEY.match(self.text, self.at)
            assert found is not None, "the text is not valid TOML"
            keys.append(next(group for group in found.groups() if group is not None))
            self.at = found.end()
            if not self.text.startswith(".", self.at):
                return tuple(keys)
            self.at += 1

    def skip_blank(self) -> int:
        found = _BLANK.match(self.text, self.at)
        assert found is not None  # the pattern matches the empty string
        self.at = found.end()
        return self.at

    def note(self, path: KeyPath, position: int) -> None:
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], self.text.count("\n", 0, position) + 1)
