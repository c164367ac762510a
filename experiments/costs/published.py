"""Published energies and areas of operations. Every table has one source, and none is mixed with
another: they disagree by up to four times, in what they count as well as in technology."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from compiler.errors import ConfigError, unknown


@dataclass(frozen=True)
class Unit:
    """One operation in one number system.

    Attributes:
        energy_pj: picojoules of a result; None where the source does not say.
        area_um2: square micrometres of a unit; None where the source does not say.
    """

    energy_pj: float | None
    area_um2: float | None = None


@dataclass(frozen=True)
class Source:
    """A published table.

    Attributes:
        name: by which `[energy] source` and commands call it.
        about: what it is, with its reference.
        integers: widths of the integers that it prices.
        floats: names of the floats that it prices.
        add: number system -> an adder.
        multiply: of two number systems -> a multiplier.
        memory_pj: of moving a byte to or from off-chip memory; None where it does not say.
    """

    name: str
    about: str
    integers: tuple[int, ...]
    floats: tuple[str, ...]
    add: Callable[[str], Unit]
    multiply: Callable[[str, str], Unit]
    memory_pj: float | None


ACCUMULATOR = "int32"
"""What sums of integer products are kept in."""


def width(number: str) -> int:
    """Bits of an integer dtype."""
    return int(number.removeprefix("u").removeprefix("int"))


def _horowitz_add(number: str) -> Unit:
    floats = {"float16": 0.4, "float32": 0.9}
    return Unit(floats[number] if number in floats else 0.003125 * width(number))


def _horowitz_multiply(a: str, b: str) -> Unit:
    floats = {"float16": 1.1, "float32": 3.7}
    if a in floats:
        return Unit(floats[a])
    bits = sqrt(width(a) * width(b))
    return Unit(0.002994791667 * bits * bits + 0.001041666667 * bits)


def _aladdin_add(number: str) -> Unit:
    return {"float32": Unit(16.7, 4360.0), "int32": Unit(0.21, 278.0)}[number]


def _aladdin_multiply(a: str, b: str) -> Unit:
    return {"float32": Unit(35.3, 8970.0), "int32": Unit(12.7, 6350.0)}[a]


SOURCES = {
    source.name: source
    for source in (
        Source(
            "horowitz45",
            "45 nm, 0.9 V: M. Horowitz, Computing's Energy Problem (ISSCC 2014), with the "
            "polynomials in the bits of integers and the price of DRAM that qkeras 0.9 fits to it",
            (2, 3, 4, 5, 6, 7, 8, 16, 32),
            ("float16", "float32"),
            _horowitz_add,
            _horowitz_multiply,
            8 * 20.3125,
        ),
        Source(
            "aladdin40",
            "40 nm, 1 ns a cycle: Y. Shao and others, Aladdin (ISCA 2014), functional units of 32 "
            "bits; dynamic energy, of floats over three stages",
            (32,),
            ("float32",),
            _aladdin_add,
            _aladdin_multiply,
            None,
        ),
    )
}


def source_of(name: str) -> Source:
    """The source called so.

    Raises:
        ConfigError: there is none.
    """
    if name not in SOURCES:
        raise ConfigError(unknown("source of energy", name, list(SOURCES)))
    return SOURCES[name]


def picojoules(name: str) -> dict[str, float]:
    """A source as a table of `[energy]`: pairs of operands -> a multiply-accumulate, an operator
    and its number system -> an element, "memory" -> a byte.

    Sums of integer products are in int32. What a source does not say is not in the table.

    Raises:
        ConfigError: there is no such source.
    """
    source = source_of(name)
    integers = [f"int{bits}" for bits in source.integers]
    pairs = [(a, b) for a in integers for b in integers] + [(f, f) for f in source.floats]
    table = {}
    for a, b in pairs:
        unit = mac(source, a, b)
        if unit.energy_pj is not None:
            table[f"{a} x {b}"] = unit.energy_pj
    for number in (*integers, *source.floats):
        for operator, found in (
            *((op, source.add(number)) for op in ("add", "subtract", "maximum", "minimum")),
            ("multiply", source.multiply(number, number)),
        ):
            if found.energy_pj is not None:
                table[f"{operator} {number}"] = found.energy_pj
    if source.memory_pj is not None:
        table["memory"] = source.memory_pj
    return table


def areas(name: str) -> dict[str, float]:
    """Square micrometres of a multiply-accumulate: pairs of operands -> an area, as far as the
    source has them.

    Raises:
        ConfigError: there is no such source.
    """
    source = source_of(name)
    numbers = (*(f"int{bits}" for bits in source.integers), *source.floats)
    found = {f"{n} x {n}": mac(source, n, n).area_um2 for n in numbers}
    return {pair: area for pair, area in found.items() if area is not None}


def mac(source: Source, a: str, b: str) -> Unit:
    """A multiply-accumulate: a product, and a sum in int32 or in the float of the operands."""
    product, total = source.multiply(a, b), source.add(a if a in source.floats else ACCUMULATOR)
    return Unit(_sum(product.energy_pj, total.energy_pj), _sum(product.area_um2, total.area_um2))


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b
