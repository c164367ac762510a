"""From sums to the grid of a result: scales, the bounds of integers, and what scales must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import ConfigError
from compiler.types.dtypes import Array
from quantize.plan.params import ValueParams


def check_fits(name: str, reach: float, out: ValueParams) -> None:
    """Check that results of magnitude `reach` are far below 2^31 units of `out`.

    Raises:
        ConfigError: they are not.
    """
    if reach >= out.scale * 2.0**30:
        raise ConfigError(
            f"the plan's scale {out.scale!r} of {name!r} is too small: the node can reach "
            f"{reach:.3g}, which 32 bits do not hold; use {reach / 2.0**24:.3g} or more"
        )


def units(unit: Array, out: ValueParams, rounding: str) -> Array:
    """How many steps of `out` a `unit` is: for `float32` the quotient of float32 numbers, which is
    onnxruntime's too (an ulp more or less decides halves), otherwise of float64 ones."""
    if rounding == "float32":
        return np.asarray(unit, np.float32) / np.float32(out.scale)
    return np.asarray(unit / out.scale, np.float64)


def limits(params: ValueParams, bounds: tuple[float, float] = (-np.inf, np.inf)) -> dict[str, Any]:
    """Attributes that give the result's dtype and the integers it is clipped to."""
    return {
        "out_dtype": params.dtype,
        "qmin": params.clipped(bounds[0]),
        "qmax": params.clipped(bounds[1]),
    }


def ratio(x: ValueParams, out: ValueParams, rounding: str) -> float:
    """The scale of `x` in units of `out`, as an arithmetic of requantize holds it."""
    exact = x.scale / out.scale
    return float(np.float32(exact)) if rounding == "float32" else exact


def check_shift(name: str, rounding: str, scale: Array) -> None:
    """Check that scales are powers of two where they are to be shifts.

    Raises:
        ConfigError: they are not.
    """
    if rounding == "shift" and (np.frexp(scale)[0] != 0.5).any():
        raise ConfigError(
            f"{name!r} cannot be scaled by shifts: the plan's scales are no powers of two; "
            "calibrate with requantize='shift'"
        )
