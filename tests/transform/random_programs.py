"""Random programs of every kind of value, for the tests that a pass changes no result."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Atom, Call, Function, GlobalVar, If, IRModule, Tuple, Var
from compiler.ir.verifier import verify
from compiler.symbolic import Var as Dimension
from compiler.types.tensor_types import TensorType

CHANNELS, SIZE = 4, 5
SHAPE = (Dimension("n"), CHANNELS, SIZE, SIZE)
STEPS = (
    "conv", "convs", "denses", "matmuls", "batch_norm", "scale", "relu", "pool", "bias_add",
    "add", "again", "identity", "views", "constants", "constant_first", "tuple", "dead",
    "if", "closure", "call", "apply",
)  # fmt: skip
Plan = list[tuple[str, int, int]]
PLANS: st.SearchStrategy[Plan] = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(0, 9)), max_size=10
)
"""Steps: what to do, with which of the latest values, and with which other one."""


def values(seed: int, *shape: int) -> np.ndarray:
    """Values around 1 in size, of both signs."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def positive(seed: int, *shape: int) -> np.ndarray:
    """Values between 0.5 and 1.5."""
    return np.abs(values(seed, *shape)) + np.float32(0.5)


class Program:
    """Builds `main(x, flag)` step by step; every value is of SHAPE, of float32."""

    def __init__(self, b: FunctionBuilder, first: list[Var], flag: Var, depth: int = 0):
        self.b, self.values, self.flag, self.depth = b, first, flag, depth

    def run(self, plan: Plan) -> Program:
        for kind, back, other in plan:
            x = self.values[max(0, len(self.values) - 1 - back)]
            y = self.values[other % len(self.values)]
            self.values.append(getattr(self, f"_{kind}")(x, y, other))
        return self

    def op(self, name: str, *args: Any, **attrs: Any) -> Var:
        atoms = [self.b.const(a) if isinstance(a, np.ndarray) else a for a in args]
        origin = self.b.fresh("node")
        return self.b.call(name, *atoms, name="v", origins=[origin], **attrs)

    def _conv(self, x: Atom, _: Var, k: int) -> Var:
        groups = (1, 2)[k % 2]
        weight = values(k, CHANNELS, CHANNELS // groups, 3, 3)
        return self.op("nn.conv2d", x, weight, *self._bias(k), padding=(1, 1, 1, 1), groups=groups)

    def _bias(self, k: int) -> list[np.ndarray]:
        return [values(k, CHANNELS)] if k % 3 else []

    def _convs(self, x: Atom, _: Var, k: int) -> Var:
        made = []
        for units in (2, 1, 1):
            bias = [values(k + 1, units)] if k % 2 else []
            made.append(self.op("nn.conv2d", x, values(k, units, CHANNELS, 1, 1), *bias))
        return self.op("concatenate", *made, axis=1)

    def _denses(self, x: Atom, y: Var, k: int) -> Var:
        made = [self.op("nn.dense", x, values(k + i, SIZE, SIZE)) for i in range(3)]
        return self.op("add", self.op("add", made[0], made[1]), made[2])

    def _matmuls(self, x: Atom, y: Var, k: int) -> Var:
        made = [self.op("nn.matmul", x, values(k + i, SIZE, SIZE)) for i in range(3)]
        return self.op("add", self.op("maximum", made[0], made[1]), made[2])

    def _batch_norm(self, x: Atom, _: Var, k: int) -> Var:
        return self.op("nn.batch_norm", x, *(values(k + i, CHANNELS) for i in range(3)),
                       positive(k, CHANNELS))  # fmt: skip

    def _scale(self, x: Atom, _: Var, k: int) -> Var:
        scale = (values if k % 3 == 0 else positive)(k, CHANNELS, 1, 1)
        return self.op("multiply", *((x, scale) if k % 2 else (scale, x)))

    def _relu(self, x: Atom, _: Var, k: int) -> Var:
        return self.op("nn.relu", x)

    def _pool(self, x: Atom, _: Var, k: int) -> Var:
        name = ("nn.max_pool2d", "nn.avg_pool2d")[k % 2]
        return self.op(name, x, pool_size=(3, 3), padding=(1, 1, 1, 1))

    def _bias_add(self, x: Atom, _: Var, k: int) -> Var:
        return self.op("nn.bias_add", x, values(k, CHANNELS), axis=1)

    def _add(self, x: Atom, y: Var, k: int) -> Var:
        return self.op("add", x, y)

    def _again(self, x: Atom, y: Var, k: int) -> Var:
        pair = [self.op("multiply", x, np.full((1, 1), 0.5, np.float32)) for _ in range(2)]
        return self.op("add", *pair)

    def _identity(self, x: Atom, _: Var, k: int) -> Var:
        return self.op("nn.dropout", x)

    def _views(self, x: Atom, _: Var, k: int) -> Var:
        return self.op("squeeze", self.op("expand_dims", x, axes=k % 3), axis=k % 3)

    def _constants(self, x: Atom, _: Var, k: int) -> Var:
        return self.op("add", x, self.op("exp", values(k, CHANNELS, 1, 1)))

    def _constant_first(self, x: Atom, _: Var, k: int) -> Var:
        return self.op("maximum", values(k, 1), x)

    def _tuple(self, x: Var, y: Var, k: int) -> Var:
        pair = self.b.bind(Tuple((x, y)), "pair")
        return self.op("add", self.b.get(pair, 0), self.b.get(pair, 1))

    def _dead(self, x: Var, y: Var, k: int) -> Var:
        self.op("sigmoid", x)
        return x

    # ---- functions -------------------------------------------------------------------------------
    def _inner(self, x: Var, y: Var, k: int, params: list[Var]) -> Function:
        """A function that may read x and y."""
        b = FunctionBuilder()
        for p in params:
            b.add_param(p)
        b.fresh = self.b.fresh
        p = Program(b, [x, y, *params], self.flag, self.depth + 1)
        plan = [(STEPS[(k * 7 + i * 5) % 12], i, k + i) for i in range(k % 3 + 1)]
        return b.finish(p.run(plan).values[-1])

    def _if(self, x: Var, y: Var, k: int) -> Var:
        then, otherwise = (self._inner(x, y, k + i, []) for i in range(2))
        return self.b.bind(If(self.flag, then, otherwise), "if")

    def _closure(self, x: Var, y: Var, k: int) -> Var:
        param = Var(self.b.fresh("a"), x.type)
        return self.b.bind(self._inner(x, y, k, [param]), "f")

    def _apply(self, x: Var, y: Var, k: int) -> Var:
        f = self._closure(x, y, k)
        once = self.b.bind(Call(f, (x,)), "applied")
        return once if k % 2 else self.b.bind(Call(f, (once,)), "applied")

    def _call(self, x: Var, y: Var, k: int) -> Var:
        name = ("helper", "helped")[k % 2]
        return self.b.bind(Call(GlobalVar(name, HELPERS[name].type), (x, y)), "call")


def _helper(called: str, **attrs: bool) -> Function:
    b = FunctionBuilder()
    x, y = b.param("x", SHAPE), b.param("y", SHAPE)
    z = b.call("subtract", x, b.call("multiply", y, y))
    if called:
        z = b.bind(Call(GlobalVar(called, HELPERS[called].type), (z, x)))
    return b.finish(z, attrs=attrs)


HELPERS: dict[str, Function] = {}
HELPERS["helper"] = _helper("", inline=True)
HELPERS["helped"] = _helper("helper")


def program(plan: Plan, extra: int = 0) -> IRModule:
    """The program of a plan; with `extra`, an intermediate value is a result as well."""
    b = FunctionBuilder()
    x = b.param("x", SHAPE)
    flag = b.add_param(Var("flag", TensorType.of((), "bool")))
    # A closure is a value of another type: it is made, and called by "apply" alone.
    kept = [(kind, back, other) for kind, back, other in plan if kind != "closure"]
    p = Program(b, [x], flag).run(kept)
    results = [p.values[-1]]
    if extra and len(p.values) > 2:
        results.append(p.values[1 + extra % (len(p.values) - 2)])
    if results[0] is results[-1]:
        results = results[:1]
    mod = IRModule({"main": b.finish(*results), **HELPERS})
    verify(mod)
    return mod


def inputs(n: int, flag: bool) -> list[np.ndarray]:
    """What a program takes, for a batch of `n`."""
    return [values(n, n, CHANNELS, SIZE, SIZE), np.asarray(flag)]


def outputs(mod: IRModule, n: int, flag: bool) -> list[np.ndarray]:
    """What the interpreter gives for a batch of `n`."""
    out = evaluate(mod, *inputs(n, flag))
    return out if isinstance(out, list) else [out]
