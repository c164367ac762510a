"""Schedule rules from outside the package: they are asked before the default schedule."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from compiler.scheduling import Schedule
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer

ScheduleRule = Callable[[Schedule, str, Target, Collection[Buffer]], bool]
"""(schedule, stage, target, parameters whose arrays are known at build time) -> whether the rule
has scheduled the stage. It may change the stage and the one that reads it by any primitive; where
it returns False, it must have changed nothing."""


@dataclass(frozen=True)
class _Registered:
    rule: ScheduleRule
    op: str
    target: str


_registered: list[_Registered] = []


def register_schedule_rule(rule: ScheduleRule, op: str = "", target: str = "") -> ScheduleRule:
    """Let `rule` schedule stages instead of the default; the rule registered last is asked first.

    Elementwise stages have been inlined by then; what the rule leaves serial is vectorized and run
    in parallel as by default.

    Args:
        rule: see ScheduleRule. It may ask `rule_tile` for the default's tile, change that,
            `apply_tile` it and return True, or use primitives of its own.
        op: ask it about stages of this operator only, e.g. "nn.conv2d".
        target: ask it for this target only, as given to `build`, e.g. "llvm -mcpu=haswell".

    Raises:
        UnsupportedError: the target is unknown.
        DtypelabError: there is no such operator.
    """
    from compiler.op.library import get_op

    if target:
        Target.parse(target)
    if op:
        get_op(op)
    _registered[:] = [r for r in _registered if r.rule is not rule]
    _registered.append(_Registered(rule, op, target))
    return rule


def any_registered() -> bool:
    """Whether there are rules."""
    return bool(_registered)


def registered() -> tuple[tuple[ScheduleRule, str, str], ...]:
    """The rules, in the order of their registration, each with its operator and target."""
    return tuple((r.rule, r.op, r.target) for r in _registered)


def scheduled_by_rule(
    s: Schedule, stage: str, target: Target, constants: Collection[Buffer]
) -> bool:
    """Whether a registered rule has now scheduled the stage."""
    op = s.func.attrs.get("operators", {}).get(stage, "")
    return any(
        r.rule(s, stage, target, constants)
        for r in reversed(_registered)
        if r.op in ("", op) and (not r.target or Target.parse(r.target) == target)
    )
