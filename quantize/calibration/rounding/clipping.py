"""Scales of weights with the least error of their layer's results, by trial.

Lin et al., AWQ: Activation-aware Weight Quantization, 2023 (the search for clipping in the authors'
code): the largest weights may be cut off where what is gained for the others is worth more, judged
by the data that the weights multiply. Each scale is searched by itself: a group of weights is
judged as if all others were exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from compiler.types.dtypes import Array
from quantize.calibration.format_scales import held_scales
from quantize.calibration.rounding.problem import Problem
from quantize.config.qconfig import QConfig
from quantize.formats.chosen import Numbers
from quantize.formats.element import element
from quantize.formats.operand_format import OperandFormat
from quantize.plan.params import WeightParams, exact

RATIOS = np.linspace(1.0, 0.5, 21)
"""What the scales that plain rounding uses are multiplied with."""
FORMAT_RATIOS = np.linspace(1.5, 0.5, 41)
"""The same of formats, whose scales have the least error of the weights by then."""
Grouped = Callable[[Array], Array]
"""From anything of the weights' shape to [G, O, K], see `moments.grouped`."""
Real = Callable[[Array], Array]
"""From scales, one for each that there is, to the real weights [G, O, K] that they give."""


def clipped_integers(
    params: WeightParams, weight: Array, grouped: Grouped, task: Problem, config: QConfig
) -> WeightParams:
    """Parameters whose scales are searched, where the weights alone decide them: a scale that is
    larger for the sake of a bias stays."""

    def with_scales(scales: Array) -> WeightParams:
        return replace(params, scales=tuple(map(float, scales)))

    def real(scales: Array) -> Array:
        found = with_scales(scales)
        return grouped(found.quantized(weight) * found.spread(weight.shape))

    def held(scales: Array) -> Array:
        return np.asarray([exact(float(s), config) for s in scales])

    given = np.asarray(params.scales)
    found = _least_error(given, held, real, task, params.group)
    ends = np.maximum(*(np.abs(e) for e in params.ends(weight.shape)))
    covered = params.spread(weight.shape) * ends
    raised = np.zeros(len(given), bool)
    if len(given) == len(weight) and not params.group:
        rows = np.abs(weight).reshape(len(weight), -1).max(axis=1)
        raised = rows * 1.5 < covered.reshape(len(weight), -1).max(axis=1)
    return with_scales(np.where(raised, given, found))


def clipped_format(
    f: OperandFormat, weight: Array, grouped: Grouped, task: Problem, config: QConfig
) -> OperandFormat:
    """A scalar format whose scales are searched."""
    rule = held_scales(config, element(f.format), float(np.abs(weight).max(initial=0.0)))

    def real(scales: Array) -> Array:
        n = Numbers(replace(f, scales=tuple(map(float, scales))))
        scale = n.element_scales(weight, None)
        return grouped(n.real(n.nearest(weight / scale), scale))

    def held(scales: Array) -> Array:
        return np.asarray([rule.nearest(float(s)) for s in scales])

    found = _least_error(np.asarray(f.scales), held, real, task, f.group, FORMAT_RATIOS)
    return replace(f, scales=tuple(map(float, found)))


def _least_error(
    given: Array, held: Real, real: Real, task: Problem, group: int, ratios: Array = RATIOS
) -> Array:
    """The scales with the least error of the results; the largest of equally good ones."""
    best, least = given, np.full(len(given), np.inf)
    for ratio in ratios:
        scales = held(given * ratio)
        losses = _losses(real(scales) - task.target, task.moment, group)
        loss = losses.reshape(-1) if losses.size == len(given) else losses.sum(keepdims=True)[0, 0]
        best, least = np.where(loss < least, scales, best), np.minimum(loss, least)
    return best


def _losses(error: Array, moment: Array, group: int) -> Array:
    """[G, O, groups]: what the errors [G, O, K] of the weights of a group add, alone."""
    size = error.shape[2]
    step = group or size
    parts = [slice(k, min(k + step, size)) for k in range(0, size, step)]
    return np.stack(
        [np.einsum("gok,gok->go", error[:, :, p] @ moment[:, p, p], error[:, :, p]) for p in parts],
        axis=2,
    )
