"""Weights in number formats and block formats, chosen by the data of their layer.

GPTQ needs of a grid only that it can be rounded to. The scale of a block is found when the first of
its inputs is reached, from its weights as they are by then: moved by the errors of all inputs
before (as in Egiazarian et al., Bridging the Gap Between Promise and Performance for Microscaling
FP4 Quantization, 2025). Blocks with the largest inputs come first, and the largest inputs first in
them ("act-order").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from compiler.types.dtypes import Array
from quantize.calibration.rounding.gptq import BLOCK, compensated
from quantize.calibration.rounding.problem import Problem
from quantize.formats.chosen import Numbers, with_choice
from quantize.formats.operand_format import OperandFormat, flattened

SCALE_STEPS = (0, -1, 1, -2, 2, -3)
"""What is tried for the scale of a block, in steps from the rule's, where the error of the results
decides; the first of equally good ones is taken."""
Grouped = Callable[[Array], Array]
"""From anything of the weights' shape to [G, O, K], see `moments.grouped`."""


def chosen_in_format(
    f: OperandFormat, weight: Array, grouped: Grouped, task: Problem, compensate: bool, clip: bool
) -> OperandFormat:
    """The format with the numbers chosen for a layer's weights, which are no worse than the nearest
    for any output.

    Args:
        f: a format, or a block format, with the scales of plain rounding.
        weight: float32, the layer's weights.
        task: the layer's; of its integers nothing is read.
        compensate: whether inputs make up for the errors of those before (GPTQ), or every weight
            becomes the number nearest to it.
        clip: whether the scales of blocks are those of least error of the results.
    """
    return _Layer(f, weight, grouped, task, clip).chosen(compensate)


class _Layer:
    def __init__(
        self, f: OperandFormat, weight: Array, grouped: Grouped, task: Problem, clip: bool
    ):
        self.f, self.weight, self.grouped, self.task = f, weight, grouped, task
        self.clip, self.numbers = clip, Numbers(replace(f, rounding="", scale_steps=""))
        n = self.numbers
        self.middles = (n.values[1:] + n.values[:-1]) / 2
        flat = flattened(weight.shape, f)
        self.plain = n.plain_scales(weight.reshape(flat)) if n.block is not None else None
        self.scale = grouped(n.element_scales(weight, self.plain)).copy()
        self.blocks: Array | None = None
        if self.plain is not None:
            count = np.arange(self.plain.size).reshape(self.plain.shape)
            self.blocks = grouped(n.spread(count, flat).reshape(weight.shape))

    def chosen(self, compensate: bool) -> OperandFormat:
        """See `chosen_in_format`."""
        n = self.numbers
        plain = n.nearest(np.float32(self.grouped(self.weight)) / self.scale.astype(np.float32))
        plain_scale = self.scale.copy()
        places = np.empty(plain.shape, plain.dtype)
        steps = None if self.plain is None else np.array(np.ravel(self.plain))
        for g in range(len(plain)):
            self._group(g, places, steps, compensate)
        old, new = n.real(plain, plain_scale), n.real(places, self.scale)
        worse = self._loss(new) > self._loss(old)
        places = np.where(worse[..., None], plain, places)
        if steps is not None and self.blocks is not None and self.plain is not None:
            back = self.blocks[worse].reshape(-1)
            steps[back] = self.plain.reshape(-1)[back]
        shaped = None if steps is None or self.plain is None else steps.reshape(self.plain.shape)
        return with_choice(self.weight, self.f, places.reshape(self.weight.shape), shaped)

    def _loss(self, real: Array) -> Array:
        error = real - self.task.target
        total: Array = np.einsum("gok,gok->go", error @ self.task.moment, error)
        return total

    def _group(self, g: int, places: Array, steps: Array | None, compensate: bool) -> None:
        """Choose the numbers of one group of the layer."""
        task = self.task
        size = np.diagonal(task.moment[g])
        order, cuts = self._order(g, size)
        moment = task.moment[g][np.ix_(order, order)]
        base = task.target if compensate else task.weight
        work = base[g][:, order][None].copy()

        def rounded(j: int, column: Array) -> Array:
            scale = self.scale[g, :, order[j]].astype(np.float64)
            found = np.searchsorted(self.middles, column[0] / scale)
            places[g, :, order[j]] = found
            return np.asarray((self.numbers.values[found] * scale)[None])

        def opened(start: int, end: int, part: Array) -> None:
            if steps is None or self.blocks is None:
                return
            columns = order[start:end]
            found = self._scales(part[0], moment[start:end, start:end])
            steps[self.blocks[g][:, columns[0]]] = found
            self.scale[g][:, columns] = self.numbers.scales[found][:, None]

        if compensate:
            compensated(work, moment[None], cuts, rounded, opened)
            return
        for start, end in pairwise(cuts):
            opened(start, end, work[:, :, start:end])
            for j in range(start, end):
                rounded(j, work[:, :, j])

    def _order(self, g: int, size: Array) -> tuple[Array, list[int]]:
        """The inputs, those with the largest data first, and between which of them blocks end."""
        count = len(size)
        if self.blocks is None:
            cuts = [*range(0, count, BLOCK), count]
            return np.argsort(-size, kind="stable"), cuts
        _, block = np.unique(self.blocks[g][0], return_inverse=True)
        total = np.bincount(block, weights=size)
        rank = np.empty(len(total), int)
        rank[np.argsort(-total, kind="stable")] = np.arange(len(total))
        order = np.lexsort((-size, rank[block]))
        ends = np.flatnonzero(np.diff(block[order])) + 1
        return order, [0, *map(int, ends), count]

    def _scales(self, part: Array, moment: Array) -> Array:
        """The places of the scales of one block of all rows, from its weights [O, B]."""
        n = self.numbers
        rule = n.scale_places(np.abs(part).max(axis=1).astype(np.float32))
        if not self.clip:
            return rule
        best, least = rule, np.full(len(part), np.inf)
        for step in SCALE_STEPS:
            tried = np.clip(rule + step, 0, len(n.scales) - 1)
            scale = n.scales[tried].astype(np.float64)[:, None]
            error = n.values[np.searchsorted(self.middles, part / scale)] * scale - part
            loss = np.einsum("ok,ok->o", error @ moment, error)
            best, least = np.where(loss < least, tried, best), np.minimum(loss, least)
        return best
