"""Mixed precision: the nodes whose quantization costs most, for what they take, get more bits.

The errors of nodes add up nearly independently, so what each does alone tells what it is worth to
treat it better (Wu et al., Integer Quantization for Deep Learning Inference, 2020, section 5.2).
Nodes are taken in the order of noise saved per cost, as long as a budget lasts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quantize.config.qconfig import QConfig
from quantize.search.sensitivity import Sensitivity

MORE_BITS = 8
"""Bits of the weights of sensitive nodes, where the others have fewer."""


@dataclass(frozen=True)
class Choice:
    """A node that is treated better: the noise that it saves, and what it costs."""

    node: str
    saved: float
    cost: float


def chosen(choices: Sequence[Choice], budget: float) -> tuple[Choice, ...]:
    """The choices that fit into the budget together, those with most saved per cost first; one that
    is too large for what is left is passed over. Ties go by the order given."""
    taken = []
    for c in sorted(choices, key=lambda c: -c.saved / max(c.cost, 1e-30)):
        if c.saved > 0 and c.cost <= budget:
            taken.append(c)
            budget -= c.cost
    return tuple(taken)


def left_in_float(found: Sequence[Sensitivity], macs: int, share: float) -> tuple[Choice, ...]:
    """The nodes that stay float, by `chosen`, with at most `share` of `macs` in all."""
    choices = [Choice(s.node, s.noise, s.macs) for s in found]
    return chosen(choices, share * macs)


def with_more_bits(
    few: Sequence[Sensitivity],
    more: Sequence[Sensitivity],
    bits: float,
    mean: float,
    wide: float = MORE_BITS,
) -> tuple[Choice, ...]:
    """The nodes whose weights get `wide` bits instead of `bits`, by `chosen`, so that all weights
    have at most `mean` bits on average.

    Args:
        few, more: sensitivities of the same nodes with either number of bits.
    """
    total = sum(s.weights for s in few)
    choices = [
        Choice(a.node, a.noise - b.noise, a.weights * (wide - bits))
        for a, b in zip(few, more, strict=True)
        if a.weights
    ]
    return chosen(choices, (mean - bits) * total)


def overriding(config: QConfig, names: Sequence[str], **fields: Any) -> QConfig:
    """The configuration with fields that are different for some nodes, before all its overrides."""
    rules: Mapping[str, Mapping[str, Any]] = {p: dict(values) for p, values in config.rules}
    first = {name: {**rules.get(name, {}), **fields} for name in names}
    rest = {p: values for p, values in rules.items() if p not in first}
    return replace(config, overrides={**first, **rest})
