"""Smoothing where it pays: judged for every layer norm by the error of the layers that read it.

Outliers of transformers are channels of layer norms (Xiao et al., SmoothQuant, 2022, figure 4), and
it is the gain of the layer norm that amplifies them (Wei et al., Outlier Suppression, 2022, section
3.2). So layer norms with such gains are looked at; whether their outliers are worth moving, and how
far, differs from one to the next. Some exponents are tried on rows of the calibration data, and
none is taken unless it does clearly better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from compiler.ir.expr import Call, Constant, IRModule, Var
from compiler.types.dtypes import Array
from quantize.annotation.annotate import Annotation
from quantize.annotation.graph import Graph
from quantize.calibration.observers import observer
from quantize.calibration.rescaling.smoothquant import smoothable, smoothing
from quantize.calibration.running import Runner
from quantize.config.qconfig import QConfig
from quantize.plan.call_facts import Form, form
from quantize.plan.factors import Factors, Network, channels, per_weight
from quantize.plan.params import ValueParams, value_params, weight_params

AMPLIFIED = 2.0
"""How many times the median gain of a layer norm's channels the largest is, if it has outliers."""
EXPONENTS = (0.25, 0.5, 0.75)
"""What is tried as alpha."""
CLEARLY = 0.8
"""The share of the squared error that may be left where smoothing is worth its products."""
ROWS = 1024
"""Rows of each value that are looked at."""


def normalized(module: IRModule, annotation: Annotation) -> dict[Var, tuple[Var, ...]]:
    """Results of layer norms with outliers that integer layers read -> these layers."""
    nodes = annotation.nodes
    norms = {b.var.name for b, call in Graph(module.main).calls() if _has_outliers(call)}
    return {
        v: readers
        for v, readers in (smoothable(module, nodes) if norms else {}).items()
        if v.name in norms and all(nodes[r.name].decision == "integer" for r in readers)
    }


def _has_outliers(call: Call) -> bool:
    """Whether a call is a layer norm whose gain amplifies some channels."""
    gain = call.args[1] if form(call) == Form.LAYER_NORM and len(call.args) > 1 else None
    if not isinstance(gain, Constant):
        return False
    sizes = np.abs(gain.data)
    return bool(sizes.max() > AMPLIFIED * np.median(sizes))


def measured_smoothing(
    module: IRModule,
    annotation: Annotation,
    values: Mapping[Var, tuple[Var, ...]],
    inputs: Sequence[Mapping[str, Array]],
    threads: int,
) -> dict[str, Factors]:
    """Value -> its factors, for the values that gain by some.

    Args:
        module: a prepared module.
        annotation: its nodes' configurations.
        values: what `normalized` found in it.
        inputs: calibration batches, by name.
        threads: threads that the network runs on.
    """
    network = Network(module)
    out = {}
    for v, rows in _rows(module, list(values), inputs, threads).items():
        readers = values[v]
        config = annotation.configs[v.name]
        layers = [_Layer(network.calls[r], annotation.configs[r.name], rows) for r in readers]

        def error(divisors: Array, config: QConfig = config, rows: Array = rows,
                  layers: Sequence[_Layer] = layers) -> float:  # fmt: skip
            params = _params(rows / divisors, config)
            return sum(layer.error(rows / divisors, params, divisors) for layer in layers)

        largest = {v.name: np.abs(rows).max(axis=0)}
        tried = [smoothing(module, {v: readers}, largest, a)[v.name] for a in EXPONENTS]
        errors = [error(f.array) for f in tried]
        best = int(np.argmin(errors))
        if errors[best] < CLEARLY * error(np.ones(rows.shape[1])):
            out[v.name] = tried[best]
    return out


class _Layer:
    """A dense layer that reads some rows."""

    def __init__(self, call: Call, config: QConfig, rows: Array):
        self.call, self.config = call, config
        self.weight, *bias = (
            np.asarray(a.data, np.float64) for a in call.args[1:] if isinstance(a, Constant)
        )
        self.bias = bias[0] if bias else None
        self.wanted = rows @ self.weight.T

    def error(self, rows: Array, params: ValueParams, divisors: Array) -> float:
        """The squared error of the results when divided rows and multiplied weights are rounded."""
        weight = self.weight * per_weight(self.call, divisors)
        how = weight_params(weight, self.bias, params, self.config)
        real = how.quantized(weight) * how.spread(weight.shape)
        return float(np.square(_rounded(rows, params) @ real.T - self.wanted).sum())


def _params(rows: Array, config: QConfig) -> ValueParams:
    """The parameters that calibration would give these values."""
    seen = observer(config)
    seen.update(rows.astype(np.float32))
    return value_params(*seen.range(), config)


def _rounded(x: Array, params: ValueParams) -> Array:
    q = np.clip(np.rint(x / params.scale) + params.zero_point, params.qmin, params.qmax)
    return np.asarray((q - params.zero_point) * params.scale)


def _rows(
    module: IRModule,
    values: list[Var],
    inputs: Iterable[Mapping[str, Array]],
    threads: int,
) -> dict[Var, Array]:
    """Value -> [at most about ROWS, C], float64, evenly from all batches; at least one of each."""
    batches = list(inputs)
    run = Runner(module, values, threads)
    found: dict[Var, list[Array]] = {v: [] for v in values}
    each = max(ROWS // len(batches), 1)
    for batch in batches:
        for v, a in zip(values, run(batch), strict=True):
            rows = a.reshape(-1, channels(v))
            chosen = np.unique(np.linspace(0, len(rows) - 1, each).astype(int))
            found[v].append(rows[chosen].astype(np.float64))
    return {v: np.concatenate(parts) for v, parts in found.items()}
