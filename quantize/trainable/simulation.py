"""A plan as a program to train: forward it computes the integers of the integer graph, backward the
float32 simulation of it.

Every value of the simulation that integers narrow or add up stands for what they give
(`qnn.straight_through`): weights and biases on their grids, the sums of convolutions, dense layers
and products, and the results on theirs. What flows back goes through the simulation, evaluated at
the numbers that the integers stand for. So the integers of training are those of the integer graph,
whatever float32 would round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.errors import UnsupportedError
from compiler.ir.expr import (
    Atom,
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    names_in,
    operands,
)
from compiler.ir.substitution import substitute, with_operands
from compiler.passes.live import live
from compiler.passes.rewrite import call
from compiler.types.tensor_types import TensorType
from quantize.annotation.annotate import prepared
from quantize.plan.fingerprint import fingerprint_of
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import Plan
from quantize.realization.integer_forms import OnGrid, Result
from quantize.realization.simulate import Simulator
from quantize.trainable.integers import Integers
from quantize.trainable.steps import Step, Steps, owned


@dataclass(frozen=True, eq=False)
class Trainable:
    """A quantized network as a function of its weights.

    Attributes:
        function: its parameters are those of the network, then the variables that are used, in the
            order given, then those of `steps`.
        variables: ids of the constants whose variables are used.
        steps: those that are learned.
        codes: name of a value on a grid -> the variable that holds its integers.
    """

    function: Function
    variables: tuple[int, ...]
    steps: tuple[Step, ...]
    codes: Mapping[str, Var]


def trainable(
    mod: IRModule, plan: Plan, variables: Mapping[int, Var], learned: bool = True,
    values: Iterable[str] = (), nodes: Iterable[str] = (),
) -> Trainable:  # fmt: skip
    """`mod` quantized by `plan`, in variables.

    Args:
        mod: the prepared float32 module.
        plan: made for it. Integers that it chose otherwise than to the nearest, and shifts of
            biases, are to be in the module's constants (see `settled`).
        variables: id of a constant of the module -> the variable that takes its place.
        learned: steps are variables too, where the integer graph takes them as data: of weights,
            and of values that are quantized, accumulated or added up. Others stay the plan's: what
            tables, softmax, layer norms and averages read or give, and sums clipped at other
            bounds than 0.
        values: names of values on grids whose steps stay the plan's, whatever is learned.
        nodes: names of nodes whose weights' steps do.

    Raises:
        ConfigError: the plan was made for another model.
        UnsupportedError: nodes whose decisions are not trained; names them.
    """
    _check(plan, learned)
    plan, names = owned(plan), names_in(mod.main) | {v.name for v in variables.values()}
    pinned, frozen = {*values}, {*nodes}
    while True:  # what is pinned shows when the graph is made
        steps = Steps(plan, learned, names, pinned, frozen)
        whole = Integers(mod, plan, variables, steps)
        whole.run()
        if steps.pinned == pinned:
            break
        pinned = steps.pinned
    joined = _Joined(mod, plan, whole)
    f = joined.run().main
    kept = {k: v for k, v in variables.items() if k not in whole.fixed}
    bindings = tuple(_over(b, kept) for b in f.bindings)
    used = {a for b in bindings for a in operands(b.value)}
    chosen = {k: v for k, v in kept.items() if v in used}
    found = tuple(s for s in steps.made.values() if s.var in used)
    params = (*mod.main.params, *chosen.values(), *(s.var for s in found))
    whole_f = live(replace(f, params=params, bindings=bindings))
    there = {b.var for b in whole_f.bindings}
    codes = {v.name: joined.given(x.atom) for v, x in whole.grid.items()}
    held = {
        k: c
        for k, c in codes.items()
        if isinstance(c, Var) and c in there and isinstance(c.type, TensorType)
    }
    return Trainable(whole_f, tuple(chosen), found, held)


def _over(b: Binding, variables: Mapping[int, Var]) -> Binding:
    new = [variables.get(id(a), a) if isinstance(a, Constant) else a for a in operands(b.value)]
    return replace(b, value=with_operands(b.value, new))


def _check(plan: Plan, learned: bool) -> None:
    """Refuse what is not trained yet, in a sentence."""
    for name, node in plan.nodes.items():
        if node.decision in ("format", "weights"):
            what = "numbers of a format" if node.decision == "format" else "integer weights alone"
            raise UnsupportedError(
                f"node {name!r} ({node.op}) has {what}, which are not trained: nearest are "
                "weights and activations that are both integers of 2 to 8 bits (scheme "
                '"int8_channel" with weight_bits and activation_bits)'
            )
    if learned and plan.config.requantize == "shift":
        raise UnsupportedError(
            'requantize="shift" takes steps that are powers of two, which learned ones are not: '
            'keep them with steps="fixed"'
        )
    if plan.factors or not plan.rotation.empty:
        raise UnsupportedError(
            "the plan rescales or rotates channels, which is not trained: calibrate with "
            "smoothing=0 and without equalize, activation_aware and rotate"
        )


def settled(mod: IRModule, plan: Plan) -> tuple[IRModule, Plan]:
    """The prepared module whose weights are the numbers that the plan's integers stand for, where
    these are not the nearest, and whose biases have the plan's shifts; and the plan for it."""
    mod = prepared(mod)
    new: dict[int, Constant] = {}
    for b in mod.main.bindings:
        params = plan.weights.get(b.var.name)
        if params is None or not isinstance(b.value, Call):
            continue
        weight, *bias = (a for a in b.value.args[1:] if isinstance(a, Constant))
        if params.rounding:
            new[id(weight)] = Constant(params.real(weight.data).astype(np.float32), weight.dtype)
        if params.shift and bias:
            shifted = params.shifted(bias[0].data)
            assert shifted is not None
            new[id(bias[0])] = Constant(shifted, bias[0].dtype)
        elif params.shift:
            raise UnsupportedError(
                f"node {b.var.name!r} ({b.value.op}) has no bias that its shift could be added to: "
                'calibrate with bias_correction="none"'
            )
    bindings = tuple(
        replace(b, value=with_operands(b.value, [new.get(id(a), a) for a in operands(b.value)]))
        for b in mod.main.bindings
    )
    changed = prepared(mod.with_function("main", replace(mod.main, bindings=bindings)))
    weights = {k: replace(w, rounding="", shift=()) for k, w in plan.weights.items()}
    return changed, replace(plan, weights=weights, model=fingerprint_of(changed))


def learned_plan(
    plan: Plan, mod: IRModule, steps: Sequence[Step], values: Mapping[str, np.ndarray]
) -> Plan:
    """The plan for a prepared module after training.

    Args:
        plan: that it was trained with. mod: with the new weights.
        steps: those of its `Trainable`. values: name of a step's variable -> what it is now.
    """
    new_values, weights = dict(plan.values), dict(plan.weights)
    for s in steps:
        scales = tuple(map(float, np.atleast_1d(np.asarray(values[s.var.name], np.float32))))
        if s.weights:
            weights[s.of] = replace(weights[s.of], scales=scales)
        else:
            new_values[s.of] = replace(new_values[s.of], scale=scales[0])
    return replace(plan, values=new_values, weights=weights, model=fingerprint_of(mod))


class _Joined(Simulator):
    """`simulate`, whose values stand for what an integer graph gives, which comes before."""

    def __init__(self, mod: IRModule, plan: Plan, whole: Integers):
        super().__init__(mod, plan)
        self.whole, self.code = whole, dict[Var, Var]()
        for name in names_in(self.graph.f):
            self.b.fresh(name)
        for made in whole.b.bindings:
            value = substitute(made.value, self.code)
            self.code[made.var] = self.b.bind(value, f"{made.var.name}.integer", made.origins)

    def standing(self, value: Call, other: Call, name: str, origins: Sequence[str]) -> Call:
        """What integers give, for what is simulated."""
        given = self.b.bind(value, f"{name}.given", origins)
        return call("qnn.straight_through", given, self.b.bind(other, f"{name}.simulated", origins))

    def given(self, a: Atom) -> Atom:
        """An atom of the integer graph, here."""
        return self.code.get(a, a) if isinstance(a, Var) else a

    def on_code(self, var: Var, params: ValueParams) -> Call:
        """The number that a value's integer stands for."""
        code = self.given(self.whole.grid[var].atom)
        scale = self.given(self.whole.step(params, self.whole.grid[var].atom))
        return call("qnn.dequantize", code, scale, zero_point=params.zero_point)

    # ---- values on grids -------------------------------------------------------------------------
    def on_grid(self, a: Atom) -> OnGrid:
        """See PlanRewriter."""
        assert isinstance(a, Var)
        if a not in self.grid:
            found = super().on_grid(a)
            given = self.b.bind(self.on_code(a, found.params), f"{a.name}.given")
            stands = call("qnn.straight_through", given, found.atom)
            self.grid[a] = OnGrid(self.b.bind(stands, f"{a.name}_on_grid"), found.params)
        return self.grid[a]

    def _rounded(self, a: Atom, params: ValueParams, halves: str = "even") -> Call:
        made = super()._rounded(a, params, halves)
        return replace(made, args=(a, self.given(self.whole.step(params, a))))

    def bind_rounded(self, r: Result, rounded: Call) -> Var:
        """See Simulator."""
        params = rounded.args[1]
        code = self.given(self.whole.grid[r.var].atom)
        zero = rounded.attrs.zero_point
        value = call("qnn.dequantize", code, params, zero_point=zero)
        stands = self.standing(value, rounded, r.var.name, r.origins)
        return self.named(r.var, stands, r.origins)

    # ---- sums ------------------------------------------------------------------------------------
    def weighted(self, r: Result, weights: WeightParams) -> None:
        """See PlanRewriter."""
        self._sums(r, self._in_floats(r, weights, self.on_grid(r.call.args[0])))

    def product(self, r: Result) -> None:
        """See PlanRewriter."""
        a, b = (self.on_grid(x).atom for x in r.call.args)
        self._sums(r, Call(r.call.op, (a, b), r.call.attrs))

    def _sums(self, r: Result, value: Call) -> None:
        name = r.binding.var.name
        acc, unit, axis = self.whole.sums[name]
        real = call("qnn.dequantize", self.given(acc), self.given(unit), axis=axis)
        self._wide_or_narrow(r, self.standing(real, value, f"{name}_sum", r.binding.origins))

    def _in_floats(self, r: Result, weights: WeightParams, x: OnGrid) -> Call:
        name, (constant, *bias) = (
            r.binding.var.name,
            [a for a in r.call.args[1:] if isinstance(a, Constant)],
        )
        codes, bias_codes = self.whole.codes[name]
        step = self.given(self.whole.steps.of_weights(name, weights, constant.data.size))
        low, high = (int(v) for v in weights.ends(()))
        weight = self.standing(
            call("qnn.dequantize", self.given(codes), step, axis=0),
            call(
                "qnn.simulated_quantize", self.whole.number(constant), step, axis=0,
                out_dtype=weights.dtype, qmin=low, qmax=high,
            ),
            f"{name}_weight", r.binding.origins,
        )  # fmt: skip
        args: list[Atom] = [x.atom, self.b.bind(weight, f"{name}_weight")]
        if bias and bias_codes is not None:
            unit = self.given(self.whole.sums[name][1])
            given = call("qnn.dequantize", self.given(bias_codes), unit, axis=0)
            stands = call(
                "qnn.straight_through", self.b.bind(given, f"{name}_bias.given"),
                self.whole.number(bias[0]),
            )  # fmt: skip
            args.append(self.b.bind(stands, f"{name}_bias"))
        return Call(r.call.op, tuple(args), r.call.attrs)
