"""The text of PTX is read: tokens, declarations, instructions."""

from __future__ import annotations

import struct

from compiler.runtime.machines.ptx.program import (
    SIZES,
    Address,
    Arguments,
    Function,
    Immediate,
    Instruction,
    Kernel,
    Negated,
    Operand,
    Pair,
    Param,
    PtxModule,
    Register,
    Special,
    Symbol,
    Variable,
    Vector,
)
from compiler.runtime.machines.ptx.tokens import Tokens

_SPACES = (".global", ".const", ".shared", ".local", ".param")
_LINKING = (".visible", ".extern", ".weak", ".common")
_BITS = {1: 16, 2: 16, 4: 32, 8: 64}


def parse(text: str | bytes) -> PtxModule:
    """The module that a text of PTX describes.

    Raises:
        ParseError: it is no PTX; says in which line.
    """
    if isinstance(text, bytes):
        text = text.rstrip(b"\0").decode("utf-8", "replace")
    return _Reader(text).module()


class _Scope:
    """Names between braces, and those outside of them."""

    def __init__(self, outer: _Scope | None, prefix: str):
        self.outer, self.prefix = outer, prefix
        self.registers: dict[str, Register] = {}
        self.variables: dict[str, str] = {}
        self.labels: dict[str, str] = {}


class _Reader(Tokens):
    """Reads one text."""

    def __init__(self, text: str):
        super().__init__(text)
        self.scope = _Scope(None, "")
        self.scopes = 0
        self.function = Function("")
        self.module_ = PtxModule("", "")

    # declarations

    def module(self) -> PtxModule:
        """All of the text."""
        m = self.module_
        while token := self.peek():
            if token == ".version":
                self.next()
                m.version = self.next()
            elif token == ".target":
                self.next()
                m.target = self.next()
                while self.take(","):
                    self.next()
            elif token == ".address_size":
                self.next()
                if self.integer() != 64:
                    self.fail("addresses must have 64 bits")
            elif token in (".file", ".loc"):
                self.rest_of_line()
            elif token == ".section":
                while self.next() != "}":
                    pass
            elif token in _LINKING:
                self.next()
            elif token == ".entry":
                self.next()
                kernel = Kernel(self.next())
                self.head(kernel)
                m.kernels[kernel.name] = kernel
            elif token == ".func":
                self.next()
                self.func()
            elif token in _SPACES:
                for v in self.declared():
                    m.variables[v.name] = v
            else:
                self.fail(f"{token!r} is not known here")
        if not m.target:
            self.fail("the text has no .target")
        common = sum(v.size for v in m.variables.values() if v.space == "shared")
        for kernel in m.kernels.values():
            own = sum(v.size for v in kernel.variables.values() if v.space == "shared")
            kernel.shared = own + common
        return m

    def func(self) -> None:
        results = tuple(self.until(")", self.param)) if self.take("(") else ()
        f = Function(self.next(), results=results)
        if self.head(f):
            self.module_.functions[f.name] = f

    def head(self, f: Function) -> bool:
        """Parameters and directives of a function, then its body. Returns whether it has one."""
        f.line = self.lines[self.at]
        if self.take("("):
            f.params = tuple(self.until(")", self.param))
        while self.peek().startswith("."):
            name = self.next()
            numbers: list[int] = []
            while self.peek()[:1].isdigit() or (numbers and self.peek() == ","):
                numbers += [] if self.take(",") else [self.integer()]
            if name in (".maxntid", ".reqntid"):
                x, y, z, *_ = [*numbers, 1, 1, 1]
                setattr(f, name[1:], (x, y, z))
        if self.take(";"):
            return False
        self.body(f)
        return True

    def param(self) -> Param:
        self.expect(".param")
        align, pointer = 1, False
        while self.peek() in (".align", ".ptr", *_SPACES):
            pointer |= self.peek() == ".ptr"
            if self.next() == ".align":
                n = self.integer()
                align = align if pointer else n
            if self.peek()[1:] in SIZES:
                break
        kind = self.next()[1:]
        if kind not in SIZES:
            self.at -= 1
            self.fail(f"{self.peek()!r} is no type")
        while self.peek() in (".align", ".ptr", *_SPACES):
            if self.next() == ".align":
                self.integer()
        name, size = self.next(), SIZES[kind]
        if self.take("["):
            size *= self.integer()
            self.expect("]")
        return Param(name, kind, size, max(align, SIZES[kind]))

    def declared(self) -> list[Variable]:
        """`.space .align n .type name[n] = value, ...;`."""
        space, align, kind, vector = self.next()[1:], 0, "", 1
        while self.peek().startswith("."):
            word = self.next()
            if word == ".align":
                align = self.integer()
            elif word in (".v2", ".v4"):
                vector = int(word[2:])
            elif word[1:] in SIZES:
                kind = word[1:]
            elif word == ".attribute":
                self.expect("(")
                self.until(")", self.next)
            else:
                self.fail(f"{word!r} is not known here")
        if not kind:
            self.fail("a variable without a type")
        found = []
        while True:
            name, count = self.next(), vector
            while self.take("["):
                count *= 0 if self.peek() == "]" else self.integer()
                self.expect("]")
            size = count * SIZES[kind]
            content, addresses = (
                self.initial(kind, size) if self.take("=") else (None, ())
            )  # fmt: skip
            found.append(
                Variable(name, space, kind, size, max(align, SIZES[kind]), content, addresses)
            )
            if self.take(";"):
                return found
            self.expect(",")

    def initial(self, kind: str, size: int) -> tuple[bytes, tuple[tuple[int, Symbol], ...]]:
        """The content of a variable."""
        content, addresses, wide = bytearray(), [], SIZES[kind]

        def one() -> None:
            if self.take("{"):
                self.until("}", one)
                return
            sign = -1 if self.take("-") else 1
            token = self.next()
            if token[0].isdigit():
                number = self.immediate(token)
                content.extend(_bytes_of(number, sign, kind))
                return
            if token == "generic":
                self.expect("(")
                token = self.next()
                self.expect(")")
            offset = self.integer() if self.take("+") else 0
            addresses.append((len(content), Symbol(token, offset)))
            content.extend(bytes(wide))

        one()
        if size and len(content) > size:
            self.fail("a variable has more values than elements")
        return bytes(content.ljust(size, b"\0")), tuple(addresses)

    # bodies

    def body(self, f: Function) -> None:
        self.expect("{")
        self.function, self.scope = f, _Scope(None, "")
        depth = 1
        while depth:
            token = self.peek()
            if token == "{":
                self.next()
                depth, self.scopes = depth + 1, self.scopes + 1
                self.scope = _Scope(self.scope, f"{self.scopes}:")
                self.labels_ahead()
            elif token == "}":
                self.next()
                depth -= 1
                self.scope = self.scope.outer or self.scope
            elif token == ".reg":
                self.next()
                self.registers()
            elif token in _SPACES:
                for v in self.declared():
                    name = self.scope.prefix + v.name
                    self.scope.variables[v.name] = name
                    f.variables[name] = Variable(
                        name, v.space, v.type, v.size, v.align, v.initial, v.addresses
                    )
            elif token in (".loc", ".file"):
                self.rest_of_line()
            elif token == ".pragma":
                while self.next() != ";":
                    pass
            elif token == ";":
                self.next()
            elif self.tokens[self.at + 1] == ":":
                self.label(self.next())
            else:
                self.instruction()
        for table in f.tables.values():
            for name in table:
                if name not in f.labels:
                    self.fail(f"{f.name} has no label {name!r}")

    def labels_ahead(self) -> None:
        """Labels of a scope are known in all of it: find those up to its end."""
        depth, at = 1, self.at
        while depth and self.tokens[at]:
            token = self.tokens[at]
            depth += (token == "{") - (token == "}")
            if depth == 1 and token == ":":
                name = self.tokens[at - 1]
                self.scope.labels[name] = self.scope.prefix + name
            at += 1

    def label(self, name: str) -> None:
        self.expect(":")
        name = self.resolved(name, "labels")
        if self.take(".branchtargets"):
            targets = self.until(";", self.next)
            self.function.tables[name] = tuple(self.resolved(t, "labels") for t in targets)
        elif self.take(".callprototype"):
            while self.next() != ";":
                pass
        else:
            self.function.labels[name] = len(self.function.code)

    def registers(self) -> None:
        kind = self.next()[1:]
        while kind in ("v2", "v4"):
            self.fail("registers that are vectors are not supported")
        if kind not in SIZES or SIZES[kind] > 8:
            self.at -= 1
            self.fail(f"there are no registers of type {kind}")
        bits = 1 if kind == "pred" else _BITS[SIZES[kind]]
        while True:
            name = self.next()
            names = [name]
            if self.take("<"):
                names = [f"{name}{k}" for k in range(self.integer())]
                self.expect(">")
            first = self.function.registers[bits]
            self.function.registers[bits] += len(names)
            for k, each in enumerate(names):
                self.scope.registers[each] = Register(each, bits, first + k)
            if self.take(";"):
                return
            self.expect(",")

    def instruction(self) -> None:
        line, guard = self.lines[self.at], None
        if self.take("@"):
            negated = self.take("!")
            register = self.named(self.next())
            if not isinstance(register, Register) or register.bits != 1:
                self.fail("a guard is no predicate")
            guard = (register, negated)
        opcode = self.next()
        if not opcode[0].isalpha():
            self.at -= 1
            self.fail(f"{opcode!r} begins no instruction")
        operands = tuple(self.until(";", self.operand))
        self.function.code.append(Instruction(opcode, operands, guard, line))

    def operand(self) -> Operand:
        first = self.plain()
        return Pair(first, self.plain()) if self.take("|") else first

    def plain(self) -> Operand:
        token = self.next()
        if token == "{":
            return Vector(tuple(self.until("}", self.operand)))
        if token == "(":
            return Arguments(tuple(self.until(")", self.operand)))
        if token == "[":
            return self.address()
        if token == "!":
            register = self.named(self.next())
            if not isinstance(register, Register):
                self.fail("only predicates are negated")
            return Negated(register)
        if token == "-":
            number = self.immediate(self.next())
            raw = number.raw and (number.raw[0] ^ 1 << (number.raw[1] - 1), number.raw[1])
            return Immediate(-number.value, raw)
        if token[0].isdigit():
            return self.immediate(token)
        operand = self.named(token)
        if isinstance(operand, Symbol) and self.peek() in "+-" and self.peek():
            sign = -1 if self.next() == "-" else 1
            return Symbol(operand.name, sign * self.integer())
        return operand

    def address(self) -> Address:
        token = self.next()
        base: Operand = self.immediate(token) if token[0].isdigit() else self.named(token)
        if not isinstance(base, Register | Symbol | Immediate):
            self.fail(f"{token!r} is no address")
        offset = 0
        while not self.take("]"):
            if self.peek() not in ("+", "-"):
                self.fail(f"{self.peek()!r} in an address is not supported")
            offset += (-1 if self.next() == "-" else 1) * self.integer()
        return Address(base, offset)

    def resolved(self, name: str, kind: str) -> str:
        """What a name that may be declared in several scopes is called in the function."""
        scope: _Scope | None = self.scope
        while scope is not None:
            known: dict[str, str] = getattr(scope, kind)
            if name in known:
                return known[name]
            scope = scope.outer
        return name

    def named(self, name: str) -> Register | Special | Symbol:
        scope: _Scope | None = self.scope
        while scope is not None:
            if name in scope.registers:
                return scope.registers[name]
            scope = scope.outer
        if name[0] == "%":
            return Special(name)
        label = self.resolved(name, "labels")
        return Symbol(label if label != name else self.resolved(name, "variables"))


def _bytes_of(number: Immediate, sign: int, kind: str) -> bytes:
    """A value of a variable."""
    size = SIZES[kind]
    if number.raw is not None and number.raw[1] == 8 * size and sign > 0:
        return number.raw[0].to_bytes(size, "little")
    value = sign * number.value
    if kind in ("f16", "f32", "f64"):
        return struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[kind], value)
    return (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
