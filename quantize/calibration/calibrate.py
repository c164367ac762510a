"""What calibration does: it runs a module over data and chooses the parameters of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

from compiler.boundary.elements import elements_of
from compiler.boundary.inputs import named_inputs
from compiler.boundary.packed import STRING
from compiler.errors import InputError
from compiler.ir.expr import Binding, Call, Constant, Function, IRModule, Var, operands, tensor_type
from compiler.transform.preparation import PREPARE_VERSION
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType
from quantize.annotation.annotate import Annotation, annotate, annotated
from quantize.annotation.graph import Graph
from quantize.annotation.normalization import least_data_scale
from quantize.annotation.op_facts import (
    chain_end,
    clips_itself,
    data_of,
    is_weighted,
    reach_of,
    source,
)
from quantize.annotation.sites import sites
from quantize.calibration.channel_means import INPUTS, FloatMeans, float_means
from quantize.calibration.formats import FormatWatch
from quantize.calibration.observers import MinMax, Observer, observer
from quantize.calibration.rescaling.choosing import chosen_factors, depends_on_data
from quantize.calibration.rounding.layers import round_weights, wanted_inputs
from quantize.calibration.running import Runner
from quantize.config.node_configs import same_values
from quantize.config.qconfig import QConfig
from quantize.plan.call_facts import Form, form
from quantize.plan.factors import rescaled
from quantize.plan.fingerprint import fingerprint_of
from quantize.plan.params import (
    ValueParams,
    WeightParams,
    value_params,
    weight_only_params,
    weight_params,
)
from quantize.plan.plan import Plan
from quantize.plan.rotation import Rotation, rotated, rotation_of, with_heads
from quantize.realization.certified import with_certified

Batch = Array | Mapping[str, Array] | Sequence[Array]


def calibrated(mod: IRModule, batches: Iterable[Batch], config: QConfig, threads: int) -> Plan:
    """The plan of a configuration that searches nothing; see `quantize.calibrate`."""
    annotation = annotate(mod, config)
    original, given = annotation.module, _as_batches(annotation.module, batches)
    rotation = rotation_of(original, config.seed) if config.rotate else Rotation()
    if config.rotate_heads:
        of = sites(Graph(original.main))
        scores = [name for name, roles in of.items() if "key" in roles]
        averages = [name for name, roles in of.items() if roles == ("probability", "value")]
        rotation = with_heads(original, rotation, scores, averages)
    if not rotation.empty:
        annotation = annotated(rotated(original, rotation), config)
    looks = depends_on_data(annotation, config)
    first, given = _first(annotation.module, given) if looks else ([], given)
    factors = chosen_factors(annotation, config, first, threads)
    if factors:
        annotation = annotated(rescaled(annotation.module, factors), config)
    plan = _measured(annotation, config, given, threads)
    if factors or not rotation.empty:
        made_for = fingerprint_of(original)
        plan = replace(plan, model=made_for, factors=factors, rotation=rotation)
    return with_certified(original, plan, annotation.certified)


def _measured(
    annotation: Annotation, config: QConfig, batches: Iterator[Batch], threads: int
) -> Plan:
    """The plan of a module as it is, without factors."""
    observers = {name: observer(annotation.configs[name]) for name in annotation.observed}
    watch = FormatWatch(annotation)
    floats = float_means(annotation.module, annotation.nodes, config)
    kept = _watch(annotation, watch.beside(observers), floats, batches, threads)
    values, weights = _parameters(annotation, observers)
    model = fingerprint_of(annotation.module)
    plan = Plan(PREPARE_VERSION, model, config, annotation.nodes, values, weights)
    plan = replace(plan, formats=watch.formats())
    if wanted_inputs(annotation):
        plan = round_weights(annotation, plan, kept, threads)
    if floats is None:
        return plan
    from quantize.calibration.bias_correction import correct_biases

    return correct_biases(annotation.module, plan, kept, floats, threads)


# ---- running -------------------------------------------------------------------------------------
def _as_batches(mod: IRModule, batches: Any) -> Iterator[Batch]:
    """The batches; what is no tensor of numbers in them is bytes from here on."""
    elements, names = elements_of(mod), [p.name for p in mod.main.params]
    if not elements.packs:
        return _each_batch(mod, batches)
    if isinstance(batches, np.ndarray) and elements.inputs == (STRING,):  # an axis less than inside
        batches = [batches] if batches.ndim < tensor_type(mod.main.params[0]).rank else batches
    return (elements.packed(_named(names, batch)) for batch in _each_batch(mod, batches))


def _each_batch(mod: IRModule, batches: Any) -> Iterator[Batch]:
    first = tensor_type(mod.main.params[0]) if mod.main.params else None
    if isinstance(batches, Mapping) or (
        isinstance(batches, np.ndarray) and first is not None and batches.ndim == first.rank
    ):
        return iter([batches])
    several = len(mod.main.params) > 1  # an array is no batch then, but one input's part of it
    arrays = isinstance(batches, tuple) and all(isinstance(a, np.ndarray) for a in batches)
    if several and arrays and batches:
        return iter([batches])
    try:
        return iter(batches)
    except TypeError:
        raise InputError(
            "calibration data must be arrays or name -> array dicts (or tuples of arrays), not "
            f"{type(batches).__name__}"
        ) from None


def _first(
    mod: IRModule, batches: Iterator[Batch]
) -> tuple[list[Mapping[str, Array]], Iterator[Batch]]:
    """The first batches by name, and all of them."""
    names = [p.name for p in mod.main.params]
    taken: list[Batch] = []
    found: list[Mapping[str, Array]] = []
    for batch in batches:
        taken.append(batch)
        found.append(_named(names, batch))
        if sum(map(_rows, found)) >= INPUTS:
            break
    return found, chain(taken, batches)


def named_batches(mod: IRModule, batches: Any) -> list[Mapping[str, Array]]:
    """All batches, by name."""
    names = [p.name for p in mod.main.params]
    return [
        {name: np.array(values) for name, values in _named(names, batch).items()}
        for batch in _as_batches(mod, batches)
    ]


def _named(names: list[str], batch: Any) -> dict[str, Any]:
    if isinstance(batch, tuple) or (isinstance(batch, list) and len(names) != 1):
        return named_inputs(names, batch, {})
    if not isinstance(batch, Mapping) and len(names) != 1:
        raise InputError(
            f"the model has inputs {', '.join(map(repr, names))}: give calibration data as "
            "name -> array dicts, or as tuples of arrays in this order"
        )
    return named_inputs(names, (batch,), {})


def _watch(
    annotation: Annotation,
    observers: Mapping[str, Observer],
    floats: FloatMeans | None,
    batches: Iterator[Batch],
    threads: int,
) -> list[Mapping[str, Array]]:
    """Show every observer the values of its tensor, batch by batch, and the first batches to
    `floats`; returns those. One program computes what both want: compiling takes longer than
    running it on some batches."""
    wanted = max(INPUTS, wanted_inputs(annotation))
    kept: list[Mapping[str, Array]] = []
    seen = 0
    names = [p.name for p in annotation.module.main.params]
    inner = [n for n in observers if n not in names]
    named = {b.var.name: b.var for b in annotation.module.main.bindings}
    also = floats.wanted if floats is not None else ()
    any_order = {named[n] for n in inner if observers[n].any_order} - set(also)
    shown = dict.fromkeys([*(named[n] for n in inner), *also])
    run = Runner(annotation.module, list(shown), threads, any_order)
    count = 0
    for count, batch in enumerate(batches, 1):
        inputs = _named(names, batch)
        ends = {k: _ends(annotation, k, v, inputs, count) for k, v in inputs.items()}
        found = dict(zip(run.wanted, run(inputs), strict=True))
        results = {n: found[named[n]] for n in inner}
        first = seen < wanted
        if first:
            kept.append({name: np.asarray(values) for name, values in inputs.items()})
            seen += _rows(kept[-1])
        for name, o in observers.items():
            if name not in ends:
                ends[name] = _ends(annotation, name, results[name], inputs, count)
            if type(o) is MinMax:
                o.extend(*ends[name])  # there is no more to see
            else:
                a = np.asarray(inputs[name] if name in inputs else results[name])
                o.update(a if a.size else np.zeros(1, a.dtype))
        if first and floats is not None:
            floats.update(found)
    if count == 0:
        raise InputError("there is no calibration data: give at least one batch")
    return kept


def _rows(batch: Mapping[str, Array]) -> int:
    """How many inputs a batch has; scalars go with all of them."""
    return max((len(a) for a in map(np.asarray, batch.values()) if a.ndim), default=1)


def _ends(
    annotation: Annotation, name: str, values: Any, inputs: Mapping[str, Array], count: int
) -> tuple[float, float]:
    """The smallest and the largest of some floats; zeros of what is empty for every
    example, such as the past of a decoder before its first step.

    Raises:
        InputError: there are no examples, or they are not all finite.
    """
    a = np.asarray(values)
    if a.size == 0 and len(a):
        return 0.0, 0.0
    if a.size == 0:
        what = f"input {name!r}" if name in inputs else f"the value %{name}"
        raise InputError(f"calibration batch {count}: {what} is empty")
    if a.dtype.kind != "f":
        return 0.0, 0.0  # what is observed is float32
    # A NaN is both the smallest and the largest value of an array that holds one.
    low, high = float(a.min()), float(a.max())
    if not (isfinite(low) and isfinite(high)):
        raise not_finite(annotation.module, name, inputs, count)
    return low, high


# ---- choosing ------------------------------------------------------------------------------------
def _parameters(
    annotation: Annotation, observers: Mapping[str, Observer]
) -> tuple[dict[str, ValueParams], dict[str, WeightParams]]:
    """Parameters of every observed value and of all weights, in program order."""
    graph = Graph(annotation.module.main)
    nodes, configs = annotation.nodes, annotation.configs
    values: dict[str, ValueParams] = {}
    weights: dict[str, WeightParams] = {}
    floors: dict[str, float] = {}
    for b, call in graph.calls():
        if nodes[b.var.name].decision == "integer" and form(call) == Form.LAYER_NORM:
            name = source(graph, nodes, call.args[0]).name
            floors[name] = max(floors.get(name, 0.0), least_data_scale(call))

    def choose(v: Var, reach: float = 0.0) -> None:
        # In units of its scale, the largest result that the node can give is far below 2^31.
        if v.name in observers and v.name not in values:
            low, high = observers[v.name].range()
            config = configs[v.name]
            least = reach / 2.0 ** (24 if config.activation_bits <= 8 else 29)
            least = max(least, floors.get(v.name, 0.0))
            values[v.name] = value_params(low, high, config, least)

    for p in graph.f.params:
        choose(p)
    for b in graph.f.bindings:
        node = nodes.get(b.var.name)
        if node is not None and node.decision == "integer":
            assert isinstance(b.value, Call)
            data = [values[source(graph, nodes, a).name] for a in data_of(graph, b, node)]
            if is_weighted(b.value):
                weights[b.var.name], reach = _weights(b.value, data[0], configs[b.var.name])
            else:
                reach = 0.0 if node.function_of else reach_of(b.value, data)
            choose((chain_end(graph, nodes, b) if clips_itself(b, node) else b).var, reach)
        elif node is not None and node.decision == "weights":
            assert isinstance(b.value, Call)
            (weight,) = (a.data for a in b.value.args[1:2] if isinstance(a, Constant))
            weights[b.var.name] = weight_only_params(weight, configs[b.var.name])
        choose(b.var)
    _share_concatenated(graph, annotation, values)
    return values, weights


def _weights(call: Call, data: ValueParams, config: QConfig) -> tuple[WeightParams, float]:
    """Parameters of a call's weights, and the largest magnitude that its result can have."""
    weight, *rest = (a.data for a in call.args[1:] if isinstance(a, Constant))
    bias = rest[0] if rest else None
    params = weight_params(weight, bias, data, config)
    return params, params.reach(weight, bias, data)


def _share_concatenated(
    graph: Graph, annotation: Annotation, values: dict[str, ValueParams]
) -> None:
    """Give what only a concatenate reads the parameters of its result, which saves requantizing.

    Not where the configurations of the two want different parameters.
    """
    configs = annotation.configs
    for b, call in reversed(graph.calls()):
        node = annotation.nodes[b.var.name]
        if form(call) == Form.JOIN and node.decision == "integer":
            for a in call.args:
                assert isinstance(a, Var)
                shared = a.name in values and len(graph.uses[a]) == 1
                if shared and same_values(configs[a.name], configs[b.var.name]):
                    values[a.name] = values[b.var.name]


def not_finite(module: IRModule, name: str, inputs: Mapping[str, Array], batch: int) -> InputError:
    """The error to raise where a value holds NaN or infinity.

    It names the first node that does, in program order, among those that the value depends on.

    Args:
        module: the module that was run.
        name: the value: an input, or the result of a binding.
        inputs: the batch that gave rise to it; batch: its number.
    """
    start = f"calibration batch {batch}:"
    if name in inputs:
        return InputError(f"{start} input {name!r} holds NaN or infinity; clean the data")
    found = _first_not_finite(module, name, inputs)
    origins = f" (ONNX node {', '.join(map(repr, found.origins))})" if found.origins else ""
    return InputError(
        f"{start} the value %{found.var.name}{origins} is the first that holds NaN or infinity; "
        "clean the data, or mend the model there"
    )


def _first_not_finite(module: IRModule, name: str, inputs: Mapping[str, Array]) -> Binding:
    """The first binding with such a value that `name` depends on; its own if none shows it."""
    needed = _needed(module.main, name)
    wanted = [b for b in needed if isinstance(b.var.type, TensorType)]
    values = Runner(module, [b.var for b in wanted], threads=1)(inputs)
    for b, value in zip(wanted, values, strict=True):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return b
    return needed[-1]


def _needed(f: Function, name: str) -> list[Binding]:
    """The bindings that the value called `name` depends on, with its own last."""
    wanted: set[Var] = set()
    found: list[Binding] = []
    for b in reversed(f.bindings):
        if b.var.name == name or b.var in wanted:
            found.append(b)
            wanted |= {a for a in operands(b.value) if isinstance(a, Var)}
    return found[::-1]
