"""From a budget and a target to a plan: which nodes get more precision, found by measuring.

Every plan on the way is one that `calibrate` makes of an ordinary configuration, so a plan found
here can be had again from the overrides that it lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from compiler.errors import ConfigError
from compiler.ir.expr import IRModule, Var
from compiler.types.dtypes import Array
from quantize.annotation.annotate import prepared
from quantize.calibration.running import Batches, Runner
from quantize.config.qconfig import QConfig
from quantize.formats.storage import bits_with_scales
from quantize.plan.plan import Plan
from quantize.search.energies import decibels, energies
from quantize.search.mixed_precision import (
    MORE_BITS,
    Choice,
    left_in_float,
    overriding,
    with_more_bits,
)
from quantize.search.sensitivity import Sensitivity, sensitivities

MOST_PLANS = 32
"""Plans with nodes in float that are measured at most."""
Measure = Callable[[Sequence[Array], Sequence[Array]], float]
"""From a network's first results, batch by batch, and float32's, to a figure: more is better."""


def agreement(found: Sequence[Array], reference: Sequence[Array]) -> float:
    """Share of inputs that get the same answer: the largest score of every row of their scores (all
    but the first axis, along the last) is at the same place. From 0 to 1.

    Raises:
        ConfigError: the results are no scores [inputs, ..., classes].
    """
    if any(a.ndim < 2 for a in reference):
        raise ConfigError(
            "agreement is that of scores [inputs, ..., classes], but the first result has no axis "
            'of classes: use target_metric = "sqnr"'
        )
    same = [
        (a.argmax(axis=-1) == b.argmax(axis=-1)).reshape(len(a), -1).all(axis=1)
        for a, b in zip(found, reference, strict=True)
    ]
    return float(np.concatenate(same).mean())


def sqnr(found: Sequence[Array], reference: Sequence[Array]) -> float:
    """Signal to quantization noise ratio in decibels, over all arrays together."""
    noise = signal = 0.0
    for a, b in zip(found, reference, strict=True):
        of_signal, of_noise = energies(a, b)
        signal, noise = signal + of_signal, noise + of_noise
    return decibels(signal, noise)


MEASURES: Mapping[str, Measure] = {"agreement": agreement, "sqnr": sqnr}


@dataclass(frozen=True)
class _Search:
    """A network, its data, and how plans of it are made."""

    module: IRModule
    batches: Batches
    calibrated: Callable[[QConfig], Plan]
    measure: Measure
    metric: str
    threads: int

    def sensitivities(self, config: QConfig) -> tuple[Sensitivity, ...]:
        """What each node does alone under `config`."""
        plain = replace(config, bias_correction="none", format_bias_correction="none")
        plan = self.calibrated(plain)
        return sensitivities(self.module, plan, self.batches, self.threads)

    def leaving(self, config: QConfig, left: Sequence[Choice]) -> Plan:
        """The plan with some nodes in float, which say why."""
        plan = self.calibrated(overriding(config, [c.node for c in left], skip=True))
        nodes = dict(plan.nodes)
        for c in left:
            reason = f"its quantization alone adds {_noise(c)}"
            nodes[c.node] = replace(nodes[c.node], reason=reason)
        return replace(plan, nodes=nodes)

    def figure(self, plan: Plan, reference: Sequence[Array]) -> float:
        """How good the integer graph of a plan is."""
        from quantize.realization.realize import realize

        return self.measure(self.results(realize(self.module, plan)), reference)

    def results(self, module: IRModule) -> list[Array]:
        """The first result of a network, batch by batch."""
        first = module.main.results[0]
        assert isinstance(first, Var)
        run = Runner(module, [first], self.threads)
        return [np.array(run(batch)[0]) for batch in self.batches]


def search(
    mod: IRModule,
    batches: Batches,
    config: QConfig,
    calibrated: Callable[[QConfig], Plan],
    threads: int,
    measure: Measure | None = None,
) -> Plan:
    """The plan of a configuration with `mean_weight_bits`, `float_macs` or `target`.

    First the weights of sensitive nodes get more bits. Then sensitive nodes are left in float:
    without a target as many as `float_macs` allows, with one as few as are found to reach it, in
    blocks of 1, 1, 2, 4 ... nodes, and none that makes the figure worse. `steps` of the plan says
    what was done and measured.

    Args:
        mod: the float32 module.
        batches: the calibration data, which is gone over several times.
        calibrated: makes the plan of a configuration without these three fields.
        measure: judges results instead of `config.target_metric`.

    Raises:
        ConfigError: the target cannot be reached with so little left in float, or
            `mean_weight_bits` is not from the bits of weights to those of sensitive nodes' weights.
    """
    few, wide = _bits(config)
    if config.mean_weight_bits and not few <= config.mean_weight_bits <= wide:
        of = config.weight_format if config.in_formats else "weight_bits"
        raise ConfigError(
            f"mean_weight_bits must be from {of}, {few:g}, to {wide:g}, not "
            f"{config.mean_weight_bits:g}"
        )
    judge = measure or MEASURES[config.target_metric]
    metric = "measure" if measure else config.target_metric
    s = _Search(prepared(mod), batches, calibrated, judge, metric, threads)
    now = replace(config, mean_weight_bits=0.0, wide_weight_dtype="", float_macs=0.0, target=0.0)
    steps: list[str] = []
    if config.mean_weight_bits:
        now = _more_bits(s, now, config, steps)
    plan = s.calibrated(now)
    if config.target:
        plan = _until(s, now, plan, config, steps)
    elif config.float_macs:
        plan = _fill(s, now, plan, config, steps)
    return replace(plan, config=config, steps=tuple(steps))


def _bits(config: QConfig) -> tuple[float, float]:
    """Bits of a weight, and of one of a sensitive node."""
    if not config.in_formats:
        return config.weight_bits, MORE_BITS
    wide = config.wide_weight_dtype or config.weight_format
    return bits_with_scales(config.weight_format), bits_with_scales(wide)


def _more_bits(s: _Search, now: QConfig, config: QConfig, steps: list[str]) -> QConfig:
    fields: dict[str, Any] = {"weight_bits": MORE_BITS}
    if config.in_formats:
        fields = {"weight_dtype": config.wide_weight_dtype}
        fields |= {"weight_bits": 8} if fields["weight_dtype"] == "int8" else {}
    few, more = s.sensitivities(now), s.sensitivities(replace(now, **fields))
    bits, wide = _bits(config)
    choices = with_more_bits(few, more, bits, config.mean_weight_bits, wide)
    held = config.wide_weight_dtype or f"{MORE_BITS} bits"
    for c in choices:
        steps.append(f"{c.node}: weights of {held} save {_noise(c)} of the results")
    return overriding(now, [c.node for c in choices], **fields)


def _fill(s: _Search, now: QConfig, plan: Plan, config: QConfig, steps: list[str]) -> Plan:
    """As much in float as is allowed."""
    choices = left_in_float(s.sensitivities(now), _macs(plan), config.float_macs)
    steps += [f"{c.node}: left in float, which saves {_noise(c)} of the results" for c in choices]
    return s.leaving(now, choices) if choices else plan


def _until(s: _Search, now: QConfig, plan: Plan, config: QConfig, steps: list[str]) -> Plan:
    """As little in float as is found to reach the target.

    Nodes are tried in blocks, the most sensitive first, beside those that are left in float by
    then. Errors of nodes can cancel: a block that makes the figure worse is taken back, and its
    halves are tried later. What a node that is taken back would have cost is free for others.
    At most MOST_PLANS are measured.
    """
    reference = s.results(s.module)
    figure = s.figure(plan, reference)
    steps.append(_measured(s.metric, figure, plan, 0))
    best, left = steps[0], list[Choice]()
    found: tuple[Sensitivity, ...] | None = None
    blocks, tried, plans = deque[Sequence[Choice]](), set[str](), 0
    while not figure >= config.target:
        found = s.sensitivities(now) if found is None else found
        if not blocks:
            share = config.float_macs - sum(c.cost for c in left) / max(_macs(plan), 1)
            fresh = [n for n in found if n.node not in tried]
            blocks += _blocks(left_in_float(fresh, _macs(plan), share))
            tried |= {c.node for block in blocks for c in block}
        if not blocks or plans == MOST_PLANS:
            raise ConfigError(
                f"the target {config.target:g} is not reached with at most "
                f"{100 * config.float_macs:g} % of the multiply-accumulates in float, but this: "
                f"{best}; allow more float_macs, or a lower target"
            )
        block, plans = blocks.popleft(), plans + 1
        other = s.leaving(now, [*left, *block])
        reached = s.figure(other, reference)
        steps.append(_measured(s.metric, reached, other, len(left) + len(block)))
        if reached >= figure:
            plan, figure, best = other, reached, steps[-1]
            left += block
        else:
            steps[-1] += f", worse: without {', '.join(c.node for c in block)} again"
            half = len(block) // 2
            blocks += [part for part in (block[:half], block[half:]) if half]
    return plan


def _blocks(choices: Sequence[Choice]) -> list[Sequence[Choice]]:
    """Choices in blocks of 1, 1, 2, 4, 8 ...: as many as came before."""
    ends = [0, *(1 << k for k in range(len(choices).bit_length() + 1))]
    return [block for a, b in pairwise(ends) if (block := choices[a:b])]


def _macs(plan: Plan) -> int:
    return sum(n.macs for n in plan.nodes.values())


def _measured(metric: str, figure: float, plan: Plan, count: int) -> str:
    unit = " dB" if metric == "sqnr" else ""
    share = f"{100 * (1 - plan.coverage):.2f} % of the multiply-accumulates in float"
    return f"{count} nodes left in float, {share}: {metric} {figure:.4g}{unit}"


def _noise(c: Choice) -> str:
    return f"noise of {c.saved:.3g}"
