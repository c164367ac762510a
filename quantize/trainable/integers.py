"""The integer graph of a plan over weights and steps that are variables: `realize`, but that the
integers of weights, biases and layer norms' gains are computed in the graph, as a plan computes
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir.expr import Atom, Call, Constant, IRModule, Var, tensor_type
from compiler.op.elementwise import MAXIMUM, MINIMUM
from compiler.op.qnn.layer_norm import GAIN_BITS, OFFSET_BITS
from compiler.passes.rewrite import call
from compiler.types.dtypes import FLOAT32, FLOAT64, DType
from quantize.annotation.constants import summand_bits
from quantize.annotation.normalization import layer_norm_constants
from quantize.annotation.requantization import limits
from quantize.plan.call_facts import centred
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan
from quantize.realization.integer_forms import (
    OnGrid,
    Result,
    activation_bounds,
    channel_axis,
    integers,
)
from quantize.realization.realize import Accumulator, Realizer
from quantize.trainable.steps import Steps, in_float64, product, quotient, shape_for_rows

_INT32 = -(2.0**31), 2.0**31 - 1


def _fixed(bounds: tuple[float, float]) -> tuple[float, float]:
    """The bounds whose integers are the same with any step."""
    low, high = bounds
    return low if low == 0 else -np.inf, high if high == 0 else np.inf


class Integers(Realizer):
    """See the module. `variables`: id of a constant -> the variable that takes its place.

    Attributes:
        sums: node -> its accumulators, what one unit of them is, and the axis of these units.
        codes: node -> the integers of its weights, and of its bias if it has one.
        fixed: ids of constants that are on grids of their own, and stay constants.
    """

    def __init__(self, mod: IRModule, plan: Plan, variables: Mapping[int, Var], steps: Steps):
        super().__init__(mod, plan, True)
        self.variables, self.steps = variables, steps
        self.sums: dict[str, tuple[Atom, Atom, int]] = {}
        self.codes: dict[str, tuple[Var, Var | None]] = {}
        self.fixed: set[int] = set()

    # ---- steps -----------------------------------------------------------------------------------
    def step(self, params: ValueParams, of: Atom) -> Atom:
        """The step of what is on a grid."""
        shape = tensor_type(of).shape[1:]
        return self.steps.of_value(params, prod(n for n in shape if isinstance(n, int)))

    def number(self, a: Atom) -> Atom:
        """A constant of the module, or the variable in its place."""
        return self.variables.get(id(a), a)

    def quantize(self, a: Atom, params: ValueParams, name: str) -> Var:
        """See PlanRewriter."""
        q = call(
            "qnn.quantize", a, self.step(params, a), zero_point=params.zero_point, **limits(params)
        )
        return self.b.bind(q, name)

    def dequantize(self, var: Var, x: OnGrid) -> Atom:
        """See PlanRewriter."""
        scale = self.step(x.params, x.atom)
        real = call("qnn.dequantize", x.atom, scale, zero_point=x.params.zero_point)
        made = self.graph.at.get(var)
        return self._real_var(var, real, made.origins if made else ())

    def operand(self, a: Atom, bits: int) -> OnGrid:
        """See PlanRewriter: constants of sums and products stay as they are."""
        if isinstance(a, Constant):
            self.fixed.add(id(a))
        return super().operand(a, bits)

    # ---- weighted nodes --------------------------------------------------------------------------
    def accumulated(
        self, r: Result, weights: WeightParams, data: Atom, params: ValueParams
    ) -> Call:
        """See PlanRewriter; the integers of weights and bias are those of `WeightParams`, in its
        float64."""
        name, b = r.binding.var.name, self.b
        if weights.is_wide(params) or weights.zero_points:
            raise UnsupportedError(
                f"node {name!r} ({r.call.op}) has "
                + ("more than 8 bits" if weights.is_wide(params) else "weights with zero points")
                + ": what is trained has symmetric weights and activations of 2 to 8 bits; set "
                'weight_bits and activation_bits, and weight_range="restricted"'
            )
        constant, *bias = (a for a in r.call.args[1:] if isinstance(a, Constant))
        rank, size = constant.data.ndim, constant.data.size
        step = in_float64(b, self.steps.of_weights(name, weights, size), f"{name}_step")
        low, high = (float(v) for v in weights.ends(()))
        rows = shape_for_rows(b, step, rank, f"{name}_step")
        q = self._counted(self.number(constant), rows, (low, high), weights.dtype, f"{name}_weight")
        args, added = [data, q], None
        if bias:
            data_step = in_float64(b, self.step(params, data), f"{name}_data_step")
            unit = product(b, data_step, step, f"{name}_unit", FLOAT64)
            added = self._counted(self.number(bias[0]), unit, _INT32, "int32", f"{name}_bias")
            args.append(added)
        self.codes[name] = q, added
        attrs = replace(
            r.call.attrs, out_dtype="int32", input_zero_point=params.zero_point,
            accumulate=self.plan.nodes[name].accumulate,
        )  # fmt: skip
        return Call(r.call.op, tuple(args), attrs)

    def _counted(
        self, x: Atom, unit: Atom, ends: tuple[float, float], dtype: str, name: str
    ) -> Var:
        """`x` in units of `unit`, to the nearest integer within `ends`."""
        b = self.b
        v = b.bind(call("divide", in_float64(b, x, name), unit), f"{name}_units")
        nearest = b.bind(call("round", v), f"{name}_nearest")
        within = b.bind(call("clip", nearest, a_min=ends[0], a_max=ends[1]), f"{name}_within")
        return b.bind(call("cast", within, dtype=dtype), f"{name}_codes")

    def weighted(self, r: Result, weights: WeightParams) -> None:
        """See Realizer."""
        x = self.on_grid(r.call.args[0])
        name, axis = r.binding.var.name, channel_axis(r)
        acc = self.b.bind(self.accumulated(r, weights, x.atom, x.params), f"{name}_acc")
        size = int(np.prod(tensor_type(r.call.args[1]).static_shape))
        own = self.steps.of_weights(name, weights, size)
        self._scaled(r, acc, self.step(x.params, x.atom), own, axis)

    def product(self, r: Result) -> None:
        """See Realizer."""
        a, b = (self.on_grid(x) for x in r.call.args)
        if max(a.params.bits, b.params.bits) > 8:
            raise UnsupportedError(
                f"node {r.binding.var.name!r} ({r.call.op}) has more than 8 bits: what is trained "
                "has 2 to 8; set activation_bits"
            )
        acc = self.b.bind(self.multiplied(r, a, b), f"{r.binding.var.name}_acc")
        self._scaled(r, acc, self.step(a.params, a.atom), self.step(b.params, b.atom), 0)

    def multiply(self, r: Result) -> None:
        """See Realizer: constants of the program."""
        self._pinned(r)
        super().multiply(r)

    def _scaled(self, r: Result, acc: Var, first: Atom, second: Atom, axis: int) -> None:
        """Accumulators of units first * second: narrowed, or kept wide."""
        b, name = self.b, r.binding.var.name
        unit = product(b, first, second, f"{name}_unit")
        self.sums[name] = acc, unit, axis
        if self._stays_wide(r):
            self.accumulators[r.var] = Accumulator(acc, unit, axis, r.origins)
            return
        out = self.own_params(r)
        step = self.step(out, r.var)
        held = FLOAT32 if self.rounding == "float32" else FLOAT64
        if held == FLOAT64:
            x, y = (in_float64(b, a, f"{name}_factor") for a in (first, second))
            unit = product(b, x, y, f"{name}_unit", FLOAT64)
            step = in_float64(b, step, f"{name}_result_step")
        value = call(
            "qnn.requantize", acc, quotient(b, unit, step, f"{name}_scale", held), axis=axis,
            output_zero_point=out.zero_point, rounding=self.rounding,
            **limits(out, _fixed(r.bounds) if isinstance(step, Var) else r.bounds),
        )  # fmt: skip
        self._keep(r, self._bounded(r, value, out) if isinstance(step, Var) else value, out)

    def _bounded(self, r: Result, value: Call, out: ValueParams) -> Call:
        """Integers within bounds that are not 0: those of a step that is a variable."""
        b, name = self.b, r.binding.var.name
        for bound, at, op in zip(r.bounds, ("low", "high"), (MAXIMUM, MINIMUM), strict=True):
            if not np.isfinite(bound) or bound == 0:
                continue
            step = in_float64(b, self.step(out, r.var), f"{name}_{at}_step")
            units = quotient(b, Constant.of(bound, FLOAT64), step, f"{name}_{at}_units", FLOAT64)
            nearest = b.bind(call("round", units), f"{name}_{at}_nearest")
            code = b.bind(call("add", nearest, Constant.of(float(out.zero_point), FLOAT64)),
                          f"{name}_{at}_place")  # fmt: skip
            ends = {"a_min": float(out.qmin), "a_max": float(out.qmax)}
            within = b.bind(call("clip", code, **ends), f"{name}_{at}_within")
            last = b.bind(call("cast", within, dtype=out.dtype), f"{name}_{at}")
            value = call(op, b.bind(value, f"{name}_beyond_{at}", r.origins), last)
        return value

    # ---- other nodes -----------------------------------------------------------------------------
    def _sum(self, r: Result, sign: float) -> None:
        """See Realizer. In float32 it is written out, so that steps may be variables: what qnn.add
        does, operation by operation."""
        out = self.own_params(r)
        unlike = any(np.isfinite(v) and v != 0 for v in r.bounds)
        if self.rounding != "float32" or unlike:
            self._pinned(r)
            super()._sum(r, sign)
            return
        name, terms = r.binding.var.name, []
        step = self.step(out, r.var)
        for a, factor in zip(r.call.args, (1.0, sign), strict=True):
            x = self.operand(a, summand_bits(self.rounding))
            share = quotient(self.b, self.step(x.params, x.atom), step, f"{name}_share")
            if factor < 0:
                share = product(self.b, share, Constant.of(-1.0, FLOAT32), f"{name}_share")
            term = call("qnn.dequantize", x.atom, share, zero_point=x.params.zero_point)
            terms.append(self.b.bind(term, f"{name}_term"))
        total = self.b.bind(call("add", *terms), f"{name}_total")
        one, ends = Constant.of(1.0, FLOAT32), limits(out, r.bounds)
        self._keep(r, call("qnn.quantize", total, one, zero_point=out.zero_point, **ends), out)

    def _pinned(self, r: Result) -> None:
        """The steps of a node's operands and result stay as they are."""
        data = [a for a in r.call.args if isinstance(a, Var)]
        self.steps.pin(self.own_params(r), *(self.on_grid(a).params for a in data))

    def function(self, r: Result, root: Var) -> None:
        """See Realizer."""
        self.steps.pin(self.own_params(r), self.on_grid(root).params)
        super().function(r, root)

    def softmax(self, r: Result) -> None:
        """See Realizer."""
        self._pinned(r)
        super().softmax(r)

    def average(self, r: Result) -> None:
        """See Realizer."""
        self._pinned(r)
        super().average(r)

    def concatenate(self, r: Result) -> None:
        """See Realizer."""
        self._pinned(r)
        super().concatenate(r)

    def pad(self, r: Result) -> None:
        """See Realizer."""
        if r.call.attrs.value:
            self.steps.pin(self.on_grid(r.call.args[0]).params)
        super().pad(r)

    def activation(self, r: Result) -> None:
        """See Realizer."""
        if any(np.isfinite(v) and v != 0 for v in activation_bounds(r.call)):
            self.steps.pin(self.on_grid(r.call.args[0]).params)
        super().activation(r)

    def layer_norm(self, r: Result) -> None:
        """See Realizer; gain and offset as `layer_norm_constants` count them."""
        self._pinned(r)
        name, x, out = r.binding.var.name, self.on_grid(r.call.args[0]), self.own_params(r)
        c = layer_norm_constants(r.call, x.params, out)
        given = [a for a in r.call.args[1:] if isinstance(a, Constant)]
        counted: list[Atom] = [
            self._norm_units(a, out.scale, bits, f"{name}_{what}")
            for a, bits, what in zip(
                given, (GAIN_BITS, OFFSET_BITS), ("gain", "offset"), strict=False
            )
        ]
        counted += [] if len(given) > 1 else [integers(c.offset)]
        origin: dict[str, Any] = {"centred": False, "input_zero_point": x.params.zero_point}
        value = call(
            "qnn.layer_norm", x.atom, *counted, axis=r.call.attrs.axis, epsilon=c.epsilon,
            **({} if centred(r.call) else origin),
            output_zero_point=out.zero_point, **limits(out),
        )  # fmt: skip
        self._keep(r, value, out)

    def _norm_units(self, a: Atom, scale: float, bits: int, name: str) -> Atom:
        b = self.b
        x = in_float64(b, self.number(a), name)
        steps = b.bind(call("divide", x, Constant.of(scale, FLOAT64)), f"{name}_steps")
        fine = call("multiply", steps, Constant.of(2.0**bits, FLOAT64))
        nearest = b.bind(call("round", b.bind(fine, f"{name}_fine")), f"{name}_nearest")
        return b.bind(call("cast", nearest, dtype=str(DType.parse("int64"))), f"{name}_units")
