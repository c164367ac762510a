"""SQNR and cosine of outputs that come a batch at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class NoiseSums:
    """Sums of squares of what was wanted, of what was found, of their difference and of their
    products, of each batch; `metrics.sqnr_db` and `metrics.cosine` of all of them together, up to
    the order of the sums."""

    _sums: list[tuple[float, Array]] = field(default_factory=list)
    _finite: bool = True
    _same: bool = True

    def add(self, values: Array, reference: Array) -> None:
        """Take in a batch, of one shape."""
        v, r = (a.astype(np.float64).ravel() for a in (values, reference))
        self._finite &= bool(np.isfinite(v).all() and np.isfinite(r).all())
        self._same &= bool(np.array_equal(v, r))
        if not self._finite or not v.size:
            return
        # Scaled, so that squares are inside float64 whatever the values are.
        scale = max(float(np.abs(v).max()), float(np.abs(r).max())) or 1.0
        v, r = v / scale, r / scale
        self._sums.append((scale, np.array([r @ r, v @ v, np.square(v - r).sum(), v @ r])))

    @property
    def sqnr_db(self) -> float:
        """See `metrics.sqnr_db`."""
        if not self._finite:
            return math.nan
        signal, _, noise, _ = self._total()
        if self._same or noise == 0.0:
            return math.inf
        return 10.0 * math.log10(signal / noise) if signal > 0.0 else -math.inf

    @property
    def cosine(self) -> float:
        """See `metrics.cosine`."""
        if not self._finite:
            return math.nan
        wanted, found, _, product = self._total()
        if wanted == 0.0 or found == 0.0:
            return 1.0 if wanted == found else 0.0
        return min(1.0, max(-1.0, product / math.sqrt(wanted * found)))

    def _total(self) -> tuple[float, ...]:
        most = max((scale for scale, _ in self._sums), default=1.0)
        parts = [sums * (scale / most) ** 2 for scale, sums in self._sums]
        return tuple(map(float, np.sum(parts, axis=0))) if parts else (0.0,) * 4
