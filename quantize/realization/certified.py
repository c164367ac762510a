"""Certificates of what a plan makes of a module, by the nodes of the plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from compiler.ir.expr import Call, IRModule
from compiler.transform.certificates import Certificate, certificates
from quantize.plan.plan import Plan
from quantize.realization.format_widths import format_certificate
from quantize.realization.realize import Realizer


def realized_certificates(
    mod: IRModule, plan: Plan
) -> tuple[IRModule, dict[str, str], tuple[Certificate, ...]]:
    """What `realize` makes of a plan, the node of the plan that each of its values is part of, and
    the certificates of its sums, by the names of these values.

    Raises:
        ConfigError: as `quantize.realize`.
    """
    realizer = Realizer(mod, plan, boundary=True)
    realized = realizer.run()
    part_of, found = realizer.part_of, certificates(realized)
    known = {part_of.get(c.node, c.node) for c in found}
    calls = {b.var.name: b.value for b in realizer.graph.f.bindings if isinstance(b.value, Call)}
    stored = [
        format_certificate(name, calls[name], formats, realizer.graph.at)
        for name, formats in plan.formats.items()
        if name not in known and len(formats) > 1 and name in calls
    ]
    order = {name: k for k, name in enumerate(calls)}
    both = sorted([*found, *stored], key=lambda c: order.get(part_of.get(c.node, c.node), 0))
    return realized, part_of, tuple(both)


def with_certified(mod: IRModule, plan: Plan, nodes: Collection[str]) -> Plan:
    """The plan with proven accumulators of these nodes: of as few bits as hold every sum, which
    wrap. Products of 16 bits keep the accumulators that they have.

    Raises:
        ConfigError: as `quantize.realize`.
    """
    if not nodes:
        return plan
    _, part_of, found = realized_certificates(mod, plan.sequential)
    proven = {part_of.get(c.node, c.node): c.accumulate for c in found}
    decided = {
        name: replace(n, accumulate=proven[name])
        for name, n in plan.nodes.items()
        if name in nodes and proven.get(name)
    }
    return replace(plan, nodes={**plan.nodes, **decided})
