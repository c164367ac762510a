"""Observers: what calibration remembers of a value. Streaming, mergeable, of constant size.

`observer` makes the one that a configuration names; `PerChannel` has one for each channel, or each
group of channels.
"""

from __future__ import annotations

from typing import Any

from quantize.calibration.observers.channels import PerChannel
from quantize.calibration.observers.extremes import (
    MeanSigma,
    MinMax,
    MovingAverage,
    Observer,
    Several,
)
from quantize.calibration.observers.histogram import BINS, Histogram
from quantize.calibration.observers.thresholds import (
    KullbackLeibler,
    Levels,
    Percentile,
    PowerOfTwo,
    SquaredError,
)
from quantize.config.qconfig import QConfig
from quantize.plan.params import whole_range

__all__ = [
    "BINS",
    "Histogram",
    "KullbackLeibler",
    "Levels",
    "MeanSigma",
    "MinMax",
    "MovingAverage",
    "Observer",
    "PerChannel",
    "Percentile",
    "PowerOfTwo",
    "Several",
    "SquaredError",
    "observer",
]


def observer(config: QConfig) -> Observer:
    """A fresh observer of the kind that `config.calibrate` names."""
    whole = whole_range(config)
    levels = Levels(whole.qmax - whole.qmin + 1, config.activation_symmetric)
    # Scales that are rounded up to powers of two later are better chosen among them.
    least = PowerOfTwo if config.requantize == "shift" else SquaredError
    made: dict[str, Any] = {
        "minmax": MinMax,
        "moving_average": lambda: MovingAverage(config.momentum),
        "percentile": lambda: Percentile(config.percentile),
        "sigma": lambda: MeanSigma(config.sigmas),
        "kl": lambda: KullbackLeibler(config.kl_bins, levels),
        "mse": lambda: least(levels),
        "power_of_two": lambda: PowerOfTwo(levels),
    }
    result: Observer = made[config.calibrate]()
    return result
