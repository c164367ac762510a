"""The words of printed programs, and a cursor over them whose errors name line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from compiler.errors import ParseError
from compiler.types.names import BARE

_PATTERN = re.compile(
    # `//` begins a comment at the start of a line or after a binding; else it divides.
    r"(?P<space>(?:(?m:^)|(?<=[;{}/]))[ \t]*//[^\n]*|\n|[^\S\n]+|/\*.*?\*/)"
    r"|(?P<meta>meta\[Constant\]\[\d+\])"
    rf"|(?P<var>%{BARE}|%\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<global>@[\w.]+)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf\b|nan\b|inf(?=float)|nan(?=float))"
    r"(?P<dtype>(?:float|int|uint)\d+)?)"
    r"|(?P<name>custom\[\w+\]\d+(?::\w+)?|(?:True|False)(?=bool)|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"|(?P<op>->|=>|//|[-+*%(){}\[\],:;=.])",
    re.DOTALL,
)
T = TypeVar("T")


@dataclass(frozen=True)
class Token:
    """One word: `kind` is the name of its group in the pattern, `at` its place in the text."""

    kind: str
    text: str
    at: int


class Cursor:
    """A place in a text, and what reads from there.

    Attributes:
        pattern: what the words are.
        first: number of the first line of the text.
    """

    pattern = _PATTERN
    first = 1

    def __init__(self, text: str):
        self.text = text
        self.tokens = list(self._tokens())
        self.k = 0

    def _tokens(self) -> Iterator[Token]:
        at = 0
        while at < len(self.text):
            m = self.pattern.match(self.text, at)
            if not m:
                raise self.error_at(at, f"unexpected {self.text[at]!r}")
            if m.lastgroup == "dtype" or m.group("number"):
                yield Token("number", m.group(), at)
            elif m.group().startswith('%"'):
                yield Token("var", f"%{self._quoted(m.group()[1:], at)}", at)
            elif not m.group("space"):
                yield Token(m.lastgroup or "", m.group(), at)
            at = m.end()

    def _quoted(self, text: str, at: int) -> str:
        try:
            name: str = json.loads(text)
            name.encode()
        except ValueError as e:
            raise self.error_at(at, f"{text} is no name: {e}") from None
        return name

    def error_at(self, at: int, message: str) -> ParseError:
        """An error at a place in the text."""
        before = self.text[:at]
        column = at - (before.rfind("\n") + 1) + 1
        line = before.count("\n") + self.first
        return ParseError(f"line {line}, column {column}: {message}")

    def error(self, message: str) -> ParseError:
        """An error at the current token."""
        at = self.tokens[self.k].at if self.k < len(self.tokens) else len(self.text)
        return self.error_at(at, message)

    # ---- tokens ----------------------------------------------------------------------------------
    @property
    def done(self) -> bool:
        """Whether all is read."""
        return self.k >= len(self.tokens)

    @property
    def now(self) -> Token:
        """The current token."""
        if self.done:
            raise self.error("the text ends here unexpectedly")
        return self.tokens[self.k]

    def sees(self, text: str, ahead: int = 0) -> bool:
        """Whether the current token, or one after it, is `text`."""
        return self.k + ahead < len(self.tokens) and self.tokens[self.k + ahead].text == text

    def take(self, text: str = "", kind: str = "") -> Token:
        """The current token, which must be `text` or of `kind`."""
        t = self.now
        if (text and t.text != text) or (kind and t.kind != kind):
            raise self.error(f"expected {text or kind}, found {t.text!r}")
        self.k += 1
        return t

    def accept(self, text: str) -> bool:
        """Step over `text` if it is next."""
        if self.sees(text):
            self.k += 1
            return True
        return False

    def listed(self, item: Callable[[], T], end: str) -> list[T]:
        """Items separated by commas, up to `end`."""
        out: list[T] = []
        while not self.accept(end):
            out.append(item())
            if not self.accept(","):
                self.take(end)
                break
        return out
