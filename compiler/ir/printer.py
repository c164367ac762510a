"""Printed text of graph-level programs, in the notation Relay's users know."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Cases,
    Constant,
    Construct,
    Function,
    GlobalVar,
    If,
    IRModule,
    Loop,
    Match,
    Tuple,
    TupleGetItem,
    Value,
    Var,
    nested,
)
from compiler.ir.function_calls import CALL_TIR, is_callee
from compiler.ir.graph_form import marked, printed_inside
from compiler.ir.handed import engine_of, label_of
from compiler.tensor.expr import Buffer
from compiler.tensor.printer import primfunc_text
from compiler.types.data import pattern_text, type_variables

Annotate = Callable[[Binding], str]
"""What a comment behind a binding shall say; empty: nothing."""


def module_text(
    mod: IRModule, show_meta_data: bool = False, annotate: Annotate | None = None
) -> str:
    """The module as text; constants that are not scalars appear as `meta[Constant][k]`."""
    printer = _Printer(annotate=annotate, whole=show_meta_data)
    parts = ["\n".join(map(str, mod.types.values()))] if mod.types else []
    for name, f in mod.functions.items():
        if isinstance(f, Function):
            parts.append(printer.function(f, f"@{name}"))
        else:
            parts.append(primfunc_text(f, name, constant=printer.table))
    text = "\n\n".join(parts) + "\n"
    if show_meta_data:
        text += "\n#[metadata]\n" + "".join(
            f"meta[Constant][{k}] = {c.dtype}{list(c.data.shape)} {c.data.tobytes().hex()}\n"
            for k, c in enumerate(printer.constants)
        )
        names = {str(k): c.name for k, c in enumerate(printer.constants) if c.name}
        text += f"names = {json.dumps(names)}\n" if names else ""
        text += f"attrs = {json.dumps(dict(mod.attrs))}\norigins = {json.dumps(_origins(mod))}\n"
    elif printer.constants:
        count = len(printer.constants)
        text += f"\n// {count} constants omitted; show_meta_data=True writes them out\n"
    return text


def function_text(f: Function, name: str = "", error_at: Var | None = None, error: str = "") -> str:
    """One function as text, with an error shown under the binding of the variable `error_at`."""
    return _Printer(error_at, error).function(f, f"@{name}" if name else "")


def value_text(value: Value) -> str:
    """A value as it stands in a binding."""
    return _Printer().value(value, "")


class _Printer:
    def __init__(
        self,
        error_at: Var | None = None,
        error: str = "",
        annotate: Annotate | None = None,
        whole: bool = False,
    ):
        self.error_at, self.error, self.annotate = error_at, error, annotate
        self.whole = whole  # the metadata follows: scalars with names are in it, too
        self.graph = False  # graph normal form
        self.inside: dict[Var, Binding] = {}
        self.constants: list[Constant] = []
        self._index: dict[object, int] = {}

    def function(self, f: Function, name: str, indent: str = "") -> str:
        params = ", ".join(f"{p}: {p.type}" for p in f.params)
        typed = all(r.type is not None for r in f.results)
        result = f" -> {f.type.result}" if typed else ""
        marks = "".join(f"{k}={_attr(v)}, " for k, v in f.attrs.items())
        if name:
            self.graph = marked(f)
        head = f"def {name}{_generic(f)}" if name else "fn "
        head = f"{head}({params}{', ' if marks and params else ''}{marks[:-2]}){result} "
        return head + self.body(f, indent)

    def body(self, f: Function, indent: str) -> str:
        lines = ["{"]
        if self.graph:
            self.inside |= printed_inside(f)
        for b in f.bindings:
            if b.var in self.inside:
                continue
            t = f" /* ty={b.var.type} */" if b.var.type is not None else ""
            lines.append(f"  {b.var} = {self.value(b.value, indent + '  ')};{t}{self.note(b)}")
            if b.var is self.error_at:
                lines.append(f"  ^^^^ error: {self.error}")
        out = ", ".join(self.atom(r) for r in f.results)
        lines.append(f"  {out}" if len(f.results) == 1 else f"  ({out})")
        return f"\n{indent}".join([*lines, "}"])

    def note(self, b: Binding) -> str:
        text = self.annotate(b) if self.annotate is not None else ""
        return f" /* {text.replace('*/', '* /')} */" if text else ""

    def value(self, v: Value, indent: str) -> str:
        if isinstance(v, Call):
            return self.call(v, indent)
        if isinstance(v, Tuple):
            inner = ", ".join(self.atom(a) for a in v.fields)
            return f"({inner}{',' if len(v.fields) == 1 else ''})"
        if isinstance(v, TupleGetItem):
            return f"{self.atom(v.value)}.{v.index}"
        if isinstance(v, Match):
            return f"match({self.atom(v.value)}, {v.type})"
        if isinstance(v, Construct):
            return self.construct(v)
        if isinstance(v, Cases):
            return self.cases(v, indent)
        if isinstance(v, GlobalVar):
            return f"@{v.name}"
        if isinstance(v, Function):
            return self.function(v, "", indent)
        if isinstance(v, If):
            then, otherwise = self.body(v.then, indent), self.body(v.otherwise, indent)
            return f"if ({self.atom(v.condition)}) {then} else {otherwise}"
        if isinstance(v, Loop):
            state = [
                f"{p}: {p.type} = {self.atom(a)}"
                for p, a in zip(v.body.params, v.init, strict=True)
            ]
            head = f"loop {v.count} " if v.count else "loop "
            return f"{head}({', '.join([self.atom(v.go), *state])}) {self.body(v.body, indent)}"
        return self.atom(v)

    def construct(self, v: Construct) -> str:
        """With the arguments of the type where the fields do not tell them."""
        told = type_variables(*v.definition.constructor(v.constructor).fields)
        hidden = v.types is None or told.keys() >= {*v.definition.params}
        types = "" if hidden else f"[{', '.join(map(str, v.types or ()))}]"
        fields = f"({', '.join(map(self.atom, v.fields))})" if v.fields else ""
        return f"{v.constructor}{types}{fields}"

    def cases(self, v: Cases, indent: str) -> str:
        inner = f"{indent}  "
        texts = [
            f"{pattern_text(p, map(str, f.params))} => {self.body(f, inner)}"
            for p, f in zip(v.patterns, v.bodies, strict=True)
        ]
        lines = f",\n{inner}".join(texts)
        return f"match ({self.atom(v.value)}) {{\n{inner}{lines}\n{indent}}}"

    def call(self, v: Call, indent: str) -> str:
        args = [self.operand(a, indent) for a in v.args]
        if isinstance(v.op, Function):
            return f"({self.function(v.op, '', indent)})({', '.join(args)})"
        if isinstance(v.op, GlobalVar | Var):
            return f"{v.op!r}({', '.join(args)})"
        if is_callee(v):
            if engine_of(v):
                args[0] = args[0].removesuffix(" */") + f": {label_of(v)} */"
            return callee_text(v, args)
        return f"{v.op.name}({', '.join(args + attrs_text(v.attrs))})"

    def operand(self, a: Atom, indent: str) -> str:
        """An atom, or a value that stands here."""
        if isinstance(a, Var) and a in self.inside:
            return self.value(self.inside[a].value, indent)
        return self.atom(a)

    def atom(self, a: Atom) -> str:
        if isinstance(a, Var):
            return str(a)
        if a.data.ndim == 0 and not a.dtype.is_custom and not (self.whole and a.name):
            return f"{scalar_text(a.data)}{a.dtype}"
        return f"{self.held(a, a)} /* {a.type} */"

    def held(self, key: object, c: Constant) -> str:
        """Where in the metadata a constant is; `key` is what it is known by."""
        if key not in self._index:
            self._index[key] = len(self.constants)
            self.constants.append(c)
        return f"meta[Constant][{self._index[key]}]"

    def table(self, b: Buffer) -> str:
        """Where in the metadata the contents of a constant buffer are."""
        assert b.data is not None
        return self.held(b, Constant(b.data, b.dtype))


def _generic(f: Function) -> str:
    """The type variables of a function, in brackets."""
    found = type_variables(*(p.type for p in f.params if p.type is not None))
    return f"[{', '.join(map(str, found))}]" if found else ""


def callee_text(v: Call, args: list[str]) -> str:
    """`call_tir(@program, (operands), type)`; registered functions are named in quotes."""
    func = f"@{v.attrs.func}" if v.op is CALL_TIR else json.dumps(v.attrs.func)
    return f"{v.op}({func}, ({', '.join(args)}{',' if len(args) == 1 else ''}), {v.attrs.out})"


def scalar_text(data: Any) -> str:
    """A scalar so that reading it back gives the same bits."""
    if data.dtype.kind == "f":
        return repr(float(data)) if np.isfinite(data) else str(float(data))
    return str(bool(data)) if data.dtype.kind == "b" else str(int(data))


def attrs_text(attrs: Any) -> list[str]:
    """`name=value` of every attribute that is not at its default."""
    if attrs is None:
        return []
    values = {f: getattr(attrs, f.name) for f in fields(attrs)}
    # -0.0 equals 0.0, but is another value
    different = {f: v for f, v in values.items() if v != f.default or str(v) == "-0.0"}
    return [f"{f.name}={_attr(v)}" for f, v in different.items()]


def _attr(v: Any) -> str:
    if isinstance(v, tuple):
        return f"[{', '.join(_attr(x) for x in v)}]"
    return json.dumps(v) if isinstance(v, str) else str(v)


def _origins(mod: IRModule) -> dict[str, list[str]]:
    """Path of a binding (`main/y`, and inside groups `main/y/x`) -> the imported names it comes
    from."""
    out: dict[str, list[str]] = {}

    def visit(f: Function, path: str) -> None:
        for b in f.bindings:
            here = f"{path}/{b.var.name}"
            if b.origins:
                out[here] = list(b.origins)
            if isinstance(b.value, Call) and isinstance(b.value.op, Function):
                visit(b.value.op, here)
            for k, g in enumerate(nested(b.value)):
                visit(g, f"{here}/{k}")

    for name, f in mod.functions.items():
        if isinstance(f, Function):
            visit(f, name)
    return out
