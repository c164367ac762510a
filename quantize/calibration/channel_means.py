"""Means of the channels of a float network's values, of which bias correction makes its shifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.ir.expr import Binding, Call, IRModule, Var, tensor_type
from compiler.types.dtypes import Array
from quantize.annotation.graph import Graph
from quantize.annotation.op_facts import is_weighted
from quantize.config.qconfig import QConfig
from quantize.plan.call_facts import contraction
from quantize.plan.node_plan import NodePlan

INPUTS = 64
"""Calibration inputs that the means are taken over."""


class FloatMeans:
    """What bias correction must know of the float network: the mean of every channel of some
    values, and its float results. Batches are shown one by one.

    Attributes:
        wanted: the variables whose values `update` takes, in the order of their types.
    """

    def __init__(self, module: IRModule, axes: Mapping[Var, int]):
        self.axes = dict(axes)
        self.ends = [r for r in module.main.results if isinstance(r, Var)]
        self.wanted = tuple(dict.fromkeys([*axes, *self.ends]))
        self._sums: dict[str, list[Array]] = {v.name: [] for v in axes}
        self._results: list[Array] = []

    def update(self, values: Mapping[Var, Array]) -> None:
        """Take the values of a batch, which may be overwritten afterwards."""
        for v, axis in self.axes.items():
            self._sums[v.name].append(channel_sums(values[v], axis))
        self._results += [np.array(values[r]) for r in self.ends]

    def means(self) -> dict[str, Array]:
        """Value -> mean of every channel, float64."""
        return {name: mean_of(s) for name, s in self._sums.items()}

    def results(self) -> list[Array]:
        """All results, batch after batch."""
        return self._results


def corrected_layers(module: IRModule, nodes: Mapping[str, NodePlan]) -> dict[str, Binding]:
    """The layers whose biases can be shifted: those with weights that `nodes` quantizes or puts in
    formats."""
    return {
        b.var.name: b
        for b, call in Graph(module.main).calls()
        if is_weighted(call) and nodes[b.var.name].decision in ("integer", "weights", "format")
    }


def correction(config: QConfig) -> str:
    """How biases are corrected, by what the weights are in."""
    return config.format_bias_correction if config.in_formats else config.bias_correction


def float_means(
    module: IRModule, nodes: Mapping[str, NodePlan], config: QConfig
) -> FloatMeans | None:
    """What the bias correction of `config` wants of the prepared `module`; None if nothing."""
    layers = corrected_layers(module, nodes)
    if correction(config) == "none" or not layers:
        return None
    if correction(config) == "analytic":
        return FloatMeans(module, _read(layers))
    return FloatMeans(module, {b.var: channel_axis(b) for b in layers.values()})


def _read(layers: Mapping[str, Binding]) -> dict[Var, int]:
    """What the layers read -> the axis of its channels."""
    out: dict[Var, int] = {}
    for b in layers.values():
        assert isinstance(b.value, Call)
        data = b.value.args[0]
        assert isinstance(data, Var)
        out[data] = contraction(b.value).data
    return out


def channel_axis(b: Binding) -> int:
    """The axis of the channels of a layer's result."""
    assert isinstance(b.value, Call)
    return contraction(b.value).channels % tensor_type(b.var).rank


@np.errstate(over="ignore", invalid="ignore")
def channel_sums(values: Array, axis: int) -> Array:
    """Sum of every channel, and how many values it has: [2, C] float64. Not finite where a value
    is not."""
    channels = values.shape[axis]
    if axis == 1:
        # Rows in float32: numpy adds them in pairs, which is exact enough, and much quicker.
        parts = values.reshape(len(values), channels, -1)
        rows = parts.sum(axis=2)
        if not np.isfinite(rows).all():  # float32 does not hold sums of its largest numbers
            rows = parts.sum(axis=2, dtype=np.float64)
        sums = rows.sum(axis=0, dtype=np.float64)
    else:
        sums = values.reshape(-1, channels).sum(axis=0, dtype=np.float64)
    return np.stack([sums, np.full_like(sums, values.size / max(channels, 1))])


@np.errstate(invalid="ignore")
def mean_of(sums: Sequence[Array]) -> Array:
    """Mean of every channel over several `channel_sums`."""
    total, count = np.sum(sums, axis=0)
    mean: Array = total / count
    return mean
