"""From a plan with rounding to nearest to one whose layers are rounded by data, layer after layer.

Each layer is rounded with its inputs as the network gives them once all layers before it are
quantized and rounded, so that it also makes up for their errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.ir.expr import Binding, Call, Constant, Var
from compiler.types.dtypes import Array
from quantize.annotation.annotate import Annotation
from quantize.annotation.graph import Graph
from quantize.annotation.op_facts import is_weighted
from quantize.calibration.rounding.adaround import adaround
from quantize.calibration.rounding.clipping import clipped_format, clipped_integers
from quantize.calibration.rounding.gptq import gptq
from quantize.calibration.rounding.in_formats import chosen_in_format
from quantize.calibration.rounding.moments import grouped, moments
from quantize.calibration.rounding.network_walk import NetworkWalk
from quantize.calibration.rounding.problem import Problem, problem
from quantize.config.qconfig import QConfig
from quantize.formats.blocks import FLOAT, block_format
from quantize.plan.plan import Plan
from quantize.realization.simulate import simulate

NEAREST, GPTQ, OUTPUT = "nearest", "gptq", "output"
WITHOUT_DATA = (NEAREST, "hqq")
ROUNDED = ("integer", "weights", "format")
"""Decisions by which a layer has integer weights, or weights in a format."""


def by_data(config: QConfig) -> bool:
    """Whether a layer's weights are chosen by what it reads."""
    return config.weight_rounding not in WITHOUT_DATA or config.weight_calibrate == OUTPUT


def wanted_inputs(annotation: Annotation) -> int:
    """How many calibration inputs `round_weights` is to be given."""
    configs = [annotation.configs[name] for name in _layers(annotation)]
    return max((c.rounding_inputs for c in configs if by_data(c)), default=0)


def round_weights(
    annotation: Annotation, plan: Plan, inputs: Sequence[Mapping[str, Array]], threads: int = 1
) -> Plan:
    """The plan with the rounding that the configuration of each layer wants.

    Args:
        annotation: what the plan was made from.
        plan: made with rounding to nearest.
        inputs: calibration batches, by name.
        threads: threads that the networks run on.

    Raises:
        ConfigError: a layer that is to be rounded otherwise is neither a dense nor a convolution,
            or its weights are in a format of more than 16 bits.
    """
    layers = {
        name: layer
        for name, layer in _layers(annotation).items()
        if by_data(annotation.configs[name])
        and (name not in plan.formats or plan.formats[name][1].format != FLOAT)
    }
    reference, quantized = (NetworkWalk(inputs, threads) for _ in range(2))
    for name, layer in layers.items():
        config = annotation.configs[name]
        shape = grouped(layer, _weight(layer))
        network = simulate(annotation.module, plan.sequential).main
        real = reference.value(annotation.module.main, _data(layer).name)
        bound = {b.var.name: b for b in network.bindings}
        # Where the result is narrowed to integers, its name means the integers.
        simulated = bound[f"{name}_real" if f"{name}_real" in bound else name]
        given = quantized.value(network, _data(simulated).name)
        moment, cross, columns = moments(layer, real, given, config.seed)
        # Fewer columns than inputs say nothing of most directions, and little of the others.
        damping = config.rounding_damping * (1 + shape.shape[-1] / columns)
        task = problem(shape, moment, cross, np.ones(()), (0.0, 0.0), damping)
        plan = _with_choice(plan, name, layer, task, config)
    return plan


def _with_choice(plan: Plan, name: str, layer: Binding, task: Problem, config: QConfig) -> Plan:
    """The plan with the weights of one layer chosen."""
    weight = _weight(layer)

    def as_rows(a: Array) -> Array:
        return grouped(layer, a)

    clip = config.weight_calibrate == OUTPUT
    if name in plan.formats:
        data, f = plan.formats[name]
        if clip and block_format(f.format) is None:
            f = clipped_format(f, weight, as_rows, task, config)
        f = chosen_in_format(f, weight, as_rows, task, config.weight_rounding == GPTQ, clip)
        return replace(plan, formats={**plan.formats, name: (data, f)})
    params = plan.weights[name]
    if clip:
        params = clipped_integers(params, weight, as_rows, task, config)
    scale = grouped(layer, params.spread(weight.shape))
    low, high = (grouped(layer, end) for end in params.ends(weight.shape))
    spread, low, high = (np.broadcast_to(a, task.weight.shape) for a in (scale, low, high))
    integers = replace(task, scale=spread, low=low, high=high)
    if config.weight_rounding not in WITHOUT_DATA:
        chosen = solved(integers, config).reshape(weight.shape)
        params = params.rounded_to(weight, chosen)
    return replace(plan, weights={**plan.weights, name: params})


def solved(task: Problem, config: QConfig) -> Array:
    """Integers for a layer's weights, by the method that `config` names."""
    if config.weight_rounding == "adaround":
        return adaround(task, config.rounding_steps)
    return gptq(task)


def _layers(annotation: Annotation) -> dict[str, Binding]:
    """The layers that have integer weights, or weights in a format, in program order."""
    return {
        b.var.name: b
        for b, call in Graph(annotation.module.main).calls()
        if is_weighted(call)
        and (decision := annotation.nodes[b.var.name].decision) in ROUNDED
        and (decision != "format" or annotation.configs[b.var.name].weight_dtype != FLOAT)
    }


def _data(layer: Binding) -> Var:
    assert isinstance(layer.value, Call)
    data = layer.value.args[0]
    assert isinstance(data, Var)
    return data


def _weight(layer: Binding) -> Array:
    assert isinstance(layer.value, Call)
    weight = layer.value.args[1]
    assert isinstance(weight, Constant)
    return np.asarray(weight.data)
