"""Reads one line of a printed loop nest: tokens, symbolic indices, scalar expressions."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import TypeVar

from compiler.errors import DtypelabError, ParseError, unknown
from compiler.symbolic import Index, Var
from compiler.tensor.expr import (
    BINARY,
    SYMBOLS,
    At,
    Buffer,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    Gather,
    IndexValue,
    IntImm,
    Let,
    LetVar,
    Load,
    Select,
    binary,
)
from compiler.types.dtypes import DType
from compiler.types.tokens import Token
from compiler.types.type_parser import DimensionParser

T = TypeVar("T")
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>\d+\.\d*(?:e[+-]?\d+)?|\d+(?:e[+-]?\d+)?|\binf\b|\bnan(?:[0-9a-f]{16})?\b)"
    r"|(?P<name>(?:\w+\.)*custom\[\w+\]\d+(?::\w+)?|[A-Za-z_]\w*(?:\.\w+)*)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<op>->|\+=|\*=|&=|\|=|//|<<|>>|<=|>=|==|!=|[-+*/%(){}\[\],:;=<>&|^@.])"
)
_DTYPE = re.compile(r"bool|(?:float|u?int)\d+|custom\[\w+\]\d+(?::\w+)?")
_BY_SYMBOL = {symbol: op for op, symbol in SYMBOLS.items()}
_BY_NAME = {op.lower(): op for op in BINARY if op not in SYMBOLS}


class Line(DimensionParser):
    """One line of text, read from left to right.

    `indices` and `buffers`: what the names in it may stand for. Every error is a ParseError that
    names line and column.
    """

    pattern = _TOKEN

    def __init__(
        self,
        text: str,
        number: int,
        indices: Mapping[str, Var],
        buffers: Mapping[str, Buffer],
    ):
        self.first = number
        self.indices, self.buffers = indices, buffers
        self.values: dict[str, LetVar] = {}
        super().__init__(text)

    def error(self, message: str, at: int | None = None) -> ParseError:
        """An error at a column (from 0), or at the current token."""
        return super().error(message) if at is None else self.error_at(at, message)

    def made(self, at: int, make: Callable[[], T]) -> T:
        """What `make` gives; what it raises is an error at column `at`."""
        try:
            return make()
        except ParseError:
            raise
        except DtypelabError as e:
            raise self.error(str(e), at) from None

    # ---- tokens ----------------------------------------------------------------------------------
    def accept_all(self, *texts: str) -> bool:
        """Step over `texts` if all of them are next."""
        found = all(self.sees(text, k) for k, text in enumerate(texts))
        self.k += len(texts) if found else 0
        return found

    def name(self) -> str:
        """A name."""
        return self.take(kind="name").text

    def integer(self) -> int:
        """A number without a sign."""
        t = self.take(kind="number")
        if not t.text.isdigit():
            raise self.error(f"expected an integer, found {t.text!r}", t.at)
        return int(t.text)

    def end(self) -> None:
        """Nothing may follow."""
        if not self.done:
            raise self.error(f"unexpected {self.tokens[self.k].text!r}")

    def dtype(self) -> DType:
        """The name of a dtype."""
        t = self.take(kind="name")
        return self.made(t.at, lambda: DType.parse(t.text))

    def buffer(self) -> Buffer:
        """The name of a buffer."""
        t = self.take(kind="name")
        if t.text not in self.buffers:
            raise self.error(unknown("buffer", t.text, self.buffers), t.at)
        return self.buffers[t.text]

    # ---- indices ---------------------------------------------------------------------------------
    def named(self, t: Token) -> Index:
        """The loop or dimension of a name."""
        if t.text not in self.indices:
            raise self.error(unknown("loop or dimension", t.text, self.indices), t.at)
        return self.indices[t.text]

    def position(self, b: Buffer) -> tuple[Index, ...]:
        """`[indices]` of an element of `b`."""
        at = self.take("[").at
        idx = tuple(self.listed(self.dimension, "]"))
        return self.made(at, lambda: b[idx].idx)

    # ---- expressions -----------------------------------------------------------------------------
    def expr(self) -> Expr:
        """A scalar expression, as it is printed: binary operations stand in parentheses."""
        if self.accept_all("(", "let"):
            return self._let()
        if self.accept("("):
            a = self.expr()
            t = self.take(kind="op")
            if t.text not in _BY_SYMBOL:
                raise self.error(f"expected an operator, found {t.text!r}", t.at)
            b = self.expr()
            self.take(")")
            return self.made(t.at, lambda: binary(_BY_SYMBOL[t.text], a, b))
        t = self.take(kind="name")
        if self.sees("["):
            return self._read(t)
        if self.accept("("):
            return self._applied(t)
        if t.text not in self.values:
            raise self.error(unknown("value", t.text, self.values), t.at)
        return self.values[t.text]

    def _let(self) -> Expr:
        """`(let name = value in body)`."""
        name = self.name()
        self.take("=")
        value = self.expr()
        self.take("in")
        outer, var = self.values, LetVar(name, value.dtype)
        self.values = {**outer, name: var}
        body = self.expr()
        self.values = outer
        self.take(")")
        return Let(var, value, body)

    def _read(self, t: Token) -> Expr:
        """`buffer[indices]`, or `buffer.flat[position]`."""
        stem = t.text.removesuffix(".flat")
        if t.text not in self.buffers and stem in self.buffers:
            self.take("[")
            at = self.expr()
            self.take("]")
            return Gather(self.buffers[stem], at)
        if t.text not in self.buffers:
            raise self.error(unknown("buffer", t.text, self.buffers), t.at)
        b = self.buffers[t.text]
        return Load(b, self.position(b))

    def _applied(self, t: Token) -> Expr:
        """`name(` was read: a literal, a conversion, or a function of expressions."""
        dtype = _dtype(t.text)
        if dtype is not None:
            return self._converted(t, dtype)
        if t.text == "at":
            value = self.expr()
            self.take(",")
            node = self.integer()
            self.take(",")
            index, step = self.expr(), (self.take(","), self.expr())[1]
            self.take(")")
            return At(value, node, index, step)
        args = self.listed(self.expr, ")")
        if t.text in _BY_NAME and len(args) == 2:
            return self.made(t.at, lambda: binary(_BY_NAME[t.text], *args))
        if t.text == "select" and len(args) == 3:
            return Select(*args)
        return self._called(t, args)

    def _called(self, t: Token, args: list[Expr]) -> Expr:
        fn, dtype = t.text, args[0].dtype if args else None
        for k in range(1, len(fn)):
            if fn[k - 1] == "." and (named := _dtype(fn[k:])) is not None:
                fn, dtype = fn[: k - 1], named
                break
        if dtype is None:
            raise self.error(f"{fn} of nothing needs a dtype: write {fn}.float32()", t.at)
        if fn.startswith("extern."):
            return CallExtern(fn.removeprefix("extern."), tuple(args), dtype)
        return Call(fn, tuple(args), dtype)

    def _converted(self, t: Token, dtype: DType) -> Expr:
        """`dtype(` was read: a number, an index (as int64), or a conversion."""
        sign = "-" if self.accept("-") else ""
        ahead = self.tokens[self.k : self.k + 2]
        if [x.kind for x in ahead] == ["number", "op"] and ahead[1].text == ")":
            self.k += 2
            return self.made(t.at, lambda: _literal(sign + ahead[0].text, dtype))
        self.k -= len(sign)
        if str(dtype) == "int64" and self._holds_an_index():
            index = self.dimension()
            self.take(")")
            return IndexValue(index)
        value = self.expr()
        self.take(")")
        return Cast(value, dtype)

    def _holds_an_index(self) -> bool:
        """Whether the names up to the closing parenthesis are all those of indices."""
        depth, names = 1, []
        for t in self.tokens[self.k :]:
            depth += {"(": 1, ")": -1}.get(t.text, 0)
            if depth == 0:
                break
            if t.text == "[":
                return False
            if t.kind == "name":
                names.append(t.text)
        bound = [n for n in names if n != "min" or n in self.values]
        return bool(bound) and all(n in self.indices and n not in self.values for n in bound)


def _dtype(text: str) -> DType | None:
    """The dtype of that full name; None if it is none."""
    if not _DTYPE.fullmatch(text):
        return None
    try:
        return DType.parse(text)
    except DtypelabError:
        return None


def _literal(text: str, dtype: DType) -> Expr:
    if dtype.is_integer or dtype.kind == "bool":
        try:
            return IntImm(int(text), dtype)
        except ValueError:
            raise DtypelabError(f"{text} is no {dtype}") from None
    bits = text.lstrip("-").removeprefix("nan")
    if "nan" in text and bits:
        return FloatImm(struct.unpack(">d", bytes.fromhex(bits))[0], dtype)
    return FloatImm(float(text), dtype)
