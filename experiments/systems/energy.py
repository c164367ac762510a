"""Energy of an input, from a user's table of what operations cost in which numbers, and moving
bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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
    picojoules = {_in_short(key): price for key, price in picojoules.items()}
    prices = {pair: _price_of_pair(pair, picojoules) for pair in macs}
    if None in prices.values():
        return None
    spent = sum(count * (prices[pair] or 0.0) for pair, count in macs.items())
    for key, count in elements.items():
        operator, _, dtype = key.rpartition(" ")
        names = (f"{operator} {name}" for name in _stand_ins(dtype, _numbers(picojoules)))
        spent += count * (_first(names, picojoules) or 0.0)
    return spent * 1e-6


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
