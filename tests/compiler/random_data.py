"""Random programs that make lists, options and trees, take them apart by cases, and call generic
functions on them, beside all that `random_language` has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from random_language import COUNT, FLAG, MAP, MATRIX, TYPES, VECTOR, Draw, Generator

import compiler
from compiler.boundary.data import Datum
from compiler.ir.expression import Expr, Operand, operand
from compiler.ir.linking import linked
from compiler.types.tensor_types import DataType, TupleType, Type

LIST, OPTION = DataType("List", (MATRIX,)), DataType("Option", (MATRIX,))
TREE = DataType("Tree", (VECTOR,))
DATA: tuple[Type, ...] = (LIST, OPTION, TREE)
BOTH = TupleType((LIST, OPTION))


def called(name: str, *args: Any) -> Operand:
    """A call of a function of the prelude."""
    return compiler.GlobalVar(name, compiler.prelude()[name].type)(*args)


class DataGenerator(Generator):
    """Draws expressions with algebraic data types in them."""

    types = compiler.prelude().types

    def made(self, t: Type, scope: list[Operand]) -> Operand:
        if t in (LIST, OPTION, TREE, BOTH):
            if self.left > 0 and self.pick(range(5)) == 0:
                return self.cases(t, scope)
            makers = {LIST: self.list, OPTION: self.option, TREE: self.tree, BOTH: self.both}
            return makers[t](scope)
        if t != MAP and self.left > 0 and self.pick(range(4)) == 0:
            return self.cases(t, scope)
        if t == COUNT and self.left > 0 and self.pick(range(4)) == 0:
            kind = self.pick(("length", "size"))
            return called(kind, self.of(LIST if kind == "length" else TREE, scope))
        if t == MATRIX and self.left > 0 and self.pick(range(6)) == 0:
            start, items = self.of(MATRIX, scope), self.of(LIST, scope)
            return called(self.pick(("foldl", "foldr")), self.step(scope), start, items)
        return super().made(t, scope)

    def step(self, scope: list[Operand]) -> Operand:
        """A closure of two matrices."""
        a, b = (compiler.Var(self.name(), MATRIX) for _ in range(2))
        inner: list[Operand] = [a, b, *(x for x in scope if not isinstance(x, Expr))]
        return operand(compiler.function([a, b], self.of(MATRIX, inner)))

    def form(self, name: str, *fields: Operand, of: Type) -> Operand:
        return compiler.construct(self.types, name, *fields, of=(of,))

    def cases(self, t: Type, scope: list[Operand]) -> Operand:
        """One of several complete matches."""
        some = "Some(%{0})"
        value, patterns = self.pick([
            (LIST, ("Nil", "Cons(%{0}, %{1})")),
            (LIST, ("Cons(%{0}, Cons(_, %{1}))", "Cons(%{0}, Nil)", "Nil")),
            (LIST, ("Cons(_, Nil)", "%{0}")),
            (OPTION, ("None", some)),
            (TREE, ("Rose(%{0}, Nil)", "Rose(_, Cons(%{0}, _))")),
            (BOTH, ("(Nil, _)", "(Cons(%{0}, _), Some(%{1}))", "(%{0}, None)")),
        ])  # fmt: skip
        bodies = {}
        for pattern in patterns:
            named = pattern.format(self.name(), self.name())
            bodies[named] = lambda *found: self.of(t, [*scope, *found])
        return compiler.cases(self.of(value, scope), self.types, bodies)

    def list(self, scope: list[Operand]) -> Operand:
        kind = self.pick(range(7)) if self.left > 0 else 0
        if kind == 6:
            zipped = called("zip", self.of(LIST, scope), self.of(LIST, scope))
            both = f"Cons((%{self.name()}, %{self.name()}), _)"
            none = self.form("Nil", of=MATRIX)

            def summed(a: Any, b: Any) -> Operand:
                return self.form("Cons", a + b, none, of=MATRIX)

            return compiler.cases(zipped, self.types, {both: summed, "Nil": lambda: none})
        if kind == 1:
            return self.form("Cons", self.of(MATRIX, scope), self.of(LIST, scope), of=MATRIX)
        if kind == 2:
            return called("map", self.of(MAP, scope), self.of(LIST, scope))
        if kind == 3:
            return called(self.pick(("reverse", "tail")), self.of(LIST, scope))
        if kind == 4:
            return called("concat", self.of(LIST, scope), self.of(LIST, scope))
        if kind == 5:
            return called("take", self.of(LIST, scope), self.of(COUNT, scope))
        return self.form("Nil", of=MATRIX)

    def option(self, scope: list[Operand]) -> Operand:
        if self.left > 0 and self.pick((True, False)):
            return called("head", self.of(LIST, scope))
        return self.form("Some", self.of(MATRIX, scope), of=MATRIX)

    def tree(self, scope: list[Operand]) -> Operand:
        none = self.form("Nil", of=TREE)
        below = none
        if self.left > 0 and self.pick((True, False)):
            below = self.form("Cons", self.of(TREE, scope), none, of=TREE)
        return self.form("Rose", self.of(VECTOR, scope), below, of=VECTOR)

    def both(self, scope: list[Operand]) -> Operand:
        return compiler.make_tuple(self.of(LIST, scope), self.of(OPTION, scope))


@st.composite
def modules(draw: Draw, budget: int = 14) -> compiler.IRModule:
    """A module of `main(x, v, k, c, xs)`, and of a generic function that it may call."""
    g = DataGenerator(draw, [], budget)
    given = zip("xvkc", (MATRIX, VECTOR, COUNT, FLAG), strict=True)
    params = [*(compiler.Var(n, t) for n, t in given), compiler.Var("xs", LIST)]
    scope: list[Operand] = list(params)
    wanted = draw(st.lists(st.sampled_from([*TYPES[:7], *DATA, LIST]), min_size=1, max_size=2))
    main = compiler.function(params, [g.of(t, scope) for t in wanted])
    # Half of the functions of the prelude are inlined where they may be.
    mod = linked(compiler.IRModule({"main": main}, types=dict(g.types)), compiler.prelude())
    functions = dict(mod.functions)
    for name, f in mod.functions.items():
        if name != "main" and draw(st.booleans()):
            functions[name] = replace(f, attrs={"inline": True})
    return replace(mod, functions=functions)


def inputs(size: int, count: int, flag: bool) -> list[Any]:
    rng = np.random.default_rng(size)
    x, *more = (rng.standard_normal((size, 4)).astype(np.float32) for _ in range(count + 1))
    return [x, x[0] / 2, np.asarray(count, np.int64), np.asarray(flag), Datum.listed(more)]
