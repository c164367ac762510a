"""simulate: a plan run in float32, with values rounded to their grids where the integer graph
narrows them.

It equals the integer graph up to the rounding of float32 sums, and bit for bit where these are
exact, for example with scales that are powers of two and sums below 2^24. Accumulators that wrap or
saturate are those of the integer graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Atom, Call, Constant, IRModule, Var
from compiler.passes.rewrite import call
from compiler.types.dtypes import Array
from quantize.annotation.constants import FACTOR, summand_bits
from quantize.annotation.functions import members
from quantize.plan.node_plan import SEQUENTIAL
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan
from quantize.realization.apply import PlanRewriter
from quantize.realization.integer_forms import OnGrid, Result, channel_axis, integers, weights_of

_HALVES = {"fixed_upward": "up", "shift": "up", "gemmlowp": "away"}
"""How arithmetics of requantize round halves that float32 has exactly, if not to even."""


def simulate(mod: IRModule, plan: Plan) -> IRModule:
    """The float32 graph of `mod` with `qnn.simulated_quantize` wherever `realize` narrows a value
    to 8 bits.

    Weights and biases are dequantized constants, the same integers that `realize` uses.

    Raises:
        ConfigError: the plan was made for another model, or lacks something that its decisions
        need.
    """
    return simulation(mod, plan).run()


def simulation(mod: IRModule, plan: Plan) -> PlanRewriter:
    """What `simulate` runs: it knows, after that, what the constants stand for.

    Raises:
        ConfigError: as `simulate`.
    """
    return Simulator(mod, plan)


class Simulator(PlanRewriter):
    """Values on the grid are float32 tensors."""

    keeps_integers = False

    def quantize(self, a: Atom, params: ValueParams, name: str) -> Var:
        """See PlanRewriter."""
        return self.b.bind(self._rounded(a, params), name)

    def dequantize(self, var: Var, x: OnGrid) -> Atom:
        """See PlanRewriter."""
        return x.atom

    def bind_grid(self, r: Result, value: Call) -> Var:
        """See PlanRewriter."""
        return self.named(r.var, value, r.origins)

    def constant(self, q: Array, params: ValueParams) -> Constant:
        """See PlanRewriter."""
        return self.scalar(q.astype(np.float32) * np.float32(params.scale))

    def constant_on_grid(self, value: float, params: ValueParams) -> float:
        """See PlanRewriter."""
        return float(np.float32((params.clipped(value) - params.zero_point) * params.scale))

    def _rounded(self, a: Atom, params: ValueParams, halves: str = "even") -> Call:
        return call(
            "qnn.simulated_quantize", a, self.scalar(params.scale), zero_point=params.zero_point,
            out_dtype=params.dtype, qmin=params.qmin, qmax=params.qmax,
            **({} if halves == "even" else {"halves": halves}),
        )  # fmt: skip

    def _narrow(self, r: Result, value: Call, scaled: bool = True) -> None:
        """Bind `value`, the activations folded into it, and the rounding to the result's grid: of
        what the integer graph scales, as its arithmetic rounds halves. (With scales that are powers
        of two, results lie in the middle between two integers all the time.)"""
        params = self.own_params(r)
        x: Atom = self.b.bind(value, f"{r.binding.var.name}_real", r.binding.origins)
        if r.bounds != (-np.inf, np.inf):
            clip = call("clip", x, a_min=float(r.bounds[0]), a_max=float(r.bounds[1]))
            x = self.b.bind(clip, f"{r.var.name}_clip", r.origins)
        halves = _HALVES.get(self.plan.config.requantize, "even") if scaled else "even"
        rounded = self._rounded(x, params, halves)
        self.grid[r.var] = OnGrid(self.bind_rounded(r, rounded), params)

    def bind_rounded(self, r: Result, rounded: Call) -> Var:
        """A result on its grid."""
        return self.named(r.var, rounded, r.origins)

    def weighted(self, r: Result, weights: WeightParams) -> None:
        """See PlanRewriter."""
        x = self.on_grid(r.call.args[0])
        name = r.binding.var.name
        counted = self._counted(name)
        value = self._in_integers(r, weights, x) if counted else self._in_floats(r, weights, x)
        self._wide_or_narrow(r, value)

    def _counted(self, node: str) -> bool:
        """Whether a node's accumulator is one that may not hold its sums."""
        return self.plan.nodes[node].accumulate != SEQUENTIAL

    def product(self, r: Result) -> None:
        """See PlanRewriter."""
        a, b = (self.on_grid(x) for x in r.call.args)
        if not self._counted(r.binding.var.name):
            self._wide_or_narrow(r, Call(r.call.op, (a.atom, b.atom), r.call.attrs))
            return
        name = r.binding.var.name
        first, second = (
            OnGrid(self._integers(x, f"{name}_{what}"), x.params)
            for x, what in ((a, "data"), (b, "factor"))
        )
        sums = self.b.bind(self.multiplied(r, first, second), f"{name}_acc", r.binding.origins)
        unit = self.scalar(np.float32(a.params.scale * b.params.scale))
        self._wide_or_narrow(r, call("qnn.dequantize", sums, unit))

    def _integers(self, x: OnGrid, name: str) -> Var:
        """The integers of a value on its grid."""
        grid = x.params
        return self.b.bind(
            call(
                "qnn.quantize", x.atom, self.scalar(grid.scale), zero_point=grid.zero_point,
                out_dtype=grid.dtype, qmin=grid.qmin, qmax=grid.qmax,
            ),
            name,
        )  # fmt: skip

    def _wide_or_narrow(self, r: Result, value: Call) -> None:
        if r.var.name not in self.plan.values and r.var is r.binding.var:
            self.real_form[r.var] = self.named(r.var, value, r.origins)
        else:
            self._narrow(r, value)

    def _in_integers(self, r: Result, weights: WeightParams, x: OnGrid) -> Call:
        """What an accumulator of few bits holds depends on every integer that it adds."""
        name = r.binding.var.name
        data = self._integers(x, f"{name}_data")
        acc = self.b.bind(
            self.accumulated(r, weights, data, x.params), f"{name}_acc", r.binding.origins
        )
        scale = self.scalar(weights.accumulator_scale(x.params))
        return call("qnn.dequantize", acc, scale, axis=channel_axis(r))

    def _in_floats(self, r: Result, weights: WeightParams, x: OnGrid) -> Call:
        weight, bias = weights_of(r, weights)
        name = r.binding.var.name
        scales = self._scales(np.asarray(weights.scales, np.float32))
        q = integers(weights.quantized(weight))
        self.integers_of[q] = weights
        args: list[Atom] = [x.atom]
        args.append(self.b.bind(call("qnn.dequantize", q, scales, axis=0), f"{name}_weight"))
        if bias is not None:
            units = self.scalar(weights.accumulator_scale(x.params))
            i = integers(weights.bias(bias, x.params))
            args.append(self.b.bind(call("qnn.dequantize", i, units, axis=0), f"{name}_bias"))
        return Call(r.call.op, tuple(args), r.call.attrs)

    def _scales(self, values: Any) -> Constant:
        return self.scalar(values[0] if len(values) == 1 else values)

    def _plain(self, r: Result, bits: int = 0, scaled: bool = True) -> None:
        bits = bits or summand_bits(self.plan.config.requantize)
        atoms = tuple(self.operand(a, bits).atom for a in r.call.args)
        self._narrow(r, Call(r.call.op, atoms, r.call.attrs), scaled)

    def function(self, r: Result, root: Var) -> None:
        """See PlanRewriter. The operators that the function is made of, in float32."""
        name = r.binding.var.name
        at: dict[Atom, Atom] = {root: self.on_grid(root).atom}
        *inner, last = [
            (m, m.value)
            for m in members(self.graph, r.binding.var, root)
            if isinstance(m.value, Call)
        ]

        def over_grid(v: Call) -> Call:
            return Call(v.op, tuple(map(at.get, v.args, v.args)), v.attrs)

        for m, v in inner:
            at[m.var] = self.b.bind(over_grid(v), f"{name}_{m.var.name}", m.origins)
        self._narrow(r, over_grid(last[1]), scaled=False)

    def add(self, r: Result) -> None:
        """See PlanRewriter."""
        self._plain(r)

    def subtract(self, r: Result) -> None:
        """See PlanRewriter."""
        self._plain(r)

    def multiply(self, r: Result) -> None:
        """See PlanRewriter."""
        self._plain(r, FACTOR)

    def softmax(self, r: Result) -> None:
        """See PlanRewriter."""
        self._plain(r, scaled=False)

    def layer_norm(self, r: Result) -> None:
        """See PlanRewriter."""
        data, *constants = r.call.args
        args = (self.on_grid(data).atom, *constants)
        self._narrow(r, Call(r.call.op, args, r.call.attrs), scaled=False)

    def average(self, r: Result) -> None:
        """See PlanRewriter."""
        self._plain(r)

    def concatenate(self, r: Result) -> None:
        """See PlanRewriter."""
        self._plain(r)

    def activation(self, r: Result) -> None:
        """See PlanRewriter."""
        x = self.on_grid(r.call.args[0])
        value = Call(r.call.op, (x.atom,), r.call.attrs)
        params = x.params
        clipped = self.b.bind(value, f"{r.var.name}_real", r.origins)
        rounded = self._rounded(clipped, params)
        self.grid[r.var] = OnGrid(self.bind_rounded(r, rounded), params)
