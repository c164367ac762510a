"""parse: reads back what the printer writes.

The grammar is the printer's: functions, one binding a line, types as comments (they are inferred
again), and the metadata section with constants, module attributes and origins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from compiler.dtypes import DType
from compiler.errors import DtypelabError, ModelError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Value,
    Var,
)
from compiler.ir.types import TensorType, TupleType, Type
from compiler.op.calls import CALL_TIR, CALLS, Callee
from compiler.op.opdef import OpDef, get_op
from compiler.symbolic import Index, imin
from compiler.symbolic import Var as Dim

_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<meta>meta\[Constant\]\[\d+\])"
    r"|(?P<var>%[\w/]+(?:\.[\w/]+)*)"
    r"|(?P<global>@[\w.]+)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf\b|nan\b|inf(?=float)|nan(?=float))"
    r"(?P<dtype>(?:float|int|uint)\d+)?)"
    r"|(?P<name>custom\[\w+\]\d+|(?:True|False)(?=bool)|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)"
    r"|(?P<op>->|//|[-+*%(){}\[\],:;=.])",
    re.DOTALL,
)
_CONSTANT = re.compile(r"meta\[Constant\]\[(\d+)\] = (\S+?)\[([\d, ]*)\] ([0-9a-f]*)$")
T = TypeVar("T")


class ParseError(ModelError):
    """Text that is not a program; says where."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


def parse(text: str) -> IRModule:
    """The module that `mod.astext(show_meta_data=True)` printed, with types inferred again.

    Raises:
        ParseError: names line and column.
        compiler.errors.TypeInferenceError: the program does not type-check.
    """
    program, _, metadata = text.partition("#[metadata]\n")
    constants, attrs, origins = _metadata(metadata, program.count("\n") + 1)
    parser = _Parser(program, constants, origins)
    functions = {}
    while not parser.done:
        name, f = parser.definition()
        functions[name] = f
    if not functions:
        raise ParseError("line 1, column 1: there is no function here")
    from compiler.transform.infer_type import InferType

    return InferType()(IRModule(functions, attrs))


def _metadata(text: str, line: int) -> tuple[dict[int, Constant], dict[str, Any], dict[str, Any]]:
    constants: dict[int, Constant] = {}
    sections: dict[str, dict[str, Any]] = {"attrs": {}, "origins": {}}
    for k, row in enumerate(text.splitlines()):
        if not row.strip():
            continue
        found = _CONSTANT.match(row)
        key, _, value = row.partition(" = ")
        try:
            if found:
                dtype = DType.parse(found[2])
                shape = [int(n) for n in found[3].split(",") if n.strip()]
                data = np.frombuffer(bytes.fromhex(found[4]), dtype.storage).reshape(shape)
                constants[int(found[1])] = Constant(data.copy(), dtype)
            elif key in sections:
                sections[key] = json.loads(value)
            else:
                raise ValueError("this is no metadata")
        except (ValueError, DtypelabError) as e:
            raise ParseError(f"line {line + k + 1}, column 1: {e}") from None
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in sections["attrs"].items()}
    return constants, attrs, sections["origins"]


class _Parser:
    def __init__(self, text: str, constants: dict[int, Constant], origins: dict[str, list[str]]):
        self.text, self.constants, self.origins = text, constants, origins
        self.tokens = list(self._tokens())
        self.k = 0

    def _tokens(self) -> Iterator[_Token]:
        at = 0
        while at < len(self.text):
            m = _TOKEN.match(self.text, at)
            if not m:
                raise self._error(at, f"unexpected {self.text[at]!r}")
            if m.lastgroup == "dtype" or m.group("number"):
                yield _Token("number", m.group(), at)
            elif not m.group("space"):
                yield _Token(m.lastgroup or "", m.group(), at)
            at = m.end()

    def _error(self, at: int, message: str) -> ParseError:
        before = self.text[:at]
        column = at - (before.rfind("\n") + 1) + 1
        return ParseError(f"line {before.count(chr(10)) + 1}, column {column}: {message}")

    def error(self, message: str) -> ParseError:
        """An error at the current token."""
        at = self.tokens[self.k].at if self.k < len(self.tokens) else len(self.text)
        return self._error(at, message)

    # ---- tokens ----------------------------------------------------------------------------------
    @property
    def done(self) -> bool:
        """Whether all is read."""
        return self.k >= len(self.tokens)

    @property
    def now(self) -> _Token:
        """The current token."""
        if self.done:
            raise self.error("the text ends here unexpectedly")
        return self.tokens[self.k]

    def sees(self, text: str) -> bool:
        """Whether the current token is `text`."""
        return not self.done and self.tokens[self.k].text == text

    def take(self, text: str = "", kind: str = "") -> _Token:
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

    # ---- functions -------------------------------------------------------------------------------
    def definition(self) -> tuple[str, Function]:
        """`def @name(...) -> type { ... }`."""
        self.take("def")
        name = self.take(kind="global").text[1:]
        return name, self.function(name)

    def function(self, path: str) -> Function:
        """Parameters, result type and body."""
        self.take("(")
        params: list[Var] = []
        attrs: dict[str, Any] = {}

        def parameter() -> None:
            if self.now.kind == "var":
                name = self.take().text[1:]
                self.take(":")
                params.append(Var(name, self.type()))
            else:
                key = self.take(kind="name").text
                self.take("=")
                attrs[key] = self.attribute()

        self.listed(parameter, ")")
        if self.accept("->"):
            self.type()
        self.take("{")
        scope: dict[str, Var] = {p.name: p for p in params}
        bindings: list[Binding] = []
        while True:
            if (
                self.now.kind == "var"
                and self.tokens[self.k + 1 : self.k + 2]
                and (self.tokens[self.k + 1].text == "=")
            ):
                name = self.take().text[1:]
                self.take("=")
                here = f"{path}/{name}"
                value = self.value(scope, here)
                self.take(";")
                if name in scope:
                    raise self.error(f"%{name} is defined twice")
                scope[name] = Var(name)
                bindings.append(Binding(scope[name], value, tuple(self.origins.get(here, ()))))
                continue
            if self.accept("("):
                results = self.listed(lambda: self.atom(scope), ")")
            else:
                results = [self.atom(scope)]
            self.take("}")
            return Function(tuple(params), tuple(bindings), tuple(results), attrs)

    def value(self, scope: dict[str, Var], here: str) -> Value:
        """The right-hand side of a binding."""
        if self.sees("("):
            self.take("(")
            if self.accept("fn"):
                f = self.function(here)
                self.take(")")
                self.take("(")
                return Call(f, tuple(self.listed(lambda: self.atom(scope), ")")))
            return Tuple(tuple(self.listed(lambda: self.atom(scope), ")")))
        if self.now.kind == "name":
            return self.call(scope)
        a = self.atom(scope)
        if self.accept("."):
            return TupleGetItem(a, int(self.take(kind="number").text))
        return a

    def call(self, scope: dict[str, Var]) -> Call:
        """`op(atoms, attribute=value, ...)`."""
        at = self.k
        if self.now.text in CALLS:
            return self.callee(CALLS[self.take().text], scope)
        try:
            op = get_op(self.take(kind="name").text)
        except DtypelabError as e:
            self.k = at
            raise self.error(str(e)) from None
        self.take("(")
        args: list[Atom] = []
        attrs: dict[str, Any] = {}

        def argument() -> None:
            if self.now.kind == "name" and self.tokens[self.k + 1].text == "=":
                key = self.take().text
                self.take("=")
                attrs[key] = self.attribute()
            else:
                args.append(self.atom(scope))

        self.listed(argument, ")")
        try:
            return Call(op, tuple(args), op.make_attrs(**attrs))
        except DtypelabError as e:
            raise self.error(str(e)) from None

    def callee(self, op: OpDef, scope: dict[str, Var]) -> Call:
        """`(@program, (atoms), type)`, or with a registered function's name in quotes."""
        self.take("(")
        t = self.take(kind="global" if op is CALL_TIR else "string")
        func = t.text[1:] if op is CALL_TIR else json.loads(t.text)
        self.take(",")
        self.take("(")
        args = self.listed(lambda: self.atom(scope), ")")
        self.take(",")
        out = self.type()
        self.take(")")
        return Call(op, tuple(args), Callee(func, out))

    def atom(self, scope: dict[str, Var]) -> Atom:
        """A variable, a constant of the metadata section, or a scalar."""
        t = self.take()
        if t.kind == "var":
            # `%x.0` reads field 0 of %x: a name never ends in a dot and a number.
            name = t.text[1:]
            stem, dot, field = name.rpartition(".")
            if name not in scope and dot and field.isdigit() and stem in scope:
                self.tokens[self.k : self.k] = [
                    _Token("op", ".", t.at),
                    _Token("number", field, t.at),
                ]
                name = stem
            if name not in scope:
                self.k -= 1
                raise self.error(f"%{name} is not defined")
            return scope[name]
        if t.kind == "meta":
            index = int(t.text.rsplit("[", 1)[1][:-1])
            if index not in self.constants:
                self.k -= 1
                raise self.error(f"{t.text} is not in the metadata; print with show_meta_data=True")
            return self.constants[index]
        if t.text in ("True", "False"):
            self.take("bool")
            return Constant.of(t.text == "True", "bool")
        found = re.fullmatch(r"(.*?)((?:float|int|uint)\d+)", t.text)
        if t.kind == "number" and found:
            dtype = DType.parse(found[2])
            number = float(found[1]) if dtype.is_float else int(found[1])
            return Constant.of(number, dtype)
        self.k -= 1
        raise self.error(f"expected a value, found {t.text!r}")

    def attribute(self) -> Any:
        """A value of an attribute: number, string, True, False, None, list, or symbolic
        dimension."""
        t = self.now
        if self.accept("["):
            return tuple(self.listed(self.attribute, "]"))
        if t.kind == "string":
            return json.loads(self.take().text)
        if t.text in ("True", "False", "None"):
            self.k += 1
            return {"True": True, "False": False, "None": None}[t.text]
        if t.kind == "number" and not re.fullmatch(r"-?\d+", t.text):
            return float(self.take().text)
        d = self.dimension()
        return d if d.terms else d.const

    # ---- types -----------------------------------------------------------------------------------
    def type(self) -> Type:
        """`Tensor[(dims), dtype]` or a tuple of types."""
        if self.accept("("):
            return TupleType(tuple(self.listed(self.type, ")")))
        self.take("Tensor")
        self.take("[")
        self.take("(")
        shape = self.listed(self.dimension, ")")
        self.take(",")
        at = self.k
        name = self.take(kind="name").text
        try:
            t = TensorType.of(shape, name)
        except DtypelabError as e:
            self.k = at
            raise self.error(str(e)) from None
        self.take("]")
        return t

    def dimension(self) -> Index:
        """A sum of products of numbers, names, `//`, `%` and `min`."""
        out = -self.factor() if self.accept("-") else self.factor()
        while (
            self.sees("+")
            or self.sees("-")
            or (not self.done and self.now.kind == "number" and self.now.text.startswith("-"))
        ):
            if self.accept("+"):
                out = out + self.factor()
            elif self.accept("-"):
                out = out - self.factor()
            else:
                out = out + self.factor()
        return out

    def factor(self) -> Index:
        """One product."""
        out = self.unit()
        while True:
            if self.accept("*"):
                out = out * self.unit()
            elif self.accept("//"):
                out = out // self.unit()
            elif self.accept("%"):
                out = out % self.unit()
            else:
                return out

    def unit(self) -> Index:
        """A number, a name, `min(a, b)`, or an expression in parentheses."""
        if self.accept("("):
            out = self.dimension()
            self.take(")")
            return out
        t = self.take()
        if t.kind == "number" and re.fullmatch(r"-?\d+", t.text):
            return Index.of(int(t.text))
        if t.kind != "name":
            self.k -= 1
            raise self.error(f"expected a dimension, found {t.text!r}")
        if t.text == "min" and self.accept("("):
            a = self.dimension()
            self.take(",")
            b = self.dimension()
            self.take(")")
            return imin(a, b)
        return Dim(t.text)
