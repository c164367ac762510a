"""Workloads: the distinct loop nests of a module, by the hash of their text."""

from __future__ import annotations

import re

from compiler.target.registry import Target
from compiler.tensor.identity import digest
from compiler.tensor.stmt import PrimFunc

_LITERAL = re.compile(r"\b([a-z]+\d+)\((?:-?[\d.]+(?:e[+-]?\d+)?|-?inf|nan)\)")


def workload_key(f: PrimFunc, target: Target) -> str:
    """16 hexadecimal digits for an unscheduled loop nest and its target.

    Literal numbers of the arithmetic (scales, zero points) are left out: no tile depends on them,
    and they change with every calibration.
    """
    return digest(_LITERAL.sub(r"\1(#)", str(f)), str(target))


def summary(f: PrimFunc) -> str:
    """Name, parameters and results of a loop nest, in one line for people."""
    head = str(f).split("\n", 1)[0]
    return head.removeprefix("primfunc @").removesuffix(" {")
