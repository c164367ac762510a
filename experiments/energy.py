"""Energy of an input, from a user's table of what operations cost in which numbers."""

from __future__ import annotations

from collections.abc import Mapping

from . import number_systems


def check_key(key: str) -> None:
    """Raise a DtypelabError unless a table of energy may have this key.

    That is the operands of multiply-accumulates, as "uint8 x int8", or their one dtype; or an
    operator and the dtype of its results, as "nn.softmax float32".
    """
    from compiler.op.opdef import get_op

    operator, _, dtype = key.rpartition(" ")
    if not operator or " x " in key:
        for part in key.split(" x "):
            number_systems.check_dtype(part)
        return
    get_op(operator)
    number_systems.check_dtype(dtype)


def microjoules(
    macs: Mapping[str, int], elements: Mapping[str, int], picojoules: Mapping[str, float]
) -> float | None:
    """What one input takes.

    Args:
        macs: "DATA x WEIGHTS" -> multiply-accumulates; a pair that the table does not have costs
            what its second operand's dtype (the weights') does.
        elements: "OPERATOR DTYPE" -> elements of results; what the table does not have is free.
        picojoules: the table.

    Returns:
        None if the table does not say what a multiply-accumulate costs.
    """
    prices = {pair: picojoules.get(pair, picojoules.get(pair.split(" x ")[1])) for pair in macs}
    if None in prices.values():
        return None
    spent = sum(count * (prices[pair] or 0.0) for pair, count in macs.items())
    spent += sum(count * picojoules.get(key, 0.0) for key, count in elements.items())
    return spent * 1e-6
