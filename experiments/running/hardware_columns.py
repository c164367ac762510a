"""The columns of a row that say what hardware would take: costs by one source, and how wide its
accumulators must be."""

from __future__ import annotations

from dataclasses import asdict

from experiments.results.schema import Value
from experiments.spec.cells import Cell
from experiments.systems import rounding_seeds
from experiments.systems.pipeline import Variant
from experiments.systems.prices import OWN, Prices, costs_of, prices_of

Columns = tuple[dict[str, Value], str]
"""Columns of a row, and what a reader must know of them."""


def cost_columns(cell: Cell, variant: Variant) -> Columns:
    """What the network costs, by the source or the tables that the cell names; none of both."""
    if cell.energy_source:
        prices = prices_of(cell.energy_source, variant.macs_by_dtypes, variant.accumulate)
    elif cell.energy or cell.gates or cell.area:
        names = rounding_seeds.seeded_names(cell.scheme, cell.seed)

        def table(given: tuple[tuple[str, float], ...]) -> dict[str, float]:
            return {rounding_seeds.renamed(key, names): value for key, value in given}

        prices = Prices(OWN, table(cell.energy), table(cell.gates), table(cell.area))
    else:
        return {}, ""
    found = asdict(costs_of(variant, prices))
    notes = found.pop("notes")
    return found, notes


def accumulator_columns(cell: Cell, variant: Variant) -> Columns:
    """The widest of the accumulators that provably hold every sum, if the cell asks for them."""
    if not cell.certificates:
        return {}, ""
    found = variant.certify()
    known = [c for c in found if not c.reason]
    reasons = {c.reason: c.node for c in found if c.reason}
    said = [f"no certificate of {node}: {reason}" for reason, node in reasons.items()]
    if not known:
        return {}, "; ".join(said)
    widest = max(known, key=lambda c: c.bits)
    columns: dict[str, Value] = {
        "accumulator_bits": widest.bits,
        "accumulator_data_bits": max(c.data_bits for c in known) or None,
        "accumulator_node": widest.node,
    }
    return columns, "; ".join(said)
