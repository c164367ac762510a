"""Functions that are expressions themselves, and functions of other libraries, as C."""

from __future__ import annotations

import functools
import re

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.codegen.c.expressions import Expressions
from compiler.codegen.c.names import Names
from compiler.codegen.c.types import FLOAT16, SHORT, c_type
from compiler.errors import LoweringError
from compiler.tensor.expr import CallExtern, LetVar


@functools.cache
def expansion(name: str) -> str | None:
    """The definition of `exp_f32` and its like; None if a name is none of a function that is
    written in additions and multiplications."""
    fn, _, short = name.rpartition("_")
    dtype = SHORT.get(short)
    if dtype is None:
        return None
    body = FUNCTIONS[fn].body(dtype) if fn in FUNCTIONS else None
    if body is None:
        return None
    x = LetVar("x", dtype)
    e = Expressions(Names("x"), {}, {}, {x: "x"})
    value = e.text(body(x))
    lines = "\n".join(f"  {line}" for line in (*e.lines, f"return {value};"))
    t = c_type(dtype)
    return f"static inline {t} {name}({t} x) {{\n{lines}\n}}"


def declared(e: CallExtern) -> str:
    """The declaration of the function that calls one of a library.

    Raises:
        LoweringError: it takes or gives float16, which C11 does not have.
    """
    dtypes = [e.dtype, *(a.dtype for a in e.args)]
    if FLOAT16 in dtypes:
        raise LoweringError(f"C has no float16, which {e.symbol} takes or gives")
    result, *params = map(c_type, dtypes)
    if not re.fullmatch(r"[A-Za-z_]\w*", e.symbol, re.ASCII):
        raise LoweringError(f"{e.symbol!r} is no name of a C function")
    return f"static {result} {e.symbol}({', '.join(params) or 'void'});"


_DECLARED = re.compile(r"^static (\w+) (\w+)\(([\w, ]*)\);$", re.MULTILINE)


def external_symbols(text: str) -> list[str]:
    """Functions of libraries that `text` declares (see `declared`)."""
    return list(dict.fromkeys(found[2] for found in _DECLARED.finditer(text)))


def external_calls(text: str, pointers: str) -> list[str]:
    """Definitions of the functions of `external_symbols`: each calls what the array `pointers`
    holds at its place."""
    out: dict[str, str] = {}
    for found in _DECLARED.finditer(text):
        result, symbol, types = found.groups()
        params = [] if types == "void" else types.split(", ")
        given = ", ".join(f"{t} a{k}" for k, t in enumerate(params)) or "void"
        passed = ", ".join(f"a{k}" for k in range(len(params)))
        if symbol not in out:
            call = f"(({result} (*)({types})){pointers}[{len(out)}])({passed})"
            out[symbol] = f"static {result} {symbol}({given}) {{\n  return {call};\n}}"
    return list(out.values())
