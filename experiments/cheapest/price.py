"""What a layer costs in a format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError, unknown
from experiments.costs.circuits import Circuits, table
from experiments.systems.energy import check_key, memory_microjoules, microjoules

from .candidate import FLOAT32, INTEGER, Candidate

if TYPE_CHECKING:
    from quantize.formats.operand_format import OperandFormat


@dataclass(frozen=True)
class Layer:
    """A convolution, dense layer or matrix product of one input: the `node` of plans, how many
    `macs` it does, and the shapes of its two factors (open sizes as 1)."""

    node: str
    macs: int
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


Factors = tuple["OperandFormat", ...]
Price = Callable[[Layer, Candidate, Factors], float]
"""A layer, what it is computed in, and the formats of its factors (none in float32) -> its cost."""


def bits(layer: Layer, candidate: Candidate, factors: Factors) -> float:
    """Bits of both factors as they are kept, with their scales: what a layer reads."""
    from quantize.formats.operand_format import OperandFormat
    from quantize.formats.storage import operand_bits

    held = factors or (OperandFormat(FLOAT32),) * 2
    return float(sum(operand_bits(s, f) for s, f in zip(layer.shapes, held, strict=True)))


def energy(picojoules: Mapping[str, float]) -> Price:
    """Microjoules of a layer's multiply-accumulates, and of moving its factors where the table says
    what a byte takes.

    Raises:
        ConfigError: the table says nothing of the numbers of a candidate.
    """

    def price(layer: Layer, candidate: Candidate, factors: Factors) -> float:
        pair = f"{candidate.format} x {candidate.format}"
        spent = microjoules({pair: layer.macs}, {}, picojoules)
        if spent is None:
            raise ConfigError(
                f"the table of energy does not say what a multiply-accumulate of {pair!r} takes; "
                f"it has {', '.join(map(repr, picojoules)) or 'nothing'}"
            )
        moved = memory_microjoules(int(bits(layer, candidate, factors)) // 8, picojoules)
        return spent + (moved or 0.0)

    return price


def gates(circuits: Circuits) -> Price:
    """Gates that are busy: NAND2 equivalents of the candidate's multiply-accumulate, each time that
    a layer does one. Stored integers are summed exactly, stored numbers of formats in float32; of a
    circuit of whole blocks, which has their scales too, it is the share of one product.

    Raises:
        ConfigError: there is no circuit of the candidate in the table.
    """

    def price(layer: Layer, candidate: Candidate, factors: Factors) -> float:
        return layer.macs * _mac(circuits, candidate)

    return price


def _mac(circuits: Circuits, candidate: Candidate) -> float:
    stored = "exact" if INTEGER.fullmatch(candidate.format) else FLOAT32
    return circuits.mac(candidate.format, candidate.accumulate or stored)


LATENCY = "latency"
UNITS = {"bits": "bits", "gates": "NAND2", "energy": "uJ", LATENCY: "us"}


def price_of(
    cost: str, picojoules: Mapping[str, float] | None, circuits: Path | None = None
) -> Price | None:
    """How layers are charged; None by what is measured (`experiments.cheapest.timing`).

    Raises:
        ConfigError: there is no such cost, energy without a table, or a table for another cost.
    """
    if cost not in UNITS:
        raise ConfigError(unknown("cost", cost, list(UNITS)))
    if circuits is not None and cost != "gates":
        raise ConfigError(f"a table of circuits is for cost 'gates', not {cost!r}")
    if picojoules and cost != "energy":
        raise ConfigError(f"a table of picojoules is for cost 'energy', not {cost!r}")
    if cost == "gates":
        return gates(table(circuits))
    if cost == LATENCY:
        return None
    if cost == "bits":
        return bits
    if not picojoules:
        raise ConfigError(
            "cost='energy' needs a table of picojoules, for example "
            "{'int8 x int8': 0.23, 'posit8_es1': 0.4, 'memory': 20}"
        )
    for key, price in picojoules.items():
        check_key(key)
        if not 0 <= price < math.inf:
            raise ConfigError(f"picojoules of {key!r} must be a number of at least 0, not {price}")
    return energy(picojoules)
