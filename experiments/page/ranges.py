"""Where the values of a network lie, and how precise a format is there: both by powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import DtypelabError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST, MOST = -40, 40
"""Exponents outside these count as the outermost ones."""


@dataclass(frozen=True)
class Ranges:
    """Share of the values v with 2**e <= |v| < 2**(e + 1), for e = first, first + 1, ...

    Zeros count in the total, but have no place.
    """

    first: int
    weights: tuple[float, ...]
    activations: tuple[float, ...]


def value_ranges(model: str | Path, x: NDArray[Any]) -> Ranges:
    """The float32 weights and activations of a network, the latter for the inputs `x` [n, ...].

    Raises:
        DtypelabError: the model cannot be imported or has several inputs.
    """
    from compiler.interpret import trace
    from compiler.ir.expr import Constant, operands
    from compiler.transform.preparation import prepare
    from experiments import pipeline

    module = prepare(pipeline.load_for_batch(pipeline.model_file(str(model)), x.shape[1:], len(x)))
    constants = {
        a: None for b in module.main.bindings for a in operands(b.value) if isinstance(a, Constant)
    }
    weights = _count([c.data for c in constants if c.dtype.is_float])
    bound = [v for _, v in trace(module, x) if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    activations = _count(bound)
    filled = np.nonzero(weights + activations)[0]
    first, last = (int(filled[0]), int(filled[-1]) + 1) if filled.size else (0, 1)
    shares = [tuple(map(float, counts[first:last])) for counts in (weights, activations)]
    return Ranges(first + LEAST, *shares)


def ranges_at_hand(model: str, x: NDArray[Any]) -> Ranges | None:
    """The ranges of a network of the zoo, or None: a results file does not hold its models."""
    from experiments import zoo

    try:
        if zoo.find(model) is None:
            return None
        return value_ranges(model, x)
    except DtypelabError:
        return None  # made for other inputs than this data set's


def _count(arrays: list[NDArray[Any]]) -> NDArray[np.float64]:
    """Share of the values at each exponent from LEAST to MOST."""
    counts = np.zeros(MOST - LEAST + 1)
    total = sum(a.size for a in arrays)
    for a in arrays:
        finite = np.abs(a[np.isfinite(a) & (a != 0)]).astype(np.float64)
        exponents = np.clip(np.frexp(finite)[1] - 1, LEAST, MOST)
        counts += np.bincount(exponents - LEAST, minlength=len(counts))
    return counts / max(total, 1)


def profile(name: str) -> dict[str, Any] | None:
    """{"first": exponent, "bits": significant bits of every binade from there}; None for what is no
    described format (float32, int8, a datatype of functions)."""
    import datatypes
    from datatypes.formats.profile import precision_profile

    if name not in datatypes.list_formats():
        return None
    binades = precision_profile(datatypes.get(name))
    return {"first": binades[0].exponent, "bits": [b.bits for b in binades]} if binades else None
