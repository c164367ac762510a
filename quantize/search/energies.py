"""Signal and noise, which every ratio of the two is made of."""

from __future__ import annotations

import numpy as np

from compiler.types.dtypes import Array


def energies(found: Array, reference: Array) -> tuple[float, float]:
    """The sums of squares of what was wanted, and of how far from it what was found is; both of
    one shape, real, the sums in float64."""
    wanted = reference.astype(np.float64, copy=False)
    return float(np.square(wanted).sum()), float(np.square(found - wanted).sum())
