"""What a network's operations cost by one source: a published table, a gate model, synthesized
circuits, or the tables of a specification. The figures of one row all have the same source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from compiler.errors import ConfigError, DtypelabError, unknown
from compiler.op.accumulate import CERTIFIED
from experiments.costs import circuits, gate_model, published

from . import number_systems
from .energy import Spent, mean_of_pairs, memory_microjoules, spent

if TYPE_CHECKING:
    from collections.abc import Callable

OWN = "specification"
"""The source of a specification's own tables."""
NAMED = 5
"""Operators that a note names."""
Table = Mapping[str, float]


@dataclass(frozen=True)
class Prices:
    """The tables of one source.

    Attributes:
        source: its name.
        energy: picojoules, with the keys of `energy.check_key`.
        gates, area: operands of multiply-accumulates, with the keys of `energy.check_pair` -> gates
            and square micrometres of a unit that does one.
        operations: `energy` has prices of additions, products and maxima, of which other operators
            are made; else what it does not name is free.
    """

    source: str
    energy: Table = field(default_factory=dict)
    gates: Table = field(default_factory=dict)
    area: Table = field(default_factory=dict)
    operations: bool = False
    sums: str = ""


class Counted(Protocol):
    """What a network does, as `ModelCost` and `Variant` have it."""

    @property
    def macs_by_dtypes(self) -> Mapping[str, int]:
        """Multiply-accumulates by their operands, as "DATA x WEIGHTS"."""

    @property
    def elements(self) -> Mapping[str, int]:
        """Elements of results, by "OPERATOR DTYPE"."""

    @property
    def operations(self) -> Mapping[str, Mapping[str, int]]:
        """Key of `elements` -> the operations that it is made of."""

    @property
    def traffic_bytes(self) -> int:
        """Bytes that are read and written."""


@dataclass(frozen=True)
class Costs:
    """What a network costs by one source, None where it does not say: gates and square micrometres
    of the unit that does a multiply-accumulate, the mean over all of them; microjoules of an input,
    `energy_uj` being the sum of the others (None where multiply-accumulates have no price).

    `notes`: what a reader must know.
    """

    cost_source: str
    mac_gates: float | None
    mac_area_um2: float | None
    energy_uj: float | None
    energy_mac_uj: float | None
    energy_other_uj: float | None
    energy_memory_uj: float | None
    notes: str = ""


def _gate_model(numbers: Iterable[str], accumulate: str) -> Prices:
    found: dict[str, float] = {}
    for name in numbers:
        number = number_systems.block_element(name) or name
        try:
            found[number] = gate_model.gates(number).total
        except DtypelabError:  # the model has no such format; the row is empty there
            continue
    return Prices("gate_model", gates=found)


def _circuits(numbers: Iterable[str], accumulate: str) -> Prices:
    """Sums of integers are exact; those of formats are as the row says. Certified ones cost what
    exact ones of any weights do, which is more than an accumulator of the certificate's width."""
    areas = circuits.table().macs().items()
    accumulate = "exact" if accumulate == CERTIFIED else accumulate
    sums = {
        name: "exact" if name.startswith(("int", "uint")) else accumulate for (name, _), _ in areas
    }
    gates = {name: area for (name, mode), area in areas if mode == sums[name]}
    return Prices("circuits", gates=gates, sums=accumulate)


def _published(name: str, numbers: Iterable[str], accumulate: str) -> Prices:
    energy, area = published.picojoules(name), published.areas(name)
    return Prices(name, energy, area=area, operations=True)


_OF: dict[str, Callable[[Iterable[str], str], Prices]] = {
    "gate_model": _gate_model,
    "circuits": _circuits,
    **{name: partial(_published, name) for name in published.SOURCES},
}
SOURCES = tuple(_OF)


def check_source(name: str) -> None:
    """Raise a ConfigError unless there is a source of costs called so."""
    if name not in _OF:
        raise ConfigError(unknown("source of costs", name, SOURCES))


def prices_of(source: str, macs: Mapping[str, int], accumulate: str) -> Prices:
    """The tables of a source, as far as they are about a network.

    Args:
        macs: "DATA x WEIGHTS" -> its multiply-accumulates.
        accumulate: how it sums, in a format's row.

    Raises:
        ConfigError: there is no such source.
    """
    check_source(source)
    numbers = dict.fromkeys(n for pair in macs for n in pair.split(" x "))
    return _OF[source](numbers, accumulate)


def costs_of(done: Counted, prices: Prices) -> Costs:
    """What a network costs by one source."""
    macs = done.macs_by_dtypes
    operations = done.operations if prices.operations else {}
    found = spent(macs, done.elements, operations, prices.energy) if prices.energy else None
    memory = memory_microjoules(done.traffic_bytes, prices.energy)
    gates, area = (mean_of_pairs(macs, t) if t else None for t in (prices.gates, prices.area))
    return Costs(
        prices.source,
        gates,
        area,
        None if found is None else found.total_uj + (memory or 0.0),
        None if found is None else found.mac_uj,
        None if found is None else found.other_uj,
        memory,
        _notes(prices, macs, found, gates is not None or area is not None),
    )


def _notes(prices: Prices, macs: Mapping[str, int], found: Spent | None, sized: bool) -> str:
    """What is to say where a source has nothing of a network's numbers, or of some operators."""
    if prices.source == OWN:  # whose writer knows
        return ""
    if macs and found is None and not sized:
        sums = f" with sums {prices.sums}" if prices.sums else ""
        tables = [t for t in (prices.energy, prices.gates, prices.area) if t]
        lacking = [
            pair
            for pair in macs
            if not tables or any(mean_of_pairs({pair: 1}, t) is None for t in tables)
        ]
        return f"{prices.source} says nothing of multiply-accumulates of {', '.join(lacking)}{sums}"
    if found is None or not found.free:
        return ""
    more = f" and {len(found.free) - NAMED} more" if len(found.free) > NAMED else ""
    return f"{prices.source} has no price of {', '.join(found.free[:NAMED])}{more}"
