"""An accuracy target: how much of a network stays float until its answers agree with float32's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from compiler.errors import ConfigError
from compiler.transform.analysis import cost
from experiments.accuracy.networks import scores
from experiments.accuracy.tasks import Task
from experiments.measure.statistics import paired_difference


def run(task: Task, fields: dict[str, Any], by_answers: bool) -> bool:
    """Search with the configuration's target on the task's calibration data, print what was done
    and how good the result is on the data set aside, and tell whether the target holds.

    Args:
        fields: of a QConfig with `target` and `float_macs`.
        by_answers: whether agreement is that of the task's answers (words), not that of scores.

    Raises:
        ConfigError: there is no target, or it is not reached.
    """
    import quantize
    from quantize.search.accuracy_target import MEASURES

    def agreeing(found: Sequence[Any], reference: Sequence[Any]) -> float:
        return task.agreement(np.concatenate(found), np.concatenate(reference))

    config = quantize.QConfig(**fields)
    if not config.target:
        raise ConfigError("there is no target: give --target, or target in the configuration")
    module = task.module()
    measure = agreeing if by_answers else None
    plan = quantize.calibrate(module, task.calibration, config, measure=measure)
    realized = quantize.realize(module, plan)
    click.echo("\n".join(plan.steps))
    for name, reason in plan.skipped.items():
        if "alone adds" in reason:
            click.echo(f"  {name}: {plan.nodes[name].macs} multiply-accumulates, {reason}")

    on_calibration = [scores(m, task.calibration) for m in (module, realized)]
    judge = agreeing if by_answers else MEASURES[config.target_metric]
    reached = judge(on_calibration[1:], on_calibration[:1])
    share = cost(realized).integer_share
    what = "agreement of answers" if by_answers else config.target_metric
    held = reached >= config.target and 1 - share <= config.float_macs
    click.echo(
        f"{task.name}: {what} {reached:.4g} on calibration data, target {config.target:g}; "
        f"{100 * share:.2f} % of the multiply-accumulates in integers, at least "
        f"{100 * (1 - config.float_macs):g} %  {'PASS' if held else 'FAIL'}"
    )
    right = [task.right(scores(m, task.batches)) for m in (module, realized)]
    change = paired_difference(*right)
    click.echo(
        f"{task.metric} of {len(task.inputs)}: float32 {100 * right[0].mean():.2f} %, quantized "
        f"{100 * right[1].mean():.2f} %, loss {100 * change.drop:.2f} points, 95 % interval "
        f"[{100 * change.low:.2f}, {100 * change.high:.2f}]"
    )
    return held
