"""How long layers take on this machine in what they may be computed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.measure.latency import Thunk, measure_interleaved

from .candidate import BASE, FLOAT32, Candidate
from .network import Network
from .price import Factors, Layer, Price

if TYPE_CHECKING:
    from compiler.ir.expr import Binding, IRModule

WARMUP, ROUNDS = 2, 15
Array = NDArray[Any]


def measured(network: Network, wanted: Sequence[Candidate]) -> Price:
    """Microseconds of every layer alone, as a price: one input, one thread, the median of rounds in
    which all candidates of a layer take turns.

    A layer is a network of its own, with float32 numbers of the first calibration input before and
    behind it. Rounding what it reads is part of it, also where the whole network rounds that once
    for several layers. Other machines, and other runs, give other figures.
    """
    found: dict[tuple[str, Candidate], float] = {}
    for binding, feed in _layers(network):
        calls = [_call(network.module, binding, feed, c) for c in wanted]
        stats = measure_interleaved(calls, warmup=WARMUP, runs=ROUNDS)
        for c, s in zip(wanted, stats, strict=True):
            found[binding.var.name, c] = 1000.0 * s.median

    def price(layer: Layer, candidate: Candidate, factors: Factors) -> float:
        return found[layer.node, candidate]

    return price


def _layers(network: Network) -> list[tuple[Binding, Mapping[str, Array]]]:
    """The bindings of the layers, and for each what it reads for one input, by name."""
    from compiler.ir.expr import Call, Var
    from quantize.calibration.running import Runner

    nodes = {layer.node for layer in network.layers}
    main = network.module.main
    chosen = [b for b in main.bindings if b.var.name in nodes]
    read = {
        b.var.name: [a for a in b.value.args if isinstance(a, Var)]
        for b in chosen
        if isinstance(b.value, Call)
    }
    inner = list(dict.fromkeys(v for own in read.values() for v in own))
    run = Runner(network.module, [v for v in inner if v not in main.params], network.threads)
    inner_values = zip(run.wanted, run(network.first), strict=True)
    values = {**network.first, **{v.name: np.array(a) for v, a in inner_values}}
    return [(b, {v.name: values[v.name] for v in read[b.var.name]}) for b in chosen]


def _call(
    module: IRModule, binding: Binding, feed: Mapping[str, Array], candidate: Candidate
) -> Thunk:
    """A layer alone in a candidate, compiled, on what it reads."""
    import compiler
    import quantize
    from compiler.ir.expr import Call, Function, Var

    assert isinstance(binding.value, Call)
    params = tuple(a for a in dict.fromkeys(binding.value.args) if isinstance(a, Var))
    main = Function(params, (binding,), (binding.var,))
    alone = replace(module.with_function("main", main), attrs={})
    if candidate.format != FLOAT32:
        alone = quantize.quantize(alone, [feed], quantize.QConfig(**BASE, **candidate.fields))
    program = compiler.build(alone, threads=1)
    inputs = [feed[p.name] for p in params]
    return lambda: program(*inputs)
