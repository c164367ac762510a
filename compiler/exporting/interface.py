"""What others see of an exported program, in C: typed functions, their checks, their arguments."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from compiler.boundary.assumptions import Assumption
from compiler.codegen.c.expressions import index_text
from compiler.codegen.c.helpers import prelude
from compiler.codegen.c.names import Names, comment
from compiler.codegen.c.types import FLOAT16
from compiler.codegen.standalone import ALIGN, run_params
from compiler.errors import ConfigError
from compiler.runtime.program import Program
from compiler.symbolic import Dim, Index, Var
from compiler.symbolic.quasi import Quasi
from compiler.types.dtypes import DType
from compiler.types.tensor_types import TensorType

_LONGEST = 64
_OWN = (
    *("weights", "size", "count", "wrong", "argc", "argv", "file", "failed", "memory", "content"),
    *("k", "p", "printf", "fprintf", "stderr", "stdout", "stdin", "free", "exit", "strtoll"),
    *("aligned_alloc", "fopen", "fread", "fgetc", "fclose"),
)
"""Names in the program that comes along."""
_LARGEST = "4e18"
"""Bytes or elements that an int64 holds, with room for sums of floats that are rounded."""
_HELPERS = re.compile(r"\b(least_i64|most_i64|floor_div_i64|floor_mod_i64)\b")


@dataclass(frozen=True)
class Operand:
    """An input or output: its name in C, how a model calls it, its type."""

    name: str
    called: str
    type: TensorType

    @property
    def c_type(self) -> str:
        """The type of its elements: codes, of numbers that C does not have."""
        return element_type(self.type.dtype)


@dataclass(frozen=True)
class Interface:
    """The functions of an exported program: `NAME`, and with open sizes `NAME_arena_bytes`.

    Attributes:
        name: what all its names begin with.
        program: what they run.
        weights_bytes: of a file of weights that the caller gives; None: they are in the code.
    """

    name: str
    program: Program
    weights_bytes: int | None = None

    @cached_property
    def _names(self) -> tuple[list[str], list[str], list[str]]:
        own = [self.name, *(f"{self.name}_{x}" for x in ("run", "description", "arena_bytes"))]
        names, p = Names([*_OWN, *own]), self.program
        given = [v.name for v in p.dims]
        return (
            [names.new(n) for n, _ in p.inputs],
            [names.new(n) for n, _ in p.outputs],
            [names.new(n) for n in given],
        )

    @property
    def inputs(self) -> list[Operand]:
        """In order."""
        found = zip(self._names[0], self.program.inputs, strict=True)
        return [Operand(name, called, t) for name, (called, t) in found]

    @property
    def outputs(self) -> list[Operand]:
        """In order."""
        found = zip(self._names[1], self.program.outputs, strict=True)
        return [Operand(name, called, t) for name, (called, t) in found]

    @property
    def dims(self) -> dict[Var, str]:
        """The symbolic dimensions, and what they are called in C."""
        return dict(zip(self.program.dims, self._names[2], strict=True))

    @property
    def arena_bytes(self) -> int | None:
        """Bytes of memory that a call needs; None: that depends on symbolic dimensions."""
        return self.program.workspace.constant()

    @property
    def params(self) -> str:
        """Parameters of `NAME`."""
        parts = [f"const {o.c_type} *{o.name}" for o in self.inputs]
        parts += [f"{o.c_type} *{o.name}" for o in self.outputs]
        parts += [f"int64_t {name}" for name in self.dims.values()]
        parts += [] if self.weights_bytes is None else ["const void *weights"]
        return ", ".join([*parts, "void *arena"])

    def size(self, d: Dim) -> str:
        """A size in C, in terms of the parameters."""
        return index_text(Index.of(d), self.dims)

    def elements(self, o: Operand) -> str:
        """How many elements an operand has, in C."""
        return self.size(o.type.size)

    def prototypes(self) -> list[str]:
        """Declarations of all its functions."""
        typed = [f"int {self.name}({self.params});", *self._arena_head(";")]
        run = f"int {self.name}_run({run_params(self.weights_bytes is not None)});"
        return [*typed, run, f"const char *{self.name}_description(void);"]

    def definitions(self) -> list[str]:
        """`NAME` and `NAME_arena_bytes` in C, which call `NAME_run`."""
        p = self.program
        wrong = " ||\n      ".join(self._wrong())
        check = [f"  if ({wrong})", "    return 1;"] if wrong else []
        given = ", ".join(o.name for o in self.inputs) or "0"
        made = ", ".join(f"(void *){o.name}" for o in self.outputs) or "0"
        sizes = ", ".join(self.dims.values()) or "0"
        weights = "" if self.weights_bytes is None else "weights, "
        aligned = f"  if ((uintptr_t)arena % {ALIGN}) return 2;"
        run = [
            f"int {self.name}({self.params}) {{",
            f"  const void *const inputs[] = {{{given}}};",
            f"  void *const outputs[] = {{{made}}};",
            f"  const int64_t dims[] = {{{sizes}}};",
            *check, aligned,
            f"  return {self.name}_run(inputs, outputs, dims, {weights}arena);",
            "}",
        ]  # fmt: skip
        arena = [
            *self._arena_head(" {"),
            *(["  if (" + wrong + ")", "    return -1;"] if wrong else []),
            f"  return {self.size(p.workspace)};",
            "}",
        ]
        return ["\n".join(run), *(["\n".join(arena)] if self.dims else [])]

    def inline(self) -> list[str]:
        """The same as functions of a header, with helpers of names of its own."""
        texts = self.definitions()
        parts = [*prelude("\n".join(texts)), *(f"static inline {t}" for t in texts)]
        return [_HELPERS.sub(rf"{self.name}_\1", t) for t in parts]

    def _arena_head(self, end: str) -> list[str]:
        sizes = ", ".join(f"int64_t {name}" for name in self.dims.values())
        return [f"int64_t {self.name}_arena_bytes({sizes}){end}"] if sizes else []

    def _wrong(self) -> list[str]:
        """Conditions under which the program does not fit the sizes; of two, the second is only
        looked at if the first does not hold."""
        p = self.program
        out = [f"{name} < 1" for name in self.dims.values()]
        known = set(p.dims)
        held = [Index.of(o.type.size) * o.type.dtype.nbytes for o in (*self.inputs, *self.outputs)]
        assumed = [Index.of(d) for a in p.assumed for d in (a.size, a.equal)]
        for total in (*held, p.workspace, *p.sizes, *assumed):
            if total.vars() and total.vars() <= known:
                out.append(f"{_most(total, self.dims)} > {_LARGEST}")
        for size in (*p.sizes, *(d for a in p.assumed for d in (a.size, a.equal))):
            for divisor in _divisors(Index.of(size)):
                if divisor.vars() and divisor.vars() <= known:
                    out.append(f"{self.size(divisor)} < 1")
        out += [f"{self.size(s)} < 1" for s in p.sizes if s.vars() <= known]
        out += [self._broken(a) for a in p.assumed]
        return list(dict.fromkeys(out))

    def _broken(self, a: Assumption) -> str:
        sign = "==" if a.differs else "!="
        return f"{self.size(a.size)} {sign} {self.size(a.equal)}"


def element_type(dtype: DType) -> str:
    """The C type of an element at the boundary: custom datatypes, float16 and truth values are
    unsigned integers."""
    if dtype.is_float and dtype != FLOAT16 and not dtype.is_custom:
        return {32: "float", 64: "double"}[dtype.bits]
    kind = dtype.storage.kind
    return f"{'' if kind == 'i' else 'u'}int{8 * dtype.nbytes}_t"


def described(o: Operand) -> str:
    """An operand in a comment."""
    coded = o.type.dtype.is_custom or o.type.dtype == FLOAT16
    codes = " (codes)" if coded else ""
    return comment(f"{o.name}: {o.called!r}, {o.type}{codes}")


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a function in C, or is that of another one: also of this
    system's library, whose function it would take the place of.

    Raises:
        ConfigError: it is.
    """
    plain = re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and len(name) <= _LONGEST
    if not plain or Names(_OWN).new(name) != name or hasattr(ctypes.CDLL(None), name):
        raise ConfigError(
            f"{name!r} cannot be the name of the functions in C: give one such as 'net'"
        )


def _most(i: Index, names: Mapping[Var, str]) -> str:
    """What no part of a size exceeds, for variables of 1 or more: in floats, which do not
    overflow."""
    parts = [f"{abs(i.const)}.0"] if i.const or not i.terms else []
    for a, factor in i.terms.items():
        if isinstance(a, Var):
            text = f"(double){names[a]}"
        elif a.op == "*":
            text = f"{_most(a.a, names)} * {_most(a.b, names)}"
        else:
            text = f"({_most(a.a, names)} + {_most(a.b, names)})"
        parts.append(text if abs(factor) == 1 else f"{text} * {abs(factor)}.0")
    return f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]


def _divisors(i: Index) -> Iterator[Index]:
    atoms: Iterable[object] = i.terms
    for a in atoms:
        if isinstance(a, Quasi):
            if a.op in ("//", "%"):
                yield a.b
            yield from _divisors(a.a)
            yield from _divisors(a.b)
