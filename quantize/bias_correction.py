"""Bias correction: what quantization adds to the mean of a layer's results is taken off its bias.

`empirical` runs the float and the simulated network side by side, layer after layer, so that each
layer's correction is found with those before it in place (Nagel et al., Data-Free Quantization
Through Weight Equalization and Bias Correction, 2019, section 4.2, with data). `analytic` is the
error of the weights times the mean of the layer's inputs in the float network (the same, eq. 17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.dtypes import Array
from compiler.ir.expr import (
    Binding,
    Call,
    Constant,
    Function,
    IRModule,
    Var,
    operands,
    tensor_type,
)
from compiler.ir.types import TensorType
from quantize.annotation import Graph, is_weighted
from quantize.plan import Plan

INPUTS = 64
"""Calibration inputs that the means are taken over."""


Batches = Sequence[Mapping[str, Array]]


def correct_biases(module: IRModule, plan: Plan, inputs: Batches) -> Plan:
    """The plan with a shift of the biases for every integer node that has weights.

    The plan itself if that does not bring the results closer to the float network's: where a
    range leaves out a few very large values, these carry the mean, and the many others would be
    shifted for their sake.

    Args:
        module: the prepared module that the plan's names refer to.
        plan: made without correction.
        inputs: calibration batches, by name.
    """
    layers = {
        b.var.name: b
        for b, call in Graph(module.main).calls()
        if is_weighted(call) and plan.nodes[b.var.name].decision == "integer"
    }
    if not layers:
        return plan
    if plan.config.bias_correction == "analytic":
        shifts = _analytic(module, plan, layers, inputs)
    else:
        shifts = _empirical(module, plan, layers, inputs)
    weights = {
        name: replace(w, shift=tuple(float(s) for s in shifts[name].astype(np.float32)))
        if name in shifts
        else w
        for name, w in plan.weights.items()
    }
    corrected = replace(plan, weights=weights)
    results = [_results(m, inputs) for m in (module, *_simulated(module, plan, corrected))]
    before, after = (np.square(r - results[0]).sum() for r in results[1:])
    return corrected if after < before else plan


def _simulated(module: IRModule, *plans: Plan) -> list[IRModule]:
    """What the plans give with accumulators of 32 bits: those of fewer have errors of their own."""
    from quantize.simulation import simulate

    return [simulate(module, plan.sequential) for plan in plans]


def _results(module: IRModule, inputs: Batches) -> Array:
    """All float results on all batches, as one vector of float64."""
    import compiler

    program = compiler.build(module)
    out = [program(**batch) for batch in inputs]
    flat = [np.ravel(a) for o in out for a in (o if isinstance(o, list) else [o])]
    return np.concatenate([a for a in flat if a.dtype.kind == "f"], dtype=np.float64)


def _empirical(
    module: IRModule, plan: Plan, layers: Mapping[str, Binding], inputs: Batches
) -> dict[str, Array]:
    wanted = _means(module, [b.var for b in layers.values()], layers, inputs)
    (simulated,) = _simulated(module, plan)
    bound = {b.var.name: b.var for b in simulated.main.bindings}
    # Before a result is narrowed, and before the activations folded into it.
    cuts = {bound[f"{name}_real" if f"{name}_real" in bound else name]: name for name in layers}
    values = {p: [batch[p.name] for batch in inputs] for p in simulated.main.params}
    shifts: dict[str, Array] = {}
    for part in _parts(simulated.main, set(cuts)):
        _run(part, values)
        for cut in part.cuts:
            axis = _channel_axis(layers[cuts[cut]])
            shift = wanted[cuts[cut]] - _mean(values[cut], axis)
            shifts[cuts[cut]] = shift
            values[cut] = [v + _along(shift, axis, v.ndim) for v in values[cut]]
    return shifts


def _analytic(
    module: IRModule, plan: Plan, layers: Mapping[str, Binding], inputs: Batches
) -> dict[str, Array]:
    read: dict[str, Var] = {}
    for name, b in layers.items():
        assert isinstance(b.value, Call)
        data = b.value.args[0]
        assert isinstance(data, Var)
        read[name] = data
    means = _means(module, list(dict.fromkeys(read.values())), layers, inputs, of_inputs=True)
    shifts = {}
    for name, b in layers.items():
        assert isinstance(b.value, Call)
        weight = b.value.args[1]
        assert isinstance(weight, Constant)
        w, params = weight.data.astype(np.float64), plan.weights[name]
        scales = np.asarray(params.scales, np.float64).reshape(-1, *[1] * (w.ndim - 1))
        error = params.quantized(weight.data) * scales - w
        error = error.reshape(*w.shape[:2], -1).sum(axis=2)
        mean = means[read[name].name]
        groups = getattr(b.value.attrs, "groups", 1)
        per_group = mean.reshape(groups, -1).repeat(len(w) // groups, axis=0)
        shifts[name] = -(error * per_group).sum(axis=1)
    return shifts


# ---- running -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Part:
    """Some consecutive bindings as a function of what they read; `cuts` are among its results."""

    function: Function
    cuts: tuple[Var, ...]


def _parts(f: Function, cuts: set[Var]) -> list[_Part]:
    """`f` in parts that end with a variable of `cuts`, none of which splits a tuple's life."""
    last: dict[Var, int] = {}
    for k, b in enumerate(f.bindings):
        last.update((a, k) for a in operands(b.value) if isinstance(a, Var))
    last.update((r, len(f.bindings)) for r in f.results if isinstance(r, Var))
    out: list[_Part] = []
    start = 0
    for k, b in enumerate(f.bindings):
        made = [x.var for x in f.bindings[start : k + 1]]
        alive = [v for v in made if last.get(v, -1) > k]
        if b.var in cuts and all(isinstance(v.type, TensorType) for v in alive):
            out.append(_part(f.params, f.bindings[start : k + 1], alive, cuts))
            start = k + 1
    return out


def _part(
    inputs: Sequence[Var], bindings: Sequence[Binding], alive: list[Var], cuts: set[Var]
) -> _Part:
    made = {b.var for b in bindings}
    read = [a for b in bindings for a in operands(b.value) if isinstance(a, Var) and a not in made]
    found = tuple(b.var for b in bindings if b.var in cuts)
    # Inside a part, a correction cannot be in place for what follows: only its end is corrected.
    end = found[-1:]
    results = tuple(dict.fromkeys([*alive, *end]))
    # The network's own inputs tell what symbolic dimensions are.
    params = tuple(dict.fromkeys([*read, *inputs]))
    return _Part(Function(params, tuple(bindings), results), end)


def _run(part: _Part, values: dict[Var, list[Array]]) -> None:
    """Run a part on every batch, and add its results to `values`."""
    import compiler

    program = compiler.build(IRModule({"main": part.function}))
    given = zip(*(values[p] for p in part.function.params), strict=True)
    out = [program(*batch) for batch in given]
    results = [o if isinstance(o, list) else [o] for o in out]
    for v, batches in zip(part.function.results, zip(*results, strict=True), strict=True):
        assert isinstance(v, Var)
        values[v] = list(batches)


def _means(
    module: IRModule,
    wanted: Sequence[Var],
    layers: Mapping[str, Binding],
    inputs: Batches,
    of_inputs: bool = False,
) -> dict[str, Array]:
    """Mean of every channel of the values `wanted` in the float network, in float64."""
    import compiler

    f = module.main
    axes = {name: _channel_axis(b) for name, b in layers.items()}
    if of_inputs:
        axes = {
            b.value.args[0].name: 1 if _channel_axis(b) == 1 else -1
            for b in layers.values()
            if isinstance(b.value, Call) and isinstance(b.value.args[0], Var)
        }
    program = compiler.build(module.with_function("main", f.with_body(f.bindings, list(wanted))))
    found: dict[str, list[Array]] = {v.name: [] for v in wanted}
    for batch in inputs:
        out = program(**batch)
        for v, values in zip(wanted, out if isinstance(out, list) else [out], strict=True):
            found[v.name].append(_sums(values, axes[v.name]))
    return {name: _mean_of(sums) for name, sums in found.items()}


def _channel_axis(b: Binding) -> int:
    is_conv = isinstance(b.value, Call) and str(b.value.op) == "nn.conv2d"
    return 1 if is_conv else tensor_type(b.var).rank - 1


def _sums(values: Array, axis: int) -> Array:
    """Sum of every channel, and how many values it has: [2, C] float64."""
    others = tuple(k for k in range(values.ndim) if k != axis % values.ndim)
    sums = values.sum(axis=others, dtype=np.float64)
    return np.stack([sums, np.full_like(sums, values.size / max(sums.size, 1))])


def _mean_of(sums: Sequence[Array]) -> Array:
    total, count = np.sum(sums, axis=0)
    mean: Array = total / count
    return mean


def _mean(batches: Sequence[Array], axis: int) -> Array:
    """Mean of every channel over all batches, in float64."""
    return _mean_of([_sums(v, axis) for v in batches])


def _along(values: Array, axis: int, rank: int) -> Any:
    shape = [1] * rank
    shape[axis] = -1
    return values.astype(np.float32).reshape(shape)
