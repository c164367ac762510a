"""Bias correction: what quantization adds to the mean of a layer's results is taken off its bias.

`empirical` runs the float and the simulated network side by side, layer after layer, so that each
layer's correction is found with those before it in place (Nagel et al., Data-Free Quantization
Through Weight Equalization and Bias Correction, 2019, section 4.2, with data). `analytic` is the
error of the weights times the mean of the layer's inputs in the float network (the same, eq. 17).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.ir.expr import Binding, Call, Constant, Function, IRModule, Var, operands
from compiler.passes.manager import PassContext
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType
from quantize.calibration.channel_means import (
    FloatMeans,
    channel_axis,
    channel_sums,
    corrected_layers,
    correction,
    mean_of,
)
from quantize.calibration.running import Batches, Inputs, all_results, comparable
from quantize.formats.chosen import weight_array
from quantize.plan.plan import Plan

if TYPE_CHECKING:
    from compiler.runtime.executable import Executable


def correct_biases(
    module: IRModule, plan: Plan, inputs: Batches, floats: FloatMeans, threads: int = 1
) -> Plan:
    """The plan with a shift of the biases for every node with weights in integers or formats.

    The plan itself if that does not bring the results closer to the float network's: where a
    range leaves out a few very large values, these carry the mean, and the many others would be
    shifted for their sake. Results whose sizes the data decide are compared where these are the
    same; the plan itself if that is nowhere.

    Args:
        module: the prepared module that the plan's names refer to.
        plan: made without correction.
        inputs: calibration batches, by name.
        floats: what the float network gives for them, as `channel_means.float_means` wants it.
        threads: threads that the networks run on; the plan does not depend on it.
    """
    layers = corrected_layers(module, plan.nodes)
    wanted = floats.means()
    if correction(plan.config) == "analytic":
        corrected = _shifted(plan, _analytic(plan, layers, wanted))
        after = all_results(_simulated(module, corrected), inputs, threads)
        before = all_results(_simulated(module, plan), inputs, threads)
    else:
        shifts, after, before = _empirical(module, plan, layers, wanted, inputs, threads)
        corrected = _shifted(plan, shifts)
    new, old, reference = comparable(after, before, floats.results())
    return corrected if _distance(new, reference) < _distance(old, reference) else plan


def _shifted(plan: Plan, shifts: Mapping[str, Array]) -> Plan:
    held = {name: tuple(float(s) for s in shifts[name].astype(np.float32)) for name in shifts}
    weights = {
        name: replace(w, shift=held[name]) if name in held else w
        for name, w in plan.weights.items()
    }
    return replace(
        plan, weights=weights, shifts={k: s for k, s in held.items() if k in plan.formats}
    )


def _simulated(module: IRModule, plan: Plan) -> IRModule:
    """What a plan gives with accumulators of 32 bits: those of fewer have errors of their own."""
    from quantize.realization.simulate import simulate

    return simulate(module, plan.sequential)


def _distance(a: Array, reference: Array) -> float:
    """Sum of squared differences, where the reference is finite: it may be the logarithm of 0."""
    finite = np.isfinite(reference)
    return float(np.square(np.subtract(a[finite], reference[finite], dtype=np.float64)).sum())


def _empirical(
    module: IRModule,
    plan: Plan,
    layers: Mapping[str, Binding],
    wanted: Mapping[str, Array],
    inputs: Batches,
    threads: int,
) -> tuple[dict[str, Array], list[Array], list[Array]]:
    """The shifts, the results with them in place, and the results without them."""
    f = _simulated(module, plan).main
    bound = {b.var.name: b.var for b in f.bindings}
    # Before a result is narrowed, and before the activations folded into it.
    cuts = {bound[f"{name}_real" if f"{name}_real" in bound else name]: name for name in layers}
    values = {p: [batch[p.name] for batch in inputs] for p in f.params}
    shifts: dict[str, Array] = {}
    parts = _parts(f, set(cuts))
    last = _last(f, parts)
    programs: list[Executable] = []
    for k, (part, program) in enumerate(zip(parts, _built(parts, threads), strict=True)):
        programs.append(program)
        _run(part, program, values)
        for cut in part.cuts:
            axis = channel_axis(layers[cuts[cut]])
            mean = mean_of([channel_sums(v, axis) for v in values[cut]])
            with np.errstate(over="ignore", invalid="ignore"):  # as networks add their biases
                shift = shifts[cuts[cut]] = _held(wanted[cuts[cut]] - mean)
                for v in values[cut]:
                    v += _along(shift, axis, v.ndim)
        for done in [v for v in values if last.get(v, -1) <= k]:
            del values[done]
    results = [values[r] for r in f.results if isinstance(r, Var)]
    after = [a for batch in zip(*results, strict=True) for a in batch]
    before = [a for batch in inputs for a in _chained(f, parts, programs, batch)]
    return shifts, after, before


def _analytic(
    plan: Plan, layers: Mapping[str, Binding], means: Mapping[str, Array]
) -> dict[str, Array]:
    shifts = {}
    for name, b in layers.items():
        assert isinstance(b.value, Call)
        weight = b.value.args[1]
        assert isinstance(weight, Constant)
        w = weight.data.astype(np.float64)
        error = _rounded(plan, name, weight.data) - w
        error = error.reshape(*w.shape[:2], -1).sum(axis=2)
        data = b.value.args[0]
        assert isinstance(data, Var)
        mean = means[data.name]
        groups = getattr(b.value.attrs, "groups", 1)
        per_group = mean.reshape(groups, -1).repeat(len(w) // groups, axis=0)
        with np.errstate(invalid="ignore"):
            shifts[name] = _held(-(error * per_group).sum(axis=1))
    return shifts


def _rounded(plan: Plan, name: str, weight: Array) -> Array:
    """The numbers that stand for a layer's weights."""
    if name not in plan.weights:
        return weight_array(weight, plan.formats[name][1])
    params = plan.weights[name]
    return params.real(weight)


@np.errstate(over="ignore")
def _held(shift: Array) -> Array:
    """The shift of each channel; 0 where its mean is not finite, or float32, which biases are in,
    does not hold it."""
    return np.where(np.isfinite(shift.astype(np.float32)), shift, 0.0)


# ---- running -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Part:
    """Some consecutive bindings as a function of what they read; `cuts` are among its results."""

    function: Function
    cuts: tuple[Var, ...]


def _parts(f: Function, cuts: set[Var]) -> list[_Part]:
    """`f` in parts that end with a variable of `cuts`, none of which splits a tuple's life, and
    with what follows the last of them."""
    last: dict[Var, int] = {}
    for k, b in enumerate(f.bindings):
        last.update((a, k) for a in operands(b.value) if isinstance(a, Var))
    last.update((r, len(f.bindings)) for r in f.results if isinstance(r, Var))
    out: list[_Part] = []
    start = 0
    for k, b in enumerate(f.bindings):
        made = [x.var for x in f.bindings[start : k + 1]]
        alive = [v for v in made if last.get(v, -1) > k]
        end = k + 1 == len(f.bindings)
        if end or (b.var in cuts and all(isinstance(v.type, TensorType) for v in alive)):
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
    end = tuple(v for v in found if v is bindings[-1].var)
    results = tuple(dict.fromkeys([*alive, *end]))
    # The network's own inputs tell what symbolic dimensions are.
    params = tuple(dict.fromkeys([*read, *inputs]))
    return _Part(Function(params, tuple(bindings), results), end)


def _built(parts: Sequence[_Part], threads: int) -> Iterator[Executable]:
    """What the parts are compiled to, one after the other: those that follow while one runs, and
    the code of one while LLVM compiles another's."""
    import compiler

    context = PassContext.current()

    def build(part: _Part) -> Executable:
        with context:
            program: Executable = compiler.build(IRModule({"main": part.function}), threads=threads)
        return program

    # Instruments see one pass after the other.
    builders = ThreadPoolExecutor(1 if context.instruments else 2, "parts")
    try:
        for program in [builders.submit(copy_context().run, build, p) for p in parts]:
            yield program.result()
    finally:
        builders.shutdown(cancel_futures=True)


def _run(part: _Part, program: Executable, values: dict[Var, list[Array]]) -> None:
    """Run a part on every batch, and add its results to `values`."""
    given = zip(*(values[p] for p in part.function.params), strict=True)
    out = [program(*batch) for batch in given]
    results = [o if isinstance(o, list) else [o] for o in out]
    for v, batches in zip(part.function.results, zip(*results, strict=True), strict=True):
        assert isinstance(v, Var)
        values[v] = list(batches)


def _last(f: Function, parts: Sequence[_Part]) -> dict[Var, int]:
    """The number of the part after which a value is done with."""
    last = {v: k for k, part in enumerate(parts) for v in part.function.params}
    last.update((r, len(parts)) for r in f.results if isinstance(r, Var))
    return last


def _chained(
    f: Function,
    parts: Sequence[_Part],
    programs: Sequence[Executable],
    batch: Inputs,
) -> list[Array]:
    """The results of `f` for a batch, of its compiled parts one after the other: compiling the
    whole takes longer than running it."""
    last = _last(f, parts)
    values = {p: batch[p.name] for p in f.params}
    for k, (part, program) in enumerate(zip(parts, programs, strict=True)):
        out = program(*(values[p] for p in part.function.params))
        results = out if isinstance(out, list) else [out]
        for v, value in zip(part.function.results, results, strict=True):
            assert isinstance(v, Var)
            values[v] = value
        for done in [v for v in values if last.get(v, -1) <= k]:
            del values[done]
    return [values[r] for r in f.results if isinstance(r, Var)]


def _along(values: Array, axis: int, rank: int) -> Any:
    shape = [1] * rank
    shape[axis] = -1
    return values.astype(np.float32).reshape(shape)
