"""Tokens of PTX: words, numbers, marks; comments and lines between them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NoReturn, TypeVar

from compiler.errors import ParseError
from compiler.runtime.machines.ptx.program import Immediate

_TOKEN = re.compile(
    r"""
    (?P<skip> [ \t\r\f]+ | //[^\n]* | /\*.*?\*/ )
  | (?P<line> \n )
  | (?P<number> 0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b | \d+\.\d*(?:[eE][+-]?\d+)?
      | \d+[eE][+-]?\d+ | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U? | \d+U? )
  | (?P<word> [.%$_a-zA-Z][\w$%]*(?:(?:\.|::)\w+)* )
  | (?P<string> "[^"\n]*" )
  | (?P<mark> [{}()\[\];:,<>@!|+=*-] )
    """,
    re.VERBOSE | re.DOTALL,
)
_T = TypeVar("_T")


def _tokens(text: str) -> tuple[list[str], list[int]]:
    """Tokens and the line of each."""
    found, lines, line, at = [], [], 1, 0
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None:
            raise ParseError(f"line {line} of the PTX has {text[at]!r}, which begins nothing")
        at = m.end()
        if m.lastgroup == "line":
            line += 1
        elif m.lastgroup == "skip":
            line += m.group().count("\n")
        else:
            found.append(m.group())
            lines.append(line)
    return [*found, "", ""], [*lines, line, line]  # so that one can look one further


class Tokens:
    """The tokens of a text, one after another."""

    def __init__(self, text: str):
        self.tokens, self.lines = _tokens(text)
        self.at = 0

    def fail(self, what: str) -> NoReturn:
        """Raise, and say in which line."""
        raise ParseError(f"line {self.lines[self.at]} of the PTX: {what}")

    def next(self) -> str:
        """The next token, taken."""
        token = self.tokens[self.at]
        if not token:
            self.fail("the text ends too early")
        self.at += 1
        return token

    def peek(self) -> str:
        """The next token, left where it is; at the end, nothing."""
        return self.tokens[self.at]

    def take(self, token: str) -> bool:
        """Whether the next token is this one, which is then taken."""
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        """Take this token."""
        if not self.take(token):
            self.fail(f"{token!r} is expected, not {self.peek()!r}")

    def integer(self) -> int:
        """An integer with its sign."""
        sign = -1 if self.take("-") else 1
        number = self.immediate(self.next())
        if not isinstance(number.value, int):
            self.fail("an integer is expected")
        return sign * number.value

    def immediate(self, token: str) -> Immediate:
        """The number that a token is."""
        head = token[:2].lower()
        try:
            if head == "0f" and len(token) == 10:
                raw = int(token[2:], 16)
                return Immediate(struct.unpack("<f", struct.pack("<I", raw))[0], (raw, 32))
            if head == "0d" and len(token) == 18:
                raw = int(token[2:], 16)
                return Immediate(struct.unpack("<d", struct.pack("<Q", raw))[0], (raw, 64))
            if head in ("0x", "0b"):
                return Immediate(int(token.rstrip("U"), 0))
            if "." in token or "e" in token.lower():
                return Immediate(float(token))
            digits = token.rstrip("U")
            return Immediate(int(digits, 8 if digits[0] == "0" and len(digits) > 1 else 10))
        except ValueError:
            self.at -= 1
            self.fail(f"{token!r} is no number")

    def until(self, end: str, item: Callable[[], _T]) -> list[_T]:
        """Items between commas, up to and with `end`."""
        items: list[_T] = []
        if self.take(end):
            return items
        while True:
            items.append(item())
            if self.take(end):
                return items
            self.expect(",")

    def rest_of_line(self) -> None:
        """Leave out what else this line has."""
        line = self.lines[self.at]
        while self.peek() and self.lines[self.at] == line:
            self.at += 1
