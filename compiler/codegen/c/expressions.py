"""Scalar expressions as C."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from compiler.codegen.c.names import Names
from compiler.codegen.c.types import FLOAT16, c_type, literal, short_name
from compiler.errors import LoweringError
from compiler.symbolic import Atom, Index, Var
from compiler.tensor.expr import (
    COMPARISONS,
    SYMBOLS,
    BinOp,
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
    index_condition,
)
from compiler.types.dtypes import BOOL, DType

Scope = Mapping[Var, str]
"""What variables are called."""


def index_text(i: Index, scope: Scope) -> str:
    """The sum, without parentheses."""
    out = ""
    for atom, factor in i.terms.items():
        if isinstance(atom, Var) and scope[atom] == "0":
            continue
        text, size = _atom(atom, scope), abs(factor)
        text = text if size == 1 else f"{text} * {_number(size)}"
        out += f" {'-' if factor < 0 else '+'} {text}" if out else f"{'-' * (factor < 0)}{text}"
    if i.const and out:
        return f"{out} {'-' if i.const < 0 else '+'} {_number(abs(i.const))}"
    return out or _number(i.const)


def factor_text(i: Index, scope: Scope) -> str:
    """The same, in parentheses if need be."""
    text = index_text(i, scope)
    return text if text.isalnum() or text.isidentifier() else f"({text})"


def _number(n: int) -> str:
    return str(n) if abs(n) < 1 << 31 else f"INT64_C({n})"


def _atom(a: Atom, scope: Scope) -> str:
    if isinstance(a, Var):
        return scope[a]
    p, q = index_text(a.a, scope), index_text(a.b, scope)
    if a.op == "min":
        return f"least_i64({p}, {q})"
    left, right = factor_text(a.a, scope), factor_text(a.b, scope)
    if a.op == "*":
        return f"({left} * {right})"
    low = a.a.range()[0]
    if low is not None and low >= 0:  # C rounds toward zero
        return f"({left} {'/' if a.op == '//' else '%'} {right})"
    return f"{'floor_div' if a.op == '//' else 'floor_mod'}_i64({p}, {q})"


LONG = 100
"""Characters from which a part of an expression gets a name."""


class Expressions:
    """Writes the expressions of one statement.

    Attributes:
        lines: the declarations that what was written refers to.
    """

    def __init__(
        self,
        names: Names,
        scope: Scope,
        buffers: Mapping[Buffer, str],
        known: Mapping[Expr, str] | None = None,
    ):
        self.names, self.scope, self.buffers = names, scope, buffers
        self.lines: list[str] = []
        self._known = dict(known or {})
        self._uses: Counter[Expr] = Counter()

    def text(self, e: Expr) -> str:
        """The value of an expression; what is used several times in it is declared first.

        Raises:
            LoweringError: an operation that C has not.
        """
        self._uses.update(_uses([e]))
        return self._value(e)

    def element(self, b: Buffer, idx: tuple[Index, ...]) -> str:
        """An element of a buffer, in its type in memory."""
        return f"{self.buffers[b]}[{index_text(b.flat(idx), self.scope)}]"

    def binary(self, op: str, dtype: DType, a: str, b: str) -> str:
        """`a op b` of a built-in dtype.

        Raises:
            LoweringError: the dtype has no such operation.
        """
        short = short_name(dtype)
        if op in COMPARISONS:
            if dtype == FLOAT16:
                a, b = f"f32_of_f16({a})", f"f32_of_f16({b})"
            return f"({a} {SYMBOLS[op]} {b})"
        if op in ("And", "Or", "Xor") and not dtype.is_float:
            b = f"(int){b}" if dtype == BOOL and _CALL.search(b) else b  # Clang asks: not &&?
            return f"({a} {SYMBOLS[op]} {b})"
        if op in ("Add", "Sub", "Mul", "Div") and dtype.is_float and dtype != FLOAT16:
            return f"({a} {SYMBOLS[op]} {b})"
        if dtype == BOOL or (dtype.is_float and op not in _OF_FLOATS):
            raise LoweringError(f"no operation {op} of {dtype}")
        return f"{op.lower()}_{short}({a}, {b})"

    def declare(self, value: str, dtype: DType, wish: str = "t") -> str:
        """A name for a value."""
        name = self.names.new(wish)
        t = "int" if dtype == BOOL else c_type(dtype)
        self.lines.append(f"const {t} {name} = {bare(value)};")
        return name

    def _value(self, e: Expr) -> str:
        known = self._known.get(e)
        if known is not None:
            return known
        out = self._written(e)
        if not isinstance(e, (FloatImm, IntImm, LetVar, Let)) and (
            len(out) > LONG or self._uses[e] > 1
        ):
            out = self._known[e] = self.declare(out, e.dtype)
        return out

    def _written(self, e: Expr) -> str:
        if isinstance(e, (FloatImm, IntImm)):
            return literal(e.value, e.dtype)
        if isinstance(e, Load):
            return _loaded(self.element(e.buffer, e.idx), e.dtype)
        if isinstance(e, Gather):
            return _loaded(f"{self.buffers[e.buffer]}[{bare(self._value(e.at))}]", e.dtype)
        if isinstance(e, IndexValue):
            return factor_text(e.index, self.scope)
        if isinstance(e, BinOp):
            if _never(e):
                return "0"
            if limited := _limited(e):
                x, bound = limited
                helper = f"{'atleast' if e.op == 'Max' else 'atmost'}_{short_name(e.dtype)}"
                return f"{helper}({bare(self._value(x))}, {literal(bound.value, e.dtype)})"
            return self.binary(e.op, e.a.dtype, self._value(e.a), self._value(e.b))
        if isinstance(e, Cast):
            return cast(self._value(e.value), e.value.dtype, e.dtype)
        if isinstance(e, Select):
            return self._select(e)
        if isinstance(e, Let):
            self._known[e.var] = self.declare(self._value(e.value), e.var.dtype, e.var.name)
            return self._value(e.body)
        args = [self._value(a) for a in e.children()]
        if isinstance(e, CallExtern):
            called = f"{e.symbol}({', '.join(args)})"
            return f"({called} != 0)" if e.dtype == BOOL else called
        if isinstance(e, Call):
            return _call(e, args)
        raise LoweringError(f"no lowering for {type(e).__name__} {e!r}")

    def _select(self, e: Select) -> str:
        """Both sides may be computed, but where an index decides: then what lies outside a buffer
        may be read on the other side."""
        condition = self._value(e.cond)
        if index_condition(e) is None:
            a, b = self._value(e.a), self._value(e.b)
            return narrowed(f"({condition} ? {a} : {b})", e.dtype)
        (a, before_a), (b, before_b) = self._aside(e.a), self._aside(e.b)
        if not before_a and not before_b:
            return narrowed(f"({condition} ? {a} : {b})", e.dtype)
        name = self.names.new("t")
        t = "int" if e.dtype == BOOL else c_type(e.dtype)
        self.lines.append(f"{t} {name};")
        for head, value, before in (
            (f"if ({bare(condition)}) {{", a, before_a),
            ("} else {", b, before_b),
        ):
            self.lines += [head, *(f"  {x}" for x in before), f"  {name} = {bare(value)};"]
        self.lines.append("}")
        return name

    def _aside(self, e: Expr) -> tuple[str, list[str]]:
        """A value, and the declarations that it alone needs."""
        lines, known = self.lines, dict(self._known)
        self.lines = []
        value = self._value(e)
        before, self.lines, self._known = self.lines, lines, known
        return value, before


_CALL = re.compile(r"\w\(")
_OF_FLOATS = ("Add", "Sub", "Mul", "Div", "Max", "Min")


def _uses(roots: Iterable[Expr]) -> Counter[Expr]:
    """How often each node is an operand; nodes are shared, so each is entered once."""
    uses: Counter[Expr] = Counter()
    todo = list(roots)
    while todo:
        for k in todo.pop().children():
            uses[k] += 1
            if uses[k] == 1:
                todo.append(k)
    return uses


def _never(e: BinOp) -> bool:
    """Whether it asks of an unsigned number if it is less than 0, of which compilers warn."""
    a = e.a.value if isinstance(e.a, Cast) and e.a.dtype.is_integer else e.a
    below = e.op == "LT" and isinstance(e.b, IntImm) and e.b.value == 0
    return below and a.dtype.kind == "uint" and e.a.dtype.bits >= a.dtype.bits + (a is not e.a)


def _limited(e: BinOp) -> tuple[Expr, FloatImm] | None:
    """What is limited by which constant, for which a comparison will do: no NaN, and no -0."""
    if e.op not in ("Max", "Min") or not e.dtype.is_float or e.dtype == FLOAT16:
        return None
    for x, bound in ((e.a, e.b), (e.b, e.a)):
        if isinstance(bound, FloatImm) and not math.isnan(bound.value):
            return None if math.copysign(1, bound.value) < 0 and bound.value == 0 else (x, bound)
    return None


def narrowed(value: str, dtype: DType) -> str:
    """A value that C computes as an `int`, in the type of a narrower dtype."""
    if dtype == BOOL or dtype.bits > 16:
        return value
    return f"({c_type(dtype)}){value}"


def _loaded(element: str, dtype: DType) -> str:
    return f"({element} & 1)" if dtype == BOOL else element


def cast(value: str, source: DType, dtype: DType) -> str:
    """A value of a built-in dtype as another: floats become integers toward zero and saturate."""
    if source == dtype:
        return value
    if dtype == BOOL:
        value = f"f32_of_f16({value})" if source == FLOAT16 else value
        return f"({value} != 0)"
    if FLOAT16 in (source, dtype) or (source.is_float and dtype.is_integer):
        if source == BOOL:
            value, source = f"(uint8_t){value}", DType("uint", 8)
        return f"{short_name(dtype)}_of_{short_name(source)}({bare(value)})"
    return f"({c_type(dtype)}){value}"


def _call(e: Call, args: list[str]) -> str:
    source = e.args[0].dtype
    given = ", ".join(map(bare, args))
    if e.fn == "bits":
        if source == e.dtype:
            return args[0]
        return f"{short_name(e.dtype)}_bits_{short_name(source)}({given})"
    if e.fn == "rint_i32":
        if source == FLOAT16:
            return f"rint_f32(f32_of_f16({given}))"
        return f"rint_{short_name(source)}({given})"
    return f"{e.fn}_{short_name(e.dtype)}({given})"


def bare(text: str) -> str:
    """Without the parentheses around all of it."""
    if text[:1] != "(" or text[-1:] != ")":
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1]
