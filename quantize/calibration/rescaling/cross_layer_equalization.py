"""Cross-layer equalization: the channels between two layers get weights of like ranges on both
sides.

Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, 2019, section
4.1: what makes channel i is divided, and what reads it multiplied, by s = sqrt(r1 / r2), where r1
and r2 are the largest magnitudes of the weights that make and read it. A relu6 between them is not
equivariant, so that networks with it keep those pairs as they are.
"""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import IRModule, Var
from compiler.types.dtypes import Array
from quantize.plan.factors import Factors, Network, channels, constant, reads, rounded

ROUNDS = 20
"""How often all pairs are visited; a layer in two pairs changes the other's ranges."""


def equalizing(module: IRModule) -> dict[str, Factors]:
    """Value -> its factors, for every value between layers of a prepared module that allows it."""
    network = Network(module)
    pairs = _pairs(network)
    divisors: dict[Var, Array] = {v: np.ones(channels(v)) for v in pairs}
    for _ in range(ROUNDS):
        current = Network(module)
        for v, (_, readers) in pairs.items():
            names = tuple(r.name for r in readers)
            current.rescale(v.name, Factors(names, tuple(divisors[v])))
        for v, (maker, readers) in pairs.items():
            made = np.abs(constant(current.calls[maker].args[1]))
            r1 = made.reshape(len(made), -1).max(axis=1)
            r2 = np.max([largest_read(current, r, len(r1)) for r in readers], axis=0)
            used = (r1 > 0) & (r2 > 0)
            step = np.sqrt(np.where(used, r1, 1) / np.where(used, r2, 1))
            current.rescale(v.name, Factors(tuple(r.name for r in readers), tuple(step)))
            divisors[v] = divisors[v] * step
    return {
        v.name: Factors(tuple(r.name for r in readers), rounded(divisors[v]))
        for v, (_, readers) in pairs.items()
    }


def _pairs(network: Network) -> dict[Var, tuple[Var, tuple[Var, ...]]]:
    """Value -> the layer that makes it and those that read it, where nothing else does."""
    out: dict[Var, tuple[Var, tuple[Var, ...]]] = {}
    for v in network.calls:
        read = network.uses.get(v, [])
        readers = tuple(b.var for b in read if b is not None and b.var in network.calls)
        maker = network.maker(v)
        fits = all(reads(network.calls[r], v) for r in readers)
        if maker is not None and readers and len(readers) == len(read) and fits:
            out[v] = maker, readers
    return out


def largest_read(network: Network, reader: Var, count: int) -> Array:
    """The largest magnitude of the weights that read each of `count` channels."""
    call = network.calls[reader]
    weight = np.abs(constant(call.args[1]))
    groups = getattr(call.attrs, "groups", 1)
    each = weight.reshape(groups, len(weight) // groups, weight.shape[1], -1)
    largest: Array = each.max(axis=(1, 3)).reshape(count)
    return largest
