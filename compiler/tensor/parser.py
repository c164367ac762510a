"""Reads back what `compiler.tensor.printer` prints: loop nests, as schedules left them.

Statements stand one to a line, and belong to the line above that is indented less.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

from compiler.errors import ParseError, unknown
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Buffer
from compiler.tensor.expr_parser import Line
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.printer import UPDATES
from compiler.tensor.stmt import (
    AXES,
    Attempt,
    Barrier,
    Commit,
    For,
    Intrin,
    Packed,
    Pick,
    PrimFunc,
    Stmt,
    Store,
    Wait,
    When,
    range_of,
)
from compiler.tensor.wellformed import check_program
from compiler.types.dtypes import INT64, Array
from compiler.types.tokens import Token

KINDS = ("unroll", "vector", "parallel", *AXES)
_SCOPES = {
    "register": "register", "local": "local", "shared": "shared", "constant": "constant",
    "source": "global",
}  # fmt: skip
_UPDATES = {symbol: update for update, symbol in UPDATES.items()}
NO_INTRINSICS: Mapping[str, Intrinsic] = MappingProxyType({})
_HEAD = re.compile(r"^primfunc @", re.MULTILINE)
_END = re.compile(r"^\}[ \t]*$", re.MULTILINE)


def take_primfuncs(
    text: str, constants: Mapping[int, Array], intrinsics: Mapping[str, Intrinsic]
) -> tuple[str, dict[str, tuple[int, PrimFunc]]]:
    """Read the PrimFuncs among the functions of a module's text, which may name `intrinsics`.

    Returns:
        The text with blanks in their places; and name -> (where it begins, PrimFunc).

    Raises:
        ParseError: names line and column.
    """
    found: dict[str, tuple[int, PrimFunc]] = {}
    rest, at = [], 0
    for head in _HEAD.finditer(text):
        first = text.count("\n", 0, head.start()) + 1
        end = _END.search(text, head.start())
        if end is None:
            raise ParseError(f"line {first}, column 1: no line '}}' ends this function")
        part = text[head.start() : end.end()]
        f = _Parser(part, first, constants, intrinsics).func()
        if f.name in found:
            raise ParseError(f"line {first}, column 10: @{f.name} is defined twice")
        found[f.name] = head.start(), f
        rest += [text[at : head.start()], re.sub(r"[^\n]", " ", part)]
        at = end.end()
    return "".join([*rest, text[at:]]), found


def parse_primfunc(text: str, intrinsics: Mapping[str, Intrinsic] = NO_INTRINSICS) -> PrimFunc:
    """The PrimFunc that was printed as `text`, which may name `intrinsics`.

    Raises:
        ParseError: names line and column.
    """
    rest, found = take_primfuncs(text, {}, intrinsics)
    if rest.strip() or len(found) != 1:
        raise ParseError("line 1, column 1: expected one primfunc")
    ((_, f),) = found.values()
    return f


class _Parser:
    def __init__(
        self,
        text: str,
        first: int,
        constants: Mapping[int, Array],
        intrinsics: Mapping[str, Intrinsic],
    ):
        self.rows = [
            (len(row) - len(row.lstrip()), first + k, row)
            for k, row in enumerate(text.splitlines())
            if row.strip() and not row.lstrip().startswith("//")
        ]
        self.constants, self.intrinsics = constants, intrinsics
        self.at = 0
        self.indices: dict[str, Var] = {}
        self.buffers: dict[str, Buffer] = {}

    def line(self) -> Line:
        """The next line."""
        _, number, text = self.rows[self.at]
        self.at += 1
        return Line(text, number, self.indices, self.buffers)

    def func(self) -> PrimFunc:
        """The whole function."""
        head = self.line()
        head.take("primfunc")
        head.take("@")
        f = PrimFunc(head.name(), [], 0)
        if head.accept("["):
            f.dims = [Var(name) for name in head.listed(head.name, "]")]
        self.indices.update((v.name, v) for v in f.dims)
        head.take("(")
        inputs = head.listed(lambda: self.declared(head), ")")
        head.take("->")
        head.take("(")
        outputs = head.listed(lambda: self.declared(head), ")")
        head.take("{")
        head.end()
        f.params, f.outputs = [*inputs, *outputs], len(outputs)
        while self.declaration(f):
            pass
        f.body = self.body(0)
        last = self.line()
        last.take("}")
        if not f.body:
            raise last.error("the function has no statements", 0)
        if self.at < len(self.rows):
            raise self.line().error("a statement must be indented", 0)
        last.made(0, lambda: check_program(f))
        return f

    # ---- declarations ----------------------------------------------------------------------------
    def declared(self, line: Line) -> Buffer:
        """`name: dtype[shape] align k finite`."""
        at, name = line.k, line.name()
        if name in self.buffers:
            raise line.error(f"{name} is declared twice", line.tokens[at].at)
        line.take(":")
        dtype = line.dtype()
        line.take("[")
        b = Buffer(name, tuple(line.listed(line.dimension, "]")), dtype)
        if line.accept("align"):
            b.align = line.integer()
        b.finite = line.accept("finite") or None
        self.buffers[name] = b
        return b

    def declaration(self, f: PrimFunc) -> bool:
        """Read the next line if it declares something."""
        _, number, text = self.rows[self.at]
        word, _, rest = text.strip().partition(" ")
        if word == "attrs":
            self.at += 1
            try:
                f.attrs = json.loads(rest)
            except ValueError as e:
                raise ParseError(f"line {number}, column {text.index(rest) + 1}: {e}") from None
            return True
        if word not in ("temp", "pack", "prefetch", *_SCOPES) or rest.startswith((":", "<")):
            return False
        line = self.line()
        line.take(word)
        if word == "pack":
            self.pack(f, line)
        elif word == "prefetch":
            b = line.buffer()
            line.take("+")
            f.prefetch[b] = line.integer()
        else:
            self.declare(f, word, line)
        line.end()
        return True

    def declare(self, f: PrimFunc, word: str, line: Line) -> None:
        """A buffer that is no parameter; a constant one with its contents."""
        b = self.declared(line)
        if word == "temp":
            f.temps.append(b)
            return
        b.scope = _SCOPES[word]
        if b.scope != "constant":
            return
        line.take("=")
        for part in ("meta", "[", "Constant", "]", "["):
            line.take(part)
        at, k = line.tokens[line.k].at, line.integer()
        line.take("]")
        if k not in self.constants:
            message = "print with show_meta_data=True"
            raise line.error(f"meta[Constant][{k}] is not in the metadata; {message}", at)
        b.data = self.constants[k]

    def pack(self, f: PrimFunc, line: Line) -> None:
        """`pack new[v<extent, ...] = source[indices]`."""
        new, outer = line.buffer(), dict(self.indices)
        line.take("[")
        order = tuple(line.listed(lambda: self.variable(line), "]"))
        line.take("=")
        source = line.buffer()
        f.packed[new] = Packed(source, order, line.position(source))
        self.indices.clear()
        self.indices.update(outer)

    def variable(self, line: Line) -> Var:
        """`v<extent`, known from here on."""
        name = line.name()
        line.take("<")
        v = self.indices[name] = Var(name, line.dimension())
        return v

    # ---- statements ------------------------------------------------------------------------------
    def body(self, above: int) -> list[Stmt]:
        """The lines that are indented more than `above`."""
        out: list[Stmt] = []
        own = self.rows[self.at][0]
        while self.at < len(self.rows) and self.rows[self.at][0] > above:
            if self.rows[self.at][0] != own:
                line = self.line()
                raise line.error("this line is indented unlike those before it", own)
            out.append(self.statement())
        return out

    def nested(self, head: Line, depth: int) -> list[Stmt]:
        """What belongs to the line `head`, which is indented by `depth`."""
        head.end()
        out = self.body(depth) if self.at < len(self.rows) else []
        if not out:
            raise head.error("nothing is indented below this line", depth)
        return out

    def statement(self) -> Stmt:
        """One statement and what belongs to it."""
        depth = self.rows[self.at][0]
        line = self.line()
        if line.accept_all("attempt", ":"):
            return self.attempt(line, depth)
        if line.accept("barrier"):
            line.end()
            return Barrier()
        if line.sees("commit") and not line.sees(":", 1):  # no stage of that name
            line.take()
            line.end()
            return Commit()
        if line.sees("wait") and not line.sees(":", 1):
            line.take()
            left = line.integer()
            line.end()
            return Wait(left)
        if line.accept("when"):
            condition = line.expr()
            line.take(":")
            return When(condition, self.nested(line, depth))
        if line.accept("pick"):
            return self.pick(line, depth)
        kind = next((k for k in KINDS if line.accept(k)), "serial")
        if line.accept("for"):
            return self.loop(line, depth, kind)
        t = line.take(kind="name")
        if line.sees("<"):
            return self.intrin(line, t)
        line.take(":")
        return self.store(line, t.text)

    def loop(self, line: Line, depth: int, kind: str) -> For:
        """`for v in extent: {whole n; opaque buffers; fence}`."""
        at = line.tokens[line.k].at if not line.done else 0
        name = line.name()
        line.take("in")
        extent = line.dimension()
        line.take(":")
        if name in self.indices:
            raise line.error(f"{name} is a loop or dimension already", at)
        loop = For(Var(name, extent), [], kind)
        while line.accept("{") or line.accept(";"):
            if line.accept("whole"):
                loop.whole = line.dimension()
            elif line.accept("fence"):
                loop.fence = True
            else:
                line.take("opaque")
                opaque = [line.buffer()]
                while line.accept(","):
                    opaque.append(line.buffer())
                loop.opaque = frozenset(opaque)
            if line.accept("}"):
                break
        self.indices[name] = loop.var
        loop.body = self.nested(line, depth)
        del self.indices[name]
        return loop

    def pick(self, line: Line, depth: int) -> Pick:
        """`pick v in extent at position:`."""
        at, name = line.tokens[line.k].at if not line.done else 0, line.name()
        line.take("in")
        v = Var(name, line.dimension())
        line.take("at")
        position = line.expr()
        if position.dtype != INT64:
            raise line.error(f"the position is {position.dtype}, not int64: cast it", at)
        line.take(":")
        if name in self.indices:
            raise line.error(f"{name} is a loop or dimension already", at)
        self.indices[name] = v
        body = self.nested(line, depth)
        del self.indices[name]
        return Pick(v, position, body)

    def attempt(self, line: Line, depth: int) -> Attempt:
        """`attempt:`, `where buffers has no NaN:`, `else, all again:`."""
        body = self.nested(line, depth)
        where = self.line()
        where.take("where")
        watched = [where.buffer()]
        while where.accept(","):
            watched.append(where.buffer())
        for word in ("has", "no", "NaN", ":"):
            where.take(word)
        rest = self.nested(where, depth)
        again = self.line()
        for word in ("else", ",", "all", "again", ":"):
            again.take(word)
        return Attempt(body, tuple(watched), rest, self.nested(again, depth))

    def intrin(self, line: Line, t: Token) -> Intrin:
        """`instruction<v<extent, ...>: store`."""
        known = self.intrinsics
        if t.text not in known:
            raise line.error(unknown("instruction", t.text, known), t.at)
        intrin, outer = known[t.text], dict(self.indices)
        line.take("<")
        order = line.listed(lambda: self.variable(line), ">")
        line.take(":")
        store = self.store(line, line.take(kind="name").text, colon=True)
        self.indices.clear()
        self.indices.update(outer)
        if [v.extent for v in order] != list(map(Index.of, intrin.loops.values())):
            raise line.error(f"{t.text} has the loops {dict(intrin.loops)}", t.at)
        variables = dict(zip(intrin.loops, order, strict=True))
        leaves = intrin.match(store, variables)
        if isinstance(leaves, str):
            raise line.error(f"{t.text} does something else: {leaves}", t.at)
        return Intrin(intrin, store, variables, leaves)

    def store(self, line: Line, stage: str, colon: bool = False) -> Store:
        """`buffer[indices] += value  (init value)`; the stage was read."""
        if colon:
            line.take(":")
        b = line.buffer()
        idx = line.position(b)
        symbol = line.take()
        text = symbol.text
        if symbol.kind == "name":
            text += line.take("=").text
        update = re.sub(r"^sat(\d+)=$", r"Add\1", _UPDATES.get(text, text))
        if update not in UPDATES and range_of(update) is None:
            raise line.error(f"expected one of {', '.join(_UPDATES)}", symbol.at)
        value, init = line.expr(), None
        if line.accept_all("(", "init"):
            init = line.expr()
            line.take(")")
        line.end()
        return Store(stage, b, idx, value, update, init)
