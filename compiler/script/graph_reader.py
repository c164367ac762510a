"""Reads a graph function that is written in Python."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from compiler.errors import DtypelabError, ParseError
from compiler.ir.construct import Statements
from compiler.ir.expr import Call, Constant, Function, Var
from compiler.ir.expression import Expr
from compiler.op.opdef import OpDef
from compiler.script.graph_values import Dataflow, Output, Tensor
from compiler.script.source import Gone, Source
from compiler.types.tensor_types import Type


class GraphReader:
    """Reads one graph function."""

    def __init__(self, source: Source):
        self.source = source
        self.function: Statements
        self.inside: set[str] | None = None
        self.out: set[str] = set()
        self.results: tuple[Any, ...] | None = None

    def read(self) -> Function:
        """The function.

        Raises:
            ParseError: names file, line and column.
        """
        d = self.source.definition
        params = parameters(self.source)
        for p in params:
            self.source.names[p.name] = p
        self.function = Statements(params)
        self._statements(d.body)
        if self.results is None:
            raise self.source.error(d, f"{d.name} returns nothing")
        return self.function.function(self.results)

    def _bound(self, node: ast.AST, value: Any, name: str = "") -> Any:
        """The value under a name; whatever is to be computed is computed here."""
        try:
            return self.function.bind(value, name)
        except ParseError:
            raise
        except DtypelabError as e:
            raise self.source.error(node, str(e)) from None

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for k, s in enumerate(body):
            if self.results is not None:
                raise self.source.error(s, "nothing may follow the return")
            if k == 0 and isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant):
                continue  # what it is for
            self._statement(s)

    def _statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.With):
            self._dataflow(s)
        elif isinstance(s, ast.Assign) and len(s.targets) == 1:
            self._assign(s.targets[0], s.value)
        elif isinstance(s, ast.Expr):
            self._alone(s)
        elif isinstance(s, ast.Return) and s.value is not None and self.inside is None:
            given = self._value(s.value)
            values = given if isinstance(given, tuple | list) else (given,)
            self.results = tuple(self._bound(s, v) for v in values)
        elif isinstance(s, ast.If):
            test = self.source.value(s.test)
            if isinstance(test, Expr | Var):
                message = "this is known only when it runs: use compiler.if_else(...)"
                raise self.source.error(s.test, message)
            self._statements(s.body if test else s.orelse)
        elif not isinstance(s, ast.Pass):
            what = type(s).__name__
            raise self.source.error(s, f"a graph function has no statement of this kind ({what})")

    def _value(self, node: ast.expr) -> Any:
        value = self.source.value(node)
        if self.inside is not None and isinstance(value, Expr) and _effects(value):
            raise self.source.error(node, "a call with effects must stand outside of dataflow()")
        return value

    def _alone(self, s: ast.Expr) -> None:
        """`output(...)`, or a call for its effects."""
        value = self._value(s.value)
        if isinstance(value, Output):
            if self.inside is None:
                raise self.source.error(s, "output(...) stands in a dataflow block")
            given = {id(v) for v in value.values}
            self.out |= {n for n in self.inside if id(self.source.names[n]) in given}
        elif isinstance(value, Expr):
            self._bound(s, value)
        else:
            raise self.source.error(s, "this does nothing")

    def _assign(self, target: ast.expr, node: ast.expr) -> None:
        value = self._value(node)
        if isinstance(target, ast.Name):
            self._define(target, value)
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise self.source.error(target, "expected a name")
        whole = self._bound(node, value) if isinstance(value, Expr) else value
        try:
            values = list(whole)
        except (DtypelabError, TypeError) as e:
            raise self.source.error(node, f"this is not several values: {e}") from None
        if len(values) != len(target.elts):
            message = f"{len(values)} values for {len(target.elts)} names"
            raise self.source.error(target, message)
        for t, v in zip(target.elts, values, strict=True):
            self._define(t, v)

    def _define(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Name):
            raise self.source.error(target, "expected a name")
        if isinstance(value, Expr):
            value = self._bound(target, value, target.id)
        self.source.names[target.id] = value
        if self.inside is not None and isinstance(value, Var | Constant):
            self.inside.add(target.id)

    def _dataflow(self, s: ast.With) -> None:
        if len(s.items) != 1 or s.items[0].optional_vars is not None:
            raise self.source.error(s, "write `with dataflow():`")
        what = self.source.value(s.items[0].context_expr)
        if not isinstance(what, Dataflow):
            raise self.source.error(s, f"expected dataflow(), not {what!r}")
        if self.inside is not None:
            raise self.source.error(s, "a dataflow block is inside another")
        self.inside, self.out = set(), set()
        self._statements(s.body)
        for name in self.inside - self.out:
            why = f"{name} stays in its dataflow block: give it out by output({name})"
            self.source.names[name] = Gone(why)
        self.inside = None


def _effects(e: Expr) -> bool:
    """Whether an expression, or what it needs, calls a function for its effects. Functions of the
    module that it calls are not looked into."""
    value = None if e.bodies else e.make([Var("", n.type) for n in e.needs], [])
    inside = [r for b in e.bodies for r in b.results]
    return (isinstance(value, Call) and isinstance(value.op, OpDef) and value.op.effect) or any(
        _effects(n) for n in (*e.needs, *inside) if isinstance(n, Expr)
    )


def parameters(source: Source) -> list[Var]:
    """The parameters of a graph function.

    Raises:
        ParseError: one has no type.
    """
    d = source.definition
    if d.args.vararg or d.args.kwarg or d.args.kwonlyargs or d.args.defaults:
        raise source.error(d, "a graph function takes tensors by position")
    out = []
    for a in d.args.args:
        if a.annotation is None:
            raise source.error(a, f"{a.arg} needs a type, as in {a.arg}: Tensor((4,))")
        out.append(Var(a.arg, annotated(source, a.annotation)))
    return out


def annotated(source: Source, node: ast.expr) -> Type:
    """The type that an annotation gives.

    Raises:
        ParseError: it is none.
    """
    given = source.value(node)
    if not isinstance(given, Tensor):
        raise source.error(node, f"expected a Tensor, not {given!r}")
    try:
        return given.type
    except DtypelabError as e:
        raise source.error(node, str(e)) from None
