"""Applying a plan to a module: the walk that `realize` and `simulate` share.

A value of the original module can exist in two forms: real (float32) and on the grid that its
parameters give. Each binding is rewritten in the form that the plan decides; conversions are
inserted where a form is missing, once per value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    tensor_type,
)
from compiler.ir.inference import infer_value
from compiler.ir.substitution import with_operands
from compiler.passes.live import live
from compiler.passes.rewrite import call
from compiler.types.dtypes import FLOAT32, INT16
from quantize.annotation.annotate import prepared
from quantize.annotation.constants import constant_grid
from quantize.annotation.graph import Graph
from quantize.annotation.op_facts import (
    chain_end,
    clips_itself,
    is_weighted,
    product_terms,
)
from quantize.plan.adapted import adapted
from quantize.plan.call_facts import Form, form
from quantize.plan.node_plan import SEQUENTIAL, NodePlan
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan
from quantize.realization.formats import FormatNodes
from quantize.realization.integer_forms import (
    Forms,
    OnGrid,
    Result,
    activation_bounds,
    clipped_bounds,
    integers,
    weights_of,
)
from quantize.realization.open_sums import bounded
from quantize.realization.plan_checks import check_model, check_sums
from quantize.realization.weight_only import with_integer_weights


def _no_accumulator(node: str, mode: str) -> str:
    """What is wrong with an accumulator of few bits for products of 16 bits."""
    return (
        f"node {node!r} has more than 8 bits, for which there is no accumulator {mode!r}: leave "
        "out its accumulate"
    )


class PlanRewriter(Forms):
    """Rewrites the prepared `mod` by `plan`; subclasses give the form of values on the grid.

    Attributes:
        keeps_integers: products of integers that are factors alone are computed on integers, not on
            the float32 numbers that these stand for.
        keeps_codes: large weights in formats of few bits are made from their codes in front of the
            layer (see `quantize.realization.kept_codes`).
    """

    keeps_integers = True
    keeps_codes = False

    def __init__(self, mod: IRModule, plan: Plan, boundary: bool = True):
        original = prepared(mod)
        self.module = adapted(original, plan)
        self.plan = plan
        self.boundary = boundary
        self.graph = Graph(self.module.main)
        self.b = FunctionBuilder()
        self.real_form: dict[Var, Atom] = {}
        self.grid: dict[Var, OnGrid] = {}
        self.absorbed: set[Var] = set()
        #: What atoms beside those of `grid` hold integers of.
        self.integers_of: dict[Atom, ValueParams | WeightParams] = {}
        #: Name of a value of the rewritten module -> the node of the plan that it is part of.
        self.part_of: dict[str, str] = {}
        self.in_formats = FormatNodes(self, plan)
        self.forms: dict[Form, Callable[[Result], None]] = {
            Form.ADD: self.add,
            Form.SUBTRACT: self.subtract,
            Form.MULTIPLY: self.multiply,
            Form.MATMUL: self.product,
            Form.AVERAGE: self.average,
            Form.SOFTMAX: self.softmax,
            Form.LAYER_NORM: self.layer_norm,
            Form.JOIN: self.concatenate,
            Form.PAD: self.pad,
            Form.CLIP: self.activation,
            Form.MOVE: self.move,
        }
        check_model(original, self.graph, plan)

    # ---- the walk --------------------------------------------------------------------------------
    def run(self) -> IRModule:
        """The rewritten module."""
        f = self.graph.f
        for b in f.bindings:
            self.b.fresh(b.var.name)  # original names stay with their values
        for p in f.params:
            self.parameter(p)
        for b in f.bindings:
            before = len(self.b.bindings)
            self.rewrite(b)
            self.part_of |= {made.var.name: b.var.name for made in self.b.bindings[before:]}
        results = [self.result(r) for r in f.results]
        main = Function(tuple(self.b.params), tuple(self.b.bindings), tuple(results), f.attrs)
        return replace(
            self.module.with_function("main", live(main)),
            attrs={**self.module.attrs, **self.attrs()},
        )

    def attrs(self) -> dict[str, Any]:
        """Facts to record on the module."""
        return {}

    def parameter(self, p: Var) -> None:
        """Take over a parameter."""
        self.real_form[p] = self.b.add_param(p)

    def result(self, r: Atom) -> Atom:
        """The form in which a result is returned."""
        return self.real(r)

    def rewrite(self, b: Binding) -> None:
        """Rewrite one binding as the plan decides."""
        if isinstance(b.value, Tuple):
            self.real_form[b.var] = self.emit_real(b)
        elif isinstance(b.value, TupleGetItem) and b.value.value in self.grid:
            self._field(b, b.value)
        elif not isinstance(b.value, Call):
            self.real_form[b.var] = self.emit_real(b)
        else:
            node = self.plan.nodes.get(b.var.name)
            decision = node.decision if node else "float"
            if decision == "integer":
                self._integer(b, b.value, self.plan.nodes[b.var.name])
            elif decision == "format":
                self.real_form[b.var] = self.in_formats.node(b, b.value)
            elif decision == "weights":
                params = self.plan.weights[b.var.name]
                data = replace(b.value, args=(self.real(b.value.args[0]), *b.value.args[1:]))
                value, held = with_integer_weights(self.b, b, data, params)
                self.integers_of |= dict.fromkeys(held, params)
                self.real_form[b.var] = self.named(b.var, value, b.origins)
            elif b.var not in self.absorbed:
                # Also a folded activation whose producer stays float, or reads on; and the parts of
                # a table: nobody may read them.
                self.real_form[b.var] = self.emit_real(b)

    def _field(self, b: Binding, value: TupleGetItem) -> None:
        assert isinstance(value.value, Var)
        whole = self.grid[value.value]
        atom = self.b.bind(TupleGetItem(whole.atom, value.index), f"{b.var.name}_q", b.origins)
        self.grid[b.var] = OnGrid(atom, whole.params)

    def _integer(self, b: Binding, call: Call, node: NodePlan) -> None:
        end = chain_end(self.graph, self.plan.nodes, b) if clips_itself(b, node) else b
        chain = self._chain(b, end)
        bounds = -np.inf, np.inf
        for x in chain[1:]:
            self.absorbed.add(x.var)
            assert isinstance(x.value, Call)
            bounds = clipped_bounds(bounds, activation_bounds(x.value))
        origins = tuple(dict.fromkeys(o for x in chain for o in x.origins))
        result = Result(b, call, end.var, origins, bounds)
        if node.function_of:
            self.function(result, self.graph.named[node.function_of])
        elif is_weighted(call):
            self.weighted(result, self.plan.weights[b.var.name])
        else:
            self.forms[form(call)](result)

    def _chain(self, b: Binding, end: Binding) -> list[Binding]:
        """`b` and the activations folded into it."""
        out = [end]
        while out[-1] is not b:
            assert isinstance(out[-1].value, Call)
            (x,) = out[-1].value.args
            assert isinstance(x, Var)
            out.append(self.graph.at[x])
        return out[::-1]

    # ---- forms of values -------------------------------------------------------------------------
    def on_grid(self, a: Atom) -> OnGrid:
        """The value of `a` on its grid, quantized here if it exists as real numbers only.

        Raises:
            ConfigError: the plan has no parameters for it.
        """
        assert isinstance(a, Var)
        if a not in self.grid:
            params = self.plan.values.get(a.name)
            if params is None:
                raise ConfigError(
                    f"the plan has no parameters for the value {a.name!r}, which integer nodes "
                    "read: calibrate again, or let those nodes stay float"
                )
            self.grid[a] = OnGrid(self.quantize(self.real(a), params, f"{a.name}_q"), params)
        return self.grid[a]

    def operand(self, a: Atom, bits: int) -> OnGrid:
        """An operand of a sum or product on its grid: of so many bits if it is constant."""
        if not isinstance(a, Constant):
            return self.on_grid(a)
        q, params = constant_grid(a.data, bits)
        return OnGrid(self.constant(q, params), params)

    def real(self, a: Atom) -> Atom:
        """The value of `a` as real numbers."""
        if isinstance(a, Constant):
            return a
        if a not in self.real_form:
            self.real_form[a] = self.dequantize(a, self.grid[a])
        return self.real_form[a]

    def emit_real(self, b: Binding) -> Var:
        """The original binding over real operands."""
        value = with_operands(b.value, [self.real(a) for a in operands(b.value)])
        return self.b.emit(Binding(b.var, value, b.origins))

    def named(self, var: Var, call: Call, origins: tuple[str, ...]) -> Var:
        """Bind a call to a variable with the name of `var`, which was reserved for its value."""
        return self.b.emit(Binding(Var(var.name, infer_value(call)), call, origins))

    def scalar(self, value: Any) -> Constant:
        """A float32 constant."""
        return Constant.of(value, FLOAT32)

    def own_params(self, r: Result) -> ValueParams:
        """The parameters that the plan gives a result.

        Raises:
            ConfigError: it gives none.
        """
        params = self.plan.values.get(r.var.name)
        if params is None:
            raise ConfigError(
                f"the plan has no parameters for {r.var.name!r}, the result of an integer "
                f"{r.call.op}: calibrate again, or let the node stay float"
            )
        return params

    # ---- integer nodes ---------------------------------------------------------------------------
    def accumulated(
        self, r: Result, weights: WeightParams, data: Atom, params: ValueParams
    ) -> Call:
        """conv2d or dense of the integers `data`, with sums as the plan accumulates them: int32, or
        int64 where products of 16 bits need it."""
        weight, bias = weights_of(r, weights)
        name = r.binding.var.name
        mode = self.plan.nodes[name].accumulate
        if mode != SEQUENTIAL and weights.is_wide(params):
            raise ConfigError(_no_accumulator(name, mode))
        q = weights.quantized(weight)
        units = None if bias is None else weights.bias(bias, params)
        out = weights.sums_dtype(q, units, params)
        if weights.is_wide(params):
            q = q.astype(np.int16)
        else:
            check_sums(name, q, units)
        kernel = integers(q)
        self.integers_of[kernel] = weights
        args: list[Atom] = [self.widened(data, params, weights.is_wide(params)), kernel]
        args += [] if units is None else [integers(units.astype(out))]
        attrs = replace(
            r.call.attrs,
            out_dtype=out,
            input_zero_point=params.zero_point,
            accumulate=mode,
        )
        return Call(r.call.op, tuple(args), attrs)

    def multiplied(self, r: Result, a: OnGrid, b: OnGrid) -> Call:
        """matmul of two integer activations, with sums as the plan accumulates them: int32, or
        int64 where products of 16 bits need it."""
        wide = max(a.params.bits, b.params.bits) > 8
        mode = self.plan.nodes[r.binding.var.name].accumulate
        if mode != SEQUENTIAL and wide:
            raise ConfigError(_no_accumulator(r.binding.var.name, mode))
        most = product_terms(r.call) * a.params.span * b.params.span
        attrs = replace(
            r.call.attrs,
            out_dtype="int64" if wide and most >= 2**31 else "int32",
            input_zero_point=a.params.zero_point,
            weight_zero_point=b.params.zero_point,
            accumulate=mode,
        )
        first, second = (self.widened(x.atom, x.params, wide) for x in (a, b))
        if not wide:
            first = bounded(
                lambda value, what: self.b.bind(value, f"{r.var.name}_{what}"),
                r.binding, -1, first, product_terms(r.call),
            )  # fmt: skip
            self.integers_of[first] = a.params
        return Call(r.call.op, (first, second), attrs)

    def widened(self, data: Atom, params: ValueParams, wide: bool) -> Atom:
        """Integers of `params`, as int16 if `wide`."""
        if not wide or tensor_type(data).dtype == INT16:
            return data
        assert isinstance(data, Var)
        made = self.b.bind(call("cast", data, dtype="int16"), f"{data.name}_wide")
        self.integers_of[made] = params
        return made

    def move(self, r: Result) -> None:
        """An operator that moves values: the same operator on the grid."""
        self._moved(r, r.call.attrs)

    def pad(self, r: Result) -> None:
        """nn.pad fills with the grid's nearest value."""
        params = self.on_grid(r.call.args[0]).params
        self._moved(
            r, replace(r.call.attrs, value=self.constant_on_grid(r.call.attrs.value, params))
        )

    def _moved(self, r: Result, attrs: Any) -> None:
        data, *rest = r.call.args
        x = self.on_grid(data)
        value = Call(r.call.op, (x.atom, *(self.real(a) for a in rest)), attrs)
        self.grid[r.var] = OnGrid(self.bind_grid(r, value), x.params)
