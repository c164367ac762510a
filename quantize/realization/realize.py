"""realize: a plan becomes an integer graph. Nothing is decided here."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import ConfigError
from compiler.ir.expr import Atom, Call, Constant, IRModule, Var, tensor_type
from compiler.op.opdef import OpDef
from compiler.op.qnn.requantize import MULTIPLIERS
from compiler.op.qnn.softmax import exponentials
from compiler.passes.rewrite import call
from compiler.types.dtypes import FLOAT32, FLOAT64, INT32, INT64, Array, DType
from quantize.annotation.constants import FACTOR, summand_bits
from quantize.annotation.functions import table
from quantize.annotation.normalization import layer_norm_constants
from quantize.annotation.op_facts import activations, reach_of
from quantize.annotation.requantization import check_fits, check_shift, limits, ratio, units
from quantize.plan.call_facts import centred
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan
from quantize.realization.apply import PlanRewriter
from quantize.realization.integer_forms import (
    OnGrid,
    Result,
    activation_bounds,
    channel_axis,
    integers,
    weights_of,
)


def realize(mod: IRModule, plan: Plan, boundary: bool = True) -> IRModule:
    """The integer graph of `mod` by `plan`.

    Each input is quantized once, and the results are dequantized: the module keeps its interface.
    With `boundary=False` it takes and returns the integers themselves, and `attrs["quantized"]`
    gives, for every such input and result, its (scale, zero point); the scale of an int32 result is
    one per channel.

    Args:
        mod: the float32 module, prepared or not.
        plan: made for this model, by `calibrate` or by hand.
        boundary: whether inputs and results keep their dtypes.

    Raises:
        ConfigError: the plan was made for another model, or lacks something that its decisions
        need.
    """
    realizer = Realizer(mod, plan, boundary)
    realizer.keeps_codes = True  # costs are those of a realizer without
    return realizer.run()


class Accumulator:
    """An int32 result that is not narrowed: real = atom * scale along axis."""

    def __init__(self, atom: Var, scale: Atom, axis: int, origins: tuple[str, ...]):
        self.atom, self.scale, self.axis, self.origins = atom, scale, axis, origins


class Realizer(PlanRewriter):
    """Values on the grid are int8 or uint8 tensors."""

    def __init__(self, mod: IRModule, plan: Plan, boundary: bool):
        super().__init__(mod, plan, boundary)
        self.rounding = plan.config.requantize
        self.accumulators: dict[Var, Accumulator] = {}
        self.interface: dict[str, tuple[Any, int]] = {}
        self.bare = set() if boundary else {r for r in self.graph.f.results if isinstance(r, Var)}

    # ---- the interface ---------------------------------------------------------------------------
    def attrs(self) -> dict[str, Any]:
        """See PlanRewriter."""
        return {} if self.boundary else {"quantized": self.interface}

    def parameter(self, p: Var) -> None:
        """See PlanRewriter."""
        params = self.plan.values.get(p.name)
        if self.boundary or params is None:
            super().parameter(p)
            return
        stored = Var(p.name, tensor_type(p).with_dtype(DType.parse(params.dtype)))
        self.grid[p] = OnGrid(self.b.add_param(stored), params)
        self.interface[p.name] = (params.scale, params.zero_point)

    def result(self, r: Atom) -> Atom:
        """See PlanRewriter."""
        if r in self.bare and isinstance(r, Var):
            if r in self.grid:
                params = self.grid[r].params
                self.interface[r.name] = (params.scale, params.zero_point)
                return self.grid[r].atom
            if r in self.accumulators:
                scale = self.accumulators[r].scale
                assert isinstance(scale, Constant), "of a plan"
                self.interface[r.name] = (scale.data, 0)
                return self.accumulators[r].atom
        return self.real(r)

    # ---- forms of values -------------------------------------------------------------------------
    def real(self, a: Atom) -> Atom:
        """See PlanRewriter."""
        if isinstance(a, Var) and a not in self.real_form and a in self.accumulators:
            acc = self.accumulators[a]
            real = call("qnn.dequantize", acc.atom, acc.scale, axis=acc.axis)
            self.real_form[a] = self._real_var(a, real, acc.origins)
        return super().real(a)

    def quantize(self, a: Atom, params: ValueParams, name: str) -> Var:
        """See PlanRewriter."""
        limited = limits(params)
        q = call(
            "qnn.quantize", a, self.scalar(params.scale), zero_point=params.zero_point, **limited
        )
        return self.b.bind(q, name)

    def dequantize(self, var: Var, x: OnGrid) -> Atom:
        """See PlanRewriter."""
        scale = self.scalar(x.params.scale)
        real = call("qnn.dequantize", x.atom, scale, zero_point=x.params.zero_point)
        made = self.graph.at.get(var)
        return self._real_var(var, real, made.origins if made else ())

    def _real_var(self, var: Var, value: Call, origins: tuple[str, ...]) -> Var:
        if var in self.bare or var not in self.graph.at:
            return self.b.bind(value, f"{var.name}_real", origins)
        return self.named(var, value, origins)

    def bind_grid(self, r: Result, value: Call) -> Var:
        """See PlanRewriter."""
        if r.var in self.bare:
            return self.named(r.var, value, r.origins)
        return self.b.bind(value, f"{r.var.name}_q", r.origins)

    def constant(self, q: Array, params: ValueParams) -> Constant:
        """See PlanRewriter."""
        return Constant(q, INT32)

    def constant_on_grid(self, value: float, params: ValueParams) -> float:
        """See PlanRewriter."""
        return float(params.clipped(value))

    def _keep(self, r: Result, value: Call, params: ValueParams) -> None:
        self.grid[r.var] = OnGrid(self.bind_grid(r, value), params)

    # ---- integer nodes ---------------------------------------------------------------------------
    def weighted(self, r: Result, weights: WeightParams) -> None:
        """conv2d or dense with int32 accumulators, then requantize where the result is narrowed."""
        x = self.on_grid(r.call.args[0])
        weight, bias = weights_of(r, weights)
        sums, axis = self.accumulated(r, weights, x.atom, x.params), channel_axis(r)
        if self._stays_wide(r):
            self._keep_wide(r, sums, self.scalar(weights.accumulator_scale(x.params)), axis)
            return
        out = self.own_params(r)
        check_fits(r.var.name, weights.reach(weight, bias, x.params), out)
        self._narrow(r, sums, weights.accumulator_scale(x.params), out, axis)

    def product(self, r: Result) -> None:
        """matmul with its accumulators, then requantize where the result is narrowed."""
        a, b = (self.on_grid(x) for x in r.call.args)
        sums = self.multiplied(r, a, b)
        unit = a.params.scale * b.params.scale
        if self._stays_wide(r):
            self._keep_wide(r, sums, self.scalar(np.float32(unit)), 0)
            return
        out = self.own_params(r)
        check_fits(r.var.name, self._reach(r), out)
        self._narrow(r, sums, np.asarray(unit), out, 0)

    def _stays_wide(self, r: Result) -> bool:
        """Whether no integers are made of an accumulator."""
        return r.var.name not in self.plan.values and r.var is r.binding.var

    def _keep_wide(self, r: Result, sums: Call, scale: Constant, axis: int) -> None:
        if r.var in self.bare:
            acc = self.named(r.var, sums, r.origins)
        else:
            acc = self.b.bind(sums, f"{r.var.name}_acc", r.origins)
        self.accumulators[r.var] = Accumulator(acc, scale, axis, r.origins)

    def _narrow(self, r: Result, sums: Call, unit: Array, out: ValueParams, axis: int) -> None:
        acc = self.b.bind(sums, f"{r.binding.var.name}_acc", r.binding.origins)
        self._keep(r, self._requantized(r, acc, unit, 0, out, axis, r.bounds), out)

    def _requantized(
        self, r: Result, a: Atom, unit: Array, zero: int, out: ValueParams, axis: int,
        bounds: tuple[float, float] = (-np.inf, np.inf),
    ) -> Call:  # fmt: skip
        """`a`, whose integers stand for `unit` each, on the grid of `out`.

        Raises:
            ConfigError: a shift is to scale by what is no power of two.
        """
        rounding = self.rounding
        scale = units(unit, out, rounding)
        if rounding in MULTIPLIERS and tensor_type(a).dtype == INT64:
            raise ConfigError(
                f"{r.var.name!r} has sums of 64 bits, which requantize={rounding!r} does not "
                "scale: use float32, float64 or shift, or fewer bits there"
            )
        check_shift(r.var.name, self.rounding, scale)
        held = FLOAT32 if rounding == "float32" else FLOAT64
        return call(
            "qnn.requantize", a, Constant.of(scale, held), axis=axis, input_zero_point=zero,
            output_zero_point=out.zero_point, rounding=rounding, **limits(out, bounds),
        )  # fmt: skip

    def function(self, r: Result, root: Var) -> None:
        """qnn.lookup in the table of the function."""
        x, out = self.on_grid(root), self.own_params(r)
        entries = table(self.graph, r.binding.var, root, x.params, out)
        value = call("qnn.lookup", x.atom, Constant(entries, DType.parse(out.dtype)))
        self._keep(r, value, out)

    def add(self, r: Result) -> None:
        """qnn.add, with scales relative to the result's."""
        self._sum(r, 1.0)

    def subtract(self, r: Result) -> None:
        """qnn.add of the negative."""
        self._sum(r, -1.0)

    def _sum(self, r: Result, sign: float) -> None:
        a, b = (self.operand(x, summand_bits(self.rounding)) for x in r.call.args)
        out = self.own_params(r)
        check_fits(r.var.name, self._reach(r), out)
        scales = ratio(a.params, out, self.rounding), ratio(b.params, out, self.rounding)
        check_shift(r.var.name, self.rounding, np.asarray(scales))
        value = call(
            "qnn.add", a.atom, b.atom, a_scale=scales[0], b_scale=sign * scales[1],
            a_zero_point=a.params.zero_point, b_zero_point=b.params.zero_point,
            output_zero_point=out.zero_point, rounding=self.rounding,
            **limits(out, r.bounds),
        )  # fmt: skip
        self._keep(r, value, out)

    def multiply(self, r: Result) -> None:
        """qnn.multiply, whose int32 products are requantized."""
        a, b = (self.operand(x, FACTOR) for x in r.call.args)
        out = self.own_params(r)
        check_fits(r.var.name, self._reach(r), out)
        products = call(
            "qnn.multiply", a.atom, b.atom,
            a_zero_point=a.params.zero_point, b_zero_point=b.params.zero_point,
        )  # fmt: skip
        self._narrow(r, products, np.asarray(a.params.scale * b.params.scale), out, 0)

    def _reach(self, r: Result) -> float:
        return reach_of(r.call, [self.on_grid(a).params for a in activations(r.call)])

    def softmax(self, r: Result) -> None:
        """qnn.softmax."""
        x, out = self.on_grid(r.call.args[0]), self.own_params(r)
        value = call(
            "qnn.softmax", x.atom, Constant(exponentials(x.params.scale), INT32),
            axis=r.call.attrs.axis, inverse=float(np.float32(1 / out.scale)),
            output_zero_point=out.zero_point, **limits(out),
        )  # fmt: skip
        self._keep(r, value, out)

    def layer_norm(self, r: Result) -> None:
        """qnn.layer_norm."""
        x, out = self.on_grid(r.call.args[0]), self.own_params(r)
        check_fits(r.var.name, reach_of(r.call, [x.params]), out)
        c = layer_norm_constants(r.call, x.params, out)
        about_zero = {"centred": False, "input_zero_point": x.params.zero_point}
        origin: dict[str, Any] = {} if centred(r.call) else about_zero
        value = call(
            "qnn.layer_norm", x.atom, integers(c.gain), integers(c.offset),
            axis=r.call.attrs.axis, epsilon=c.epsilon, **origin,
            output_zero_point=out.zero_point, **limits(out),
        )  # fmt: skip
        self._keep(r, value, out)

    def average(self, r: Result) -> None:
        """qnn.mean, or qnn.avg_pool2d."""
        x, out = self.on_grid(r.call.args[0]), self.own_params(r)
        check_fits(r.var.name, x.params.reach, out)
        attrs: dict[str, Any] = {
            "ratio": ratio(x.params, out, self.rounding), "input_zero_point": x.params.zero_point,
            "output_zero_point": out.zero_point, "rounding": self.rounding,
            **limits(out, r.bounds),
        }  # fmt: skip
        op, rank = r.call.op, tensor_type(r.call.args[0]).rank
        assert isinstance(op, OpDef)
        assert op.average is not None
        how = op.average.integer_attrs(r.call.attrs, rank)
        self._keep(r, call(op.average.integer, x.atom, **how, **attrs), out)

    def concatenate(self, r: Result) -> None:
        """concatenate, of operands requantized to the result's parameters where they differ."""
        out = self.own_params(r)
        atoms: list[Atom] = []
        for a in r.call.args:
            x = self.on_grid(a)
            if x.params != out:
                check_fits(r.var.name, x.params.reach, out)
                unit = np.asarray(x.params.scale)
                value = self._requantized(r, x.atom, unit, x.params.zero_point, out, 0)
                atoms.append(self.b.bind(value, f"{r.var.name}_part", r.origins))
                self.integers_of[atoms[-1]] = out
            else:
                atoms.append(x.atom)
        self._keep(r, Call(r.call.op, tuple(atoms), r.call.attrs), out)

    def activation(self, r: Result) -> None:
        """clip between the integers of the bounds."""
        x = self.on_grid(r.call.args[0])
        limits = [float(x.params.clipped(v)) for v in activation_bounds(r.call)]
        value = call("clip", x.atom, a_min=limits[0], a_max=limits[1])
        self._keep(r, value, x.params)
