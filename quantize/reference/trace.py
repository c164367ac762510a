"""trace_plan: every node of a quantized network, computed from the plan alone.

This is what a plan means, written a second time: it walks the prepared float module and the plan's
data, and shares no code with `realize` (but for the rule which products in number formats are of
integers: see `quantize.reference.formats`). Values on a grid are float64 arrays that hold exact
integers. The integer graph, interpreted or compiled, must give the same integers at every node.
Operators have their rules in `quantize.reference.rules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.boundary.inputs import bind_inputs
from compiler.errors import ConfigError, UnsupportedError
from compiler.interpret.graph import call_reference
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    tensor_type,
    uses,
)
from compiler.op.opdef import OpDef
from compiler.passes.manager import PassContext
from compiler.types.dtypes import Array
from quantize.plan.adapted import adapted
from quantize.plan.call_facts import form_of
from quantize.plan.params import ValueParams
from quantize.plan.plan import Plan
from quantize.reference import integers
from quantize.reference.formats import computed
from quantize.reference.rules import RULES, Grid, Node, Pending, bounds_of


@dataclass(frozen=True, eq=False)
class Traced:
    """The value of one node.

    Attributes:
        kind: `integer` (on the grid `params`), `accumulator` (int32 that nothing narrows) or
            `float`.
        values: float64 that holds integers; of a float node, and of one in number formats, the
            float32 numbers that it computed.
        params: the grid, of an `integer`.
    """

    kind: str
    values: Any
    params: ValueParams | None = None


def trace_plan(
    mod: IRModule, plan: Plan, *args: Any, given: Mapping[str, Array] | None = None
) -> dict[str, Traced]:
    """Name of a value of the prepared module -> what it is when the plan runs, in program order.

    An activation that is folded into its producer appears by its own name, the producer then does
    not.

    Args:
        mod: the float32 module, prepared or not.
        plan: made for this model.
        args: inputs in order, or one mapping from names to inputs.
        given: float values by name, taken where float nodes would be computed: those of another
            execution, so that both go on from identical inputs.

    Raises:
        ConfigError: the plan lacks a node, or parameters that its decisions need.
        UnsupportedError: control flow, an integer operator that has no rule here, or sums that are
            formed in a format (`compute="native"`).
        InputError: inputs that do not fit the module.
    """
    from compiler.transform.preparation import prepare

    with PassContext():
        module = adapted(prepare(mod), plan)
    return Walk(module, plan, given or {}).run(args)


class Walk:
    """Values in the forms in which they exist."""

    def __init__(self, mod: IRModule, plan: Plan, given: Mapping[str, Array]):
        self.f, self.plan, self.given = mod.main, plan, given
        self.readers = uses(mod.main)
        self.floats: dict[Var, Any] = {}
        self.grids: dict[Var, Grid] = {}
        self.pending: dict[Var, tuple[Pending, tuple[float, float]]] = {}
        self.dims: dict[Any, int] = {}
        self.traced: dict[str, Traced] = {}

    def run(self, args: tuple[Any, ...]) -> dict[str, Traced]:
        """What every node gives."""
        f = self.f
        arrays, self.dims = bind_inputs([(p.name, tensor_type(p)) for p in f.params], args, {})
        self.floats.update(zip(f.params, arrays, strict=True))
        for b in f.bindings:
            self._bind(b)
        return self.traced

    # ---- one binding -----------------------------------------------------------------------------
    def _bind(self, b: Binding) -> None:
        v = b.value
        if isinstance(v, TupleGetItem) and v.value in self.grids:
            assert isinstance(v.value, Var)
            whole = self.grids[v.value]
            self._keep(b.var, Grid(whole.q[v.index], whole.params))
        elif isinstance(v, Call) and isinstance(v.op, OpDef):
            self._call(b, v, v.op)
        elif isinstance(v, TupleGetItem):
            self._float(b, self.real(v.value)[v.index])
        elif isinstance(v, Tuple):
            self.floats[b.var] = tuple(self.real(a) for a in v.fields)
        else:
            raise UnsupportedError(f"%{b.var.name}: control flow has no quantized meaning here")

    def _call(self, b: Binding, call: Call, op: OpDef) -> None:
        node = self.plan.nodes.get(b.var.name)
        decision = node.decision if node else "float"
        source = call.args[0] if call.args else None
        if decision == "folded" and isinstance(source, Var) and source in self.pending:
            before, bounds = self.pending.pop(source)
            self._arrived(b.var, before, _within(bounds, bounds_of(call)))
        elif decision == "format":
            args = [self.real(a) for a in call.args]
            self._float(b, computed(b.var.name, call, args, self.plan, b.var, self.dims))
        elif node is not None and node.function_of:
            self._keep(b.var, self._table(b.var, node.function_of))
        elif decision == "integer":
            if form_of(op) not in RULES:
                raise UnsupportedError(
                    f"%{b.var.name}: {op.name} has no rule in quantize.reference.trace"
                )
            found = RULES[form_of(op)](Node(self, b, call))
            if isinstance(found, Grid):
                self._keep(b.var, found)
            else:
                self._arrived(b.var, found, (-math.inf, math.inf))
        else:
            args = [self.real(a) for a in call.args]
            if decision == "weights":
                args[1:] = self._integer_weights(b.var.name, args[1:])
            self._float(b, call_reference(call, args, b.var, self.dims))

    def _table(self, v: Var, root: str) -> Grid:
        """A function of the value called `root`: its operators, on the real values of integers."""
        made = {b.var: b for b in self.f.bindings}

        def value(a: Atom) -> Any:
            if isinstance(a, Constant):
                return a.data
            if a.name == root:
                g = self.grid(a)
                return integers.real(g.q, g.params.zero_point, g.params.scale)
            if a not in found:
                call = made[a].value
                assert isinstance(call, Call)
                found[a] = call_reference(call, [value(x) for x in call.args], a, self.dims)
            return found[a]

        found: dict[Var, Any] = {}
        params = self.plan.values[v.name]
        return Grid(integers.quantized(value(v), params), params)

    def _integer_weights(self, name: str, given: list[Any]) -> list[Any]:
        """The weights of a layer, and its bias, as its integers say."""
        params, (weight, *bias) = self.plan.weights[name], given
        scales = params.spread(weight.shape).astype(np.float32)
        real = params.quantized(weight).astype(np.float32) * scales
        if params.offsets:
            real = real + params.each(params.offsets, weight.shape).astype(np.float32)
        shifted = params.shifted(bias[0] if bias else None)
        return [real] if shifted is None else [real, shifted]

    def _arrived(self, v: Var, result: Pending, bounds: tuple[float, float]) -> None:
        """A result at `v`: an activation that is its only reader may still be folded into it."""
        readers = self.readers.get(v, [])
        only = readers[0] if len(readers) == 1 else None
        reader = self.plan.nodes.get(only.var.name) if only is not None else None
        if reader is not None and reader.decision == "folded":
            self.pending[v] = result, bounds
            return
        out = self.plan.values.get(v.name)
        if out is None and result.sums is not None and bounds == (-math.inf, math.inf):
            assert result.unit is not None
            self.traced[v.name] = Traced("accumulator", result.sums)
            self.floats[v] = integers.real(result.sums, 0, result.unit)
            return
        if out is None:
            raise ConfigError(f"the plan has no parameters for {v.name!r}: calibrate again")
        low, high = (integers.clipped(bound, out) for bound in bounds)
        self._keep(v, Grid(np.clip(result.rounded(out) + out.zero_point, low, high), out))

    def _keep(self, v: Var, grid: Grid) -> None:
        self.grids[v] = grid
        self.traced[v.name] = Traced("integer", grid.q, grid.params)

    def _float(self, b: Binding, value: Any) -> None:
        self.traced[b.var.name] = Traced("float", value)
        self.floats[b.var] = self.given.get(b.var.name, value)

    # ---- forms -----------------------------------------------------------------------------------
    def grid(self, a: Atom) -> Grid:
        """The value of an operand on its grid."""
        assert isinstance(a, Var)
        if a not in self.grids:
            params = self.plan.values.get(a.name)
            if params is None:
                raise ConfigError(f"the plan has no parameters for {a.name!r}: calibrate again")
            self.grids[a] = Grid(integers.quantized(self.floats[a], params), params)
        return self.grids[a]

    def real(self, a: Atom) -> Any:
        """The value of an operand in float32 (in its own dtype, if it never was a float)."""
        if isinstance(a, Constant):
            return a.data
        if a not in self.floats:
            g = self.grids[a]
            parts = g.q if isinstance(g.q, tuple) else (g.q,)
            made = tuple(integers.real(q, g.params.zero_point, g.params.scale) for q in parts)
            self.floats[a] = made if isinstance(g.q, tuple) else made[0]
        return self.floats[a]


def _within(inner: tuple[float, float], outer: tuple[float, float]) -> tuple[float, float]:
    low, high = (min(max(v, outer[0]), outer[1]) for v in inner)
    return low, high
