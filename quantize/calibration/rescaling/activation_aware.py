"""Activation-aware factors: weights that multiply large inputs are rounded more finely.

Lin et al., AWQ: Activation-aware Weight Quantization, 2023: a value's channel j is divided by
s = mean|x_j|^a, scaled so that the largest and the smallest s have product 1, and the weights that
read it are multiplied; a in [0, 1] is searched for the least error of the layers' results. The
error is that of rounding to nearest, whatever rounds the weights in the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.expr import Binding, Call, IRModule, Var
from compiler.types.dtypes import Array
from quantize.annotation.annotate import Annotation
from quantize.calibration.formats import weight_format
from quantize.calibration.rounding.moments import grouped, moments
from quantize.calibration.rounding.network_walk import NetworkWalk
from quantize.config.qconfig import QConfig
from quantize.formats.chosen import weight_array
from quantize.plan.factors import Factors, Network, channel_axis, constant, per_weight, rounded
from quantize.plan.params import weight_only_params

EXPONENTS = np.linspace(0, 1, 21)
"""What is tried as a."""


def activation_aware(
    module: IRModule,
    annotation: Annotation,
    values: Mapping[Var, tuple[Var, ...]],
    inputs: Sequence[Mapping[str, Array]],
    threads: int,
) -> dict[str, Factors]:
    """Value -> its factors, for the values that gain by some.

    Args:
        module: a prepared module.
        annotation: its layers' configurations.
        values: what `smoothable` found in it.
        inputs: calibration batches, by name.
        threads: threads that the network runs on.
    """
    network, walk = Network(module), NetworkWalk(inputs, threads)
    at = {b.var: b for b in module.main.bindings}
    order = {b.var: k for k, b in enumerate(module.main.bindings)}
    out = {}
    for v in sorted(values, key=lambda v: order.get(v, -1)):
        data = walk.value(module.main, v.name)
        layers = [
            _Layer(at[r], network.calls[r], annotation.configs[r.name], data) for r in values[v]
        ]
        size = _mean_magnitude(data, channel_axis(v))
        size = np.where(size > 0, size, 1.0)
        tried = [_balanced(size**a) for a in EXPONENTS]
        errors = [sum(layer.error(s) for layer in layers) for s in tried]
        best = int(np.argmin(errors))
        if best:
            out[v.name] = Factors(tuple(r.name for r in values[v]), rounded(tried[best]))
    return out


class _Layer:
    """A layer whose weights are rounded."""

    def __init__(self, layer: Binding, call: Call, config: QConfig, data: Sequence[Array]):
        self.layer, self.call, self.config = layer, call, config
        self.weight = constant(call.args[1])
        self.moment, *_ = moments(layer, data, data, config.seed)

    def error(self, divisors: Array) -> float:
        """Mean squared error of the results when the weights are rounded multiplied by these."""
        factors = per_weight(self.call, divisors)
        real = self.rounded(self.weight * factors) / factors
        change = grouped(self.layer, real - self.weight)
        return float(np.einsum("gok,gok->", change @ self.moment, change))

    def rounded(self, weight: Array) -> Array:
        """What rounding to nearest makes of weights."""
        if self.config.in_formats:
            held = weight.astype(np.float32)
            return weight_array(held, weight_format(self.call, held, self.config))
        params = weight_only_params(weight, self.config)
        return params.real(weight)


def _mean_magnitude(data: Sequence[Array], axis: int) -> Array:
    """float64 [C]: the mean magnitude of every channel over all batches."""
    others = tuple(k for k in range(data[0].ndim) if k != axis)
    total = np.sum([np.abs(a).sum(axis=others, dtype=np.float64) for a in data], axis=0)
    mean: Array = total / sum(a.size // a.shape[axis] for a in data)
    return mean


def _balanced(s: Array) -> Array:
    """Divisors scaled so that the largest and the smallest have product 1."""
    out: Array = s / np.sqrt(s.max() * s.min())
    return out
