"""Energy of an input, from a user's table of what operations cost in which numbers, and moving
bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from . import number_systems

#: The key of what moving a byte costs.
MEMORY = "memory"

_INTEGER = re.compile(r"(u?int)(\d+)")
_CUSTOM = re.compile(r"custom\[\w+\]\d+")


def check_key(key: str) -> None:
    """Raise a DtypelabError unless a table of energy may have this key.

    That is the operands of multiply-accumulates, as "uint8 x int8", or their one number system; an
    operator and the number system of its results, as "nn.softmax float32"; or "memory".
    """
    from compiler.op.library import get_op

    if key == MEMORY:
        return
    operator, _, dtype = key.rpartition(" ")
    if not operator or " x " in key:
        for part in key.split(" x "):
            number_systems.check_number(part)
        return
    get_op(operator)
    number_systems.check_number(dtype)


def check_pair(key: str) -> None:
    """Raise a DtypelabError unless a table of gates or areas may have this key: the operands of
    multiply-accumulates, or their one number system."""
    for part in key.split(" x "):
        number_systems.check_number(part)


def microjoules(
    macs: Mapping[str, int], elements: Mapping[str, int], picojoules: Mapping[str, float]
) -> float | None:
    """What one input takes, without what moves.

    Names of number systems are those that a plan gives: "uint4", "mxfp8_e4m3", "posit16_es1". What
    the table does not name costs what it says of: the elements of a block format; the narrowest
    integers that are wide enough (`int8` for "uint4"), of the same sign if it has those.

    Args:
        macs: "DATA x WEIGHTS" -> multiply-accumulates; a pair that the table does not have costs
            what its wider operand does (the weights, if they are alike).
        elements: "OPERATOR DTYPE" -> elements of results; what the table does not have is free.
        picojoules: the table.

    Returns:
        None if the table does not say what a multiply-accumulate costs.
    """
    found = spent(macs, elements, {}, picojoules)
    return None if found is None else found.total_uj


@dataclass(frozen=True)
class Spent:
    """Microjoules of one input: of multiply-accumulates, of the other operators, and of both.

    `free`: keys of `elements` that the table says nothing of.
    """

    mac_uj: float
    other_uj: float
    total_uj: float
    free: tuple[str, ...]


def spent(
    macs: Mapping[str, int],
    elements: Mapping[str, int],
    operations: Mapping[str, Mapping[str, int]],
    picojoules: Mapping[str, float],
) -> Spent | None:
    """As `microjoules`, in parts.

    Args:
        operations: key of `elements` -> what it is made of, "add float32" -> how many; priced where
            the table does not name the operator itself.
    """
    picojoules = {_in_short(key): price for key, price in picojoules.items()}
    prices = {pair: _price_of_pair(pair, picojoules) for pair in macs}
    if None in prices.values():
        return None
    of_macs = sum(count * (prices[pair] or 0.0) for pair, count in macs.items())
    known, free, others = _numbers(picojoules), [], []
    for key, count in elements.items():
        price = _price_of_element(key, picojoules, known)
        parts = operations.get(key, {})
        each = [(n, _price_of_element(part, picojoules, known)) for part, n in parts.items()]
        if price is None and (key not in operations or any(pj is None for _, pj in each)):
            free.append(key)
        elif price is not None:
            each = [(count, price)]
        others.append(sum(n * (pj or 0.0) for n, pj in each))
    total = reduce(add, others, of_macs)
    return Spent(of_macs * 1e-6, reduce(add, others, 0.0) * 1e-6, total * 1e-6, tuple(free))


def mean_of_pairs(macs: Mapping[str, int], table: Mapping[str, float]) -> float | None:
    """The mean over all multiply-accumulates of what a table says of their operands; None if it
    does not of some, or there are none."""
    table = {_in_short(key): value for key, value in table.items()}
    found = {pair: _price_of_pair(pair, table) for pair in macs}
    if not found or None in found.values():
        return None
    return sum(n * (found[pair] or 0.0) for pair, n in macs.items()) / sum(macs.values())


def memory_microjoules(traffic_bytes: int, picojoules: Mapping[str, float]) -> float | None:
    """What moving so many bytes takes; None if the table does not say."""
    return traffic_bytes * picojoules[MEMORY] * 1e-6 if MEMORY in picojoules else None


def _in_short(key: str) -> str:
    """A key with the names that costs have for dtypes."""
    from compiler.transform.analysis import number_name
    from compiler.types.dtypes import DType

    return _CUSTOM.sub(lambda found: number_name(DType.parse(found[0])), key)


def _price_of_pair(pair: str, picojoules: Mapping[str, float]) -> float | None:
    known = _numbers(picojoules)
    data, weights = pair.split(" x ")
    pairs = (f"{a} x {b}" for a in _stand_ins(data, known) for b in _stand_ins(weights, known))
    found = _first(pairs, picojoules)
    if found is not None:
        return found
    bits = [number_systems.number_bits(name) for name in (data, weights)]
    return _first(_stand_ins(data if bits[0] > bits[1] else weights, known), picojoules)


def _price_of_element(key: str, picojoules: Mapping[str, float], known: set[str]) -> float | None:
    """What an element of "OPERATOR DTYPE" costs, by the best name of its numbers."""
    operator, _, dtype = key.rpartition(" ")
    return _first((f"{operator} {name}" for name in _stand_ins(dtype, known)), picojoules)


def _numbers(picojoules: Mapping[str, float]) -> set[str]:
    """The number systems that a table names."""
    return {part for key in picojoules for part in key.rpartition(" ")[2:] + _data(key)}


def _data(key: str) -> tuple[str, ...]:
    return tuple(key.split(" x ")[:1]) if " x " in key else ()


def _stand_ins(name: str, known: set[str]) -> Iterator[str]:
    """Names by which a table may say what numbers cost, the best first."""
    yield name
    if (element := number_systems.block_element(name)) is not None:
        yield element
    if (integer := _INTEGER.fullmatch(name)) is None:
        return
    wider = [(int(m[2]), m[1] != integer[1], m[0]) for m in map(_INTEGER.fullmatch, known) if m]
    yield from (text for bits, _, text in sorted(wider) if bits >= int(integer[2]))


def _first(names: Iterator[str], picojoules: Mapping[str, float]) -> float | None:
    return next((picojoules[name] for name in names if name in picojoules), None)
