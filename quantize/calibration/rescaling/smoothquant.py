"""SmoothQuant: what is hard to quantize in activations is moved into the weights that read them.

Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models, 2022: channel j is divided by s = max|x_j|^alpha / max|w_j|^(1 - alpha). Channels with
outliers, such as a layer norm's, then leave the others more of the 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ir.expr import IRModule, Var
from compiler.types.dtypes import Array
from quantize.calibration.rescaling.cross_layer_equalization import largest_read
from quantize.plan.call_facts import contraction
from quantize.plan.factors import Factors, Network, channels, reads, rounded
from quantize.plan.node_plan import NodePlan


def smoothable(
    module: IRModule, nodes: Mapping[str, NodePlan], kernels: bool = False
) -> dict[Var, tuple[Var, ...]]:
    """Values that layers with weights in integers or formats read -> these layers; convolutions too
    if `kernels`.

    Not a value that is itself made of integers, unless the layers that make it can divide it: a
    multiplication would stand between integers.
    """
    network = Network(module)
    out: dict[Var, tuple[Var, ...]] = {}
    for v in network.named.values():
        readers = tuple(
            dict.fromkeys(
                b.var
                for b in network.uses.get(v, [])
                if b is not None and _quantized(network, b.var, v, nodes, kernels)
            )
        )
        whole = len(readers) == len(network.uses.get(v, []))
        made = nodes.get(v.name)
        real = made is None or made.decision in ("float", "format")
        if readers and isinstance(channels(v), int) and (real or (whole and network.divides(v))):
            out[v] = readers
    return out


def smoothing(
    module: IRModule,
    values: Mapping[Var, tuple[Var, ...]],
    largest: Mapping[str, Array],
    alpha: float,
) -> dict[str, Factors]:
    """Value -> its factors.

    Args:
        module: a prepared module.
        values: what `smoothable` found in it.
        largest: value name -> [C], the largest magnitude of each channel in the calibration data.
        alpha: how much of the difficulty is moved, 0 to 1.
    """
    network = Network(module)
    out = {}
    for v, readers in values.items():
        x = largest[v.name].astype(np.float64)
        w = np.max([largest_read(network, r, len(x)) for r in readers], axis=0)
        used = (x > 0) & (w > 0)
        divisors = np.where(used, x, 1) ** alpha / np.where(used, w, 1) ** (1 - alpha)
        out[v.name] = Factors(tuple(r.name for r in readers), rounded(divisors))
    return out


def _quantized(
    network: Network, reader: Var, v: Var, nodes: Mapping[str, NodePlan], kernels: bool
) -> bool:
    node = nodes.get(reader.name)
    call = network.calls.get(reader)
    rounded = node is not None and node.decision in ("integer", "weights", "format")
    if call is None or not rounded or not reads(call, v):
        return False
    return kernels or not contraction(call).kernel
