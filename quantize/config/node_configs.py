"""The configuration of every node and value of a network: patterns meet names here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.errors import ConfigError, unknown
from quantize.config.checks import CERTIFIED
from quantize.config.overrides import (
    NODES,
    PER_NODE,
    SUMS,
    VALUES,
    WEIGHTS,
    Names,
    check_fitting,
    deciding,
    fits,
)
from quantize.config.qconfig import QConfig


def excluded(config: QConfig, nodes: Mapping[str, Names]) -> dict[str, str]:
    """Node -> what in `config` leaves it in float, for the nodes that something does.

    Args:
        nodes: the names by which patterns can mean each node.

    Raises:
        ConfigError: a pattern of `config.skip` fits no node.
    """
    for pattern in config.skip:
        if not any(fits(pattern, names) for names in nodes.values()):
            raise ConfigError("skip: " + unknown("node", pattern, _all(nodes)))
    found = {name: config.excluding(names) for name, names in nodes.items()}
    return {name: what for name, what in found.items() if what}


def node_configs(
    config: QConfig,
    nodes: Mapping[str, Names],
    weighted: Sequence[str],
    values: Mapping[str, Names],
    products: Sequence[str] = (),
) -> dict[str, QConfig]:
    """Node or observed value -> the scheme there.

    Args:
        nodes: the names by which patterns can mean each node.
        weighted: the integer nodes that have weights.
        values: the same names, of the values that are observed.
        products: the integer nodes that multiply two activations.

    Raises:
        ConfigError: a pattern of `config.overrides` or `config.accumulate` decides nothing.
    """
    weights = [nodes[name] for name in weighted]
    sums = {name: nodes[name] for name in (*weighted, *products)}
    check_fitting(
        config.rules,
        {
            NODES: list(nodes.values()),
            WEIGHTS: weights,
            SUMS: list(sums.values()),
            VALUES: list(values.values()),
        },
    )
    _check_accumulate(config, sums)
    found: dict[Names, QConfig] = {}
    for names in (*nodes.values(), *values.values()):
        if names not in found:
            found[names] = config.for_node(names)
    return {name: found[names] for name, names in {**nodes, **values}.items()}


def product_accumulate(config: QConfig, names: Names, own: QConfig) -> str:
    """The accumulation of an integer node that multiplies two activations, which is known by these
    names and has the configuration `own`: what an override or a pattern says of it. One name for
    all nodes is for those with weights, unless it is `certified`, which changes no results."""
    everywhere = isinstance(config.accumulate, str) and config.accumulate != CERTIFIED
    if everywhere and deciding(config.rules, "accumulate", names) is None:
        return "sequential"
    return own.accumulators[0][1]


def _check_accumulate(config: QConfig, summed: Mapping[str, Names]) -> None:
    """Raise ConfigError unless every pattern of `config.accumulate` decides something."""
    if isinstance(config.accumulate, str):
        return
    left = [n for n in summed.values() if deciding(config.rules, "accumulate", n) is None]
    for pattern, _ in config.accumulators:
        rest = [names for names in left if not fits(pattern, names)]
        if len(rest) == len(left):
            raise ConfigError(
                f"accumulate: {unknown('node', pattern, _all(summed))}; every pattern must "
                "decide the accumulator of an integer conv2d, dense or matmul that no pattern "
                "before it does"
            )
        left = rest


def _all(nodes: Mapping[str, Names]) -> list[str]:
    return [n for names in nodes.values() for n in names]


def same_values(a: QConfig, b: QConfig) -> bool:
    """Whether two nodes' schemes say the same of activations."""
    fields = [name for name, kind in PER_NODE.items() if kind == VALUES]
    return all(getattr(a, name) == getattr(b, name) for name in fields)
