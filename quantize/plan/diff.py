"""plan_diff: what is different between two plans of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantize.plan.plan import Plan

SECTIONS = ("nodes", "values", "weights", "factors", "formats", "shifts")
"""The entries of a plan that are keyed by names."""


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        section: `config`, or one of SECTIONS; empty for what stands beside these.
        name: of a node or value; empty for `config` and what stands beside.
        field: what of it differs; empty where one plan has nothing of that name.
        before, after: JSON-compatible data; None where a plan has nothing.
    """

    section: str
    name: str
    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        where = " ".join(part for part in (self.section, self.name, self.field) if part)
        return f"{where}: {_text(self.before)} -> {_text(self.after)}"


def plan_diff(before: Plan, after: Plan) -> tuple[Change, ...]:
    """All differences, in the order of the plans' entries; empty for equal plans."""
    a, b = before.to_dict(), after.to_dict()
    out = _changes("", "", _rest(a), _rest(b))
    out += _changes("config", "", a["config"], b["config"])
    for section in SECTIONS:
        mine, theirs = a.get(section, {}), b.get(section, {})
        for name in dict.fromkeys([*mine, *theirs]):
            if name not in mine or name not in theirs:
                out.append(Change(section, name, "", mine.get(name), theirs.get(name)))
            elif isinstance(mine[name], Mapping):
                out += _changes(section, name, mine[name], theirs[name])
            elif mine[name] != theirs[name]:
                out.append(Change(section, name, "", mine[name], theirs[name]))
    return tuple(out)


def _rest(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in plan.items() if k not in (*SECTIONS, "config")}


def _changes(
    section: str, name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Change]:
    return [
        Change(section, name, field, before.get(field), after.get(field))
        for field in dict.fromkeys([*before, *after])
        if before.get(field) != after.get(field)
    ]


def _text(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list) and len(value) > 4:
        return f"[{', '.join(map(_text, value[:3]))}, ... {len(value)} in all]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
