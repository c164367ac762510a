"""Which factors a configuration wants for a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from compiler.ir.expr import IRModule, Var
from compiler.types.dtypes import Array
from quantize.annotation.annotate import Annotation
from quantize.calibration.rescaling.activation_aware import activation_aware
from quantize.calibration.rescaling.cross_layer_equalization import equalizing
from quantize.calibration.rescaling.measured_smoothing import measured_smoothing, normalized
from quantize.calibration.rescaling.smoothquant import smoothable, smoothing
from quantize.calibration.running import Runner
from quantize.config.qconfig import QConfig
from quantize.plan.factors import Factors, channel_axis, channels, rescaled

AUTO = "auto"

Inputs = Mapping[str, Array]


def chosen_factors(
    annotation: Annotation, config: QConfig, inputs: Iterable[Inputs], threads: int
) -> dict[str, Factors]:
    """Value -> its factors, by `config.equalize` and then, for other values, `config.smoothing` or
    `config.activation_aware`.

    Args:
        annotation: of the network as it is.
        config: of the whole network.
        inputs: calibration batches, by name; not read by equalization.
        threads: threads that the network runs on.
    """
    module = annotation.module
    factors = equalizing(module) if config.equalize else {}
    if not depends_on_data(annotation, config):
        return factors
    module = rescaled(module, factors)
    if config.smoothing == AUTO and not config.activation_aware:
        norms = {v: r for v, r in normalized(module, annotation).items() if v.name not in factors}
        return {**factors, **measured_smoothing(module, annotation, norms, list(inputs), threads)}
    found = smoothable(module, annotation.nodes, kernels=config.activation_aware)
    found = {v: readers for v, readers in found.items() if v.name not in factors}
    if config.activation_aware:
        return {**factors, **activation_aware(module, annotation, found, list(inputs), threads)}
    largest = _largest(module, list(found), inputs, threads)
    return {**factors, **smoothing(module, found, largest, float(config.smoothing))}


def depends_on_data(annotation: Annotation, config: QConfig) -> bool:
    """Whether `chosen_factors` reads calibration batches."""
    if config.activation_aware or config.smoothing != AUTO:
        return bool(config.activation_aware or config.smoothing)
    return bool(normalized(annotation.module, annotation))


def _largest(
    module: IRModule, values: list[Var], inputs: Iterable[Inputs], threads: int
) -> dict[str, Array]:
    """Value name -> [C], the largest magnitude of each channel."""
    f = module.main
    inner = [b.var for b in f.bindings if b.var in set(values)]
    run = Runner(module, inner, threads)
    out = {v.name: np.zeros(channels(v), np.float32) for v in values}
    for batch in inputs:
        known = {**batch, **{v.name: a for v, a in zip(inner, run(batch), strict=True)}}
        for v in values:
            a, axis = np.abs(known[v.name]), channel_axis(v)
            others = tuple(k for k in range(a.ndim) if k != axis)
            out[v.name] = np.maximum(out[v.name], a.max(axis=others))
    return out
