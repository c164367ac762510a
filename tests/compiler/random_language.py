"""Random programs with branches, loops, tuples, closures, calls and symbolic shapes.

Conditions depend on integers and flags only, so that rounding never decides where a program goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import compiler
from compiler.arithmetic.scalar_functions import UNARY
from compiler.ir.expression import Expr, Operand
from compiler.symbolic import Var as Dim
from compiler.types.tensor_types import FuncType, TensorType, TupleType, Type

N = Dim("n")
MATRIX, VECTOR = TensorType.of((N, 4), "float32"), TensorType.of((4,), "float32")
FLAG, COUNT = TensorType.of((), "bool"), TensorType.of((), "int64")
PAIR, MAP = TupleType((MATRIX, VECTOR)), FuncType((MATRIX,), MATRIX)
TYPES: tuple[Type, ...] = (MATRIX, MATRIX, MATRIX, VECTOR, FLAG, COUNT, PAIR, MAP)
WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
BOUNDED = [f.name for f in UNARY.values() if f.enclose and max(map(abs, f.limits)) < math.inf]
FUNCTIONS = ("nn.relu", "negative", "abs", *BOUNDED)
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Generator:
    """Draws expressions of wanted types over what is in scope."""

    def __init__(self, draw: Draw, helpers: list[compiler.GlobalVar], budget: int):
        self.draw, self.helpers, self.left = draw, helpers, budget
        self.count = 0

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def name(self) -> str:
        self.count += 1
        return f"p{self.count}"

    def of(self, t: Type, scope: list[Operand]) -> Operand:
        """An expression of type `t`; it is in scope from then on."""
        self.left -= 1
        known = [x for x in scope if x.type == t]
        if known and (self.left <= 0 or self.pick(range(3)) == 0):
            return self.pick(known)
        made = self.made(t, scope)
        scope.append(made)
        return made

    def made(self, t: Type, scope: list[Operand]) -> Operand:
        if t != MAP and self.left > 0:
            kind = self.pick(range(10))
            if kind == 0:
                then, other = (self.of(t, list(scope)) for _ in range(2))
                return compiler.if_else(self.of(FLAG, scope), then, other)
            if kind == 1 and t in (MATRIX, VECTOR):
                return self.loop(t, scope)
            if kind == 2:
                fields = [self.of(x, scope) for x in (t, self.pick(TYPES[:6]))]
                return compiler.make_tuple(*fields)[0]
        makers: dict[Type, Callable[[list[Operand]], Operand]] = {
            MATRIX: self.matrix, VECTOR: self.vector, FLAG: self.flag, COUNT: self.number,
            PAIR: self.pair, MAP: self.closure,
        }  # fmt: skip
        return makers[t](scope)

    def matrix(self, scope: list[Operand]) -> Operand:
        kind = self.pick(range(7)) if self.left > 0 else 0
        x = self.of(MATRIX, scope)
        if kind == 1:
            y = self.of(self.pick((MATRIX, VECTOR)), scope)
            return compiler.call(self.pick(BINARY), x, y)
        if kind == 2:
            return compiler.call("nn.dense", x, WEIGHT)
        if kind == 3:
            left, right = compiler.call("split", x, sizes=(1, 3), axis=1)
            return compiler.call("concatenate", right, left, axis=1)
        if kind == 4:
            return self.of(PAIR, scope)[0]
        if kind == 5:
            return self.of(MAP, scope)(x)
        if kind == 6 and self.helpers:
            return self.pick(self.helpers)(self.of(COUNT, scope), x)
        return compiler.call(self.pick(FUNCTIONS), x)

    def vector(self, scope: list[Operand]) -> Operand:
        kind = self.pick(range(4)) if self.left > 0 else 0
        if kind == 1:
            return compiler.call("mean", self.of(MATRIX, scope), axis=(0,))
        if kind == 2:
            return compiler.call(self.pick(BINARY), self.of(VECTOR, scope), self.of(VECTOR, scope))
        if kind == 3:
            return self.of(PAIR, scope)[1]
        return compiler.call(self.pick(FUNCTIONS), self.of(VECTOR, scope))

    def flag(self, scope: list[Operand]) -> Operand:
        a, b = self.of(COUNT, scope), self.draw(st.integers(-2, 4))
        return compiler.call(self.pick(("less", "greater", "equal")), a, b)

    def number(self, scope: list[Operand]) -> Operand:
        a, b = self.of(COUNT, scope), self.draw(st.integers(-2, 2))
        return compiler.call(self.pick(("add", "subtract", "maximum")), a, b)

    def pair(self, scope: list[Operand]) -> Operand:
        return compiler.make_tuple(self.of(MATRIX, scope), self.of(VECTOR, scope))

    def closure(self, scope: list[Operand]) -> Operand:
        a = compiler.Var(self.name(), MATRIX)
        # What it captures are variables: expressions that it shares would be computed again in it.
        inner: list[Operand] = [a, *(x for x in scope if not isinstance(x, Expr))]
        f = compiler.function([a], self.of(MATRIX, inner))
        return compiler.ir.expression.operand(f)

    def loop(self, t: Type, scope: list[Operand]) -> Operand:
        times = compiler.call("minimum", self.of(COUNT, scope), 3)

        def body(i: Any, x: Any) -> tuple[Any, Any]:
            return i + 1, self.of(t, [*scope, i, x])

        init = (compiler.const(0), self.of(t, scope))
        return compiler.while_loop(lambda i, _: i < times, body, init)[1]


@st.composite
def modules(draw: Draw, budget: int = 14) -> compiler.IRModule:
    """A module of `main(x, v, k, c)` and functions that it may call."""
    functions: dict[str, compiler.Function] = {}
    helpers: list[compiler.GlobalVar] = []
    for k in range(draw(st.integers(0, 2))):
        i, m = compiler.Var("i", COUNT), compiler.Var("m", MATRIX)
        g = Generator(draw, list(helpers), 5)
        me = compiler.global_var(f"helper{k}", [COUNT, MATRIX], MATRIX)
        scope: list[Operand] = [i, m, compiler.const(WEIGHT[0])]
        body = g.of(MATRIX, scope)
        if draw(st.booleans()):
            again = me(compiler.call("minimum", i, 3) - 1, body)
            body = compiler.if_else(i > 0, again, m)
        functions[me.name] = compiler.function([i, m], body)
        helpers.append(me)
    params = [
        compiler.Var(n, t) for n, t in zip("xvkc", (MATRIX, VECTOR, COUNT, FLAG), strict=True)
    ]
    g = Generator(draw, helpers, budget)
    wanted = draw(st.lists(st.sampled_from(TYPES[:7]), min_size=1, max_size=2))
    scope = list(params)
    results = [g.of(t, scope) for t in wanted]
    return compiler.IRModule({"main": compiler.function(params, results), **functions})


def inputs(size: int, count: int, flag: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((size, 4)).astype(np.float32)
    return [x, x[0] / 2, np.asarray(count, np.int64), np.asarray(flag)]
