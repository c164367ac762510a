"""Networks of which only some layers are trained: what comes before these is the same in every
step, so that it is computed once an example, and a step is of what comes after."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from compiler.errors import ConfigError, UnsupportedError
from compiler.ir.expr import Binding, Function, Var, operands, tensor_type
from compiler.passes.live import live
from quantize.config.overrides import fits

from .network import Network


@dataclass(frozen=True)
class Layers:
    """The layers of a prepared module that are trained, of all with weights.

    Attributes:
        weights: ids of the constants that are trained.
        fixed_values: names of the values that no trained layer has a part in.
        fixed_nodes: names of the layers that are not trained.
    """

    weights: frozenset[int]
    fixed_values: frozenset[str]
    fixed_nodes: frozenset[str]


def layers_of(f: Function, weights: Collection[int], patterns: Iterable[str]) -> Layers:
    """The layers that `patterns` name, as overrides of a configuration name them: by their results,
    or the nodes of the model file that they come from.

    Args:
        f: the prepared function. weights: ids of its constants that could be trained.
        patterns: names, or with `*`, `?` and `[a-z]`; none for all layers.

    Raises:
        ConfigError: a pattern fits no layer with weights; names it.
    """
    chosen = tuple(patterns)
    if not chosen:
        return Layers(frozenset(weights), frozenset(), frozenset())
    with_weights = {
        b.var: {id(a) for a in operands(b.value) if id(a) in weights} for b in f.bindings
    }
    names = {b.var: (b.var.name, *b.origins) for b in f.bindings if with_weights[b.var]}
    for pattern in chosen:
        if not any(fits(pattern, n) for n in names.values()):
            last = next(reversed(names.values()))
            raise ConfigError(
                f"layers: {pattern!r} fits no layer with weights; the last one is {last[0]!r}"
            )
    trained = {v for v, n in names.items() if any(fits(p, n) for p in chosen)}
    after = _depending(f.bindings, trained)
    every = {v.name for v in f.params} | {b.var.name for b in f.bindings}
    return Layers(
        frozenset(k for v in trained for k in with_weights[v]),
        frozenset(every - {v.name for v in after}),
        frozenset(v.name for v in names if v not in trained),
    )


def _depending(bindings: Iterable[Binding], first: Collection[Var]) -> set[Var]:
    """The values of `first`, and those that are made of them."""
    found = {*first}
    for b in bindings:
        if any(a in found for a in operands(b.value)):
            found.add(b.var)
    return found


@dataclass(frozen=True, eq=False)
class Parts:
    """A network in two functions.

    Attributes:
        front: from the input to what the rest reads of it. tail: the rest, whose first parameters
            are the results of `front`, then the network's.
    """

    front: Function
    tail: Network


def parts_of(network: Network) -> Parts:
    """A network, divided at its first weights.

    Raises:
        UnsupportedError: what crosses from one part to the other is not a row for each example.
    """
    f = network.function
    count = len(network.parameters)
    given, weights = f.params[: len(f.params) - count], f.params[len(f.params) - count :]
    trained = _depending(f.bindings, weights)
    seen = _depending(f.bindings, given)
    tail = [b for b in f.bindings if b.var in trained or b.var not in seen]
    front = [b for b in f.bindings if b.var not in trained]
    inner = {b.var for b in tail}
    crossing = dict[Var, None]()
    for b in tail:
        crossing |= {a: None for a in operands(b.value) if isinstance(a, Var) and a not in inner}
    read = tuple(v for v in crossing if v not in weights)
    for v in read:
        _check_rows(v, given[0])
    return Parts(
        live(replace(f, bindings=tuple(front), results=read, params=given)),
        Network(
            live(replace(f, bindings=tuple(tail), params=(*read, *weights))), network.parameters
        ),
    )


def _check_rows(v: Var, given: Var) -> None:
    shape, batch = tensor_type(v).shape, tensor_type(given).shape[0]
    if not shape or shape[0] != batch:
        raise UnsupportedError(
            f"layers: the trained layers read %{v.name} of shape {shape} of those that are not, "
            f"which has no row for each of {batch} examples: train layers from another one on"
        )
