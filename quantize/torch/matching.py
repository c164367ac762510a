"""Plans of one import of a network, for another: torch folds batch norms before quantizers see a
graph, and so the same values have other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from compiler.errors import ConfigError, unknown
from compiler.ir.expr import IRModule
from quantize.annotation.graph import Graph, inner_calls
from quantize.plan.fingerprint import fingerprint_of, may_vanish
from quantize.plan.plan import Plan

T = TypeVar("T")


def matched(plan: Plan, module: IRModule) -> Plan:
    """`plan` with the names of a prepared module that has the same operators in the same order.

    The weights are not compared: those of a graph in which torch has folded batch norms differ in
    their last bits from those of the network.

    Raises:
        ConfigError: the module has other operators, or the plan other names.
    """
    made = {b.var.name: (b, call) for b, call in Graph(module.main).calls()}
    made |= inner_calls(module.main)
    ops = {k: getattr(call.op, "name", "function") for k, (_, call) in made.items()}
    there = [(k, op) for k, op in ops.items() if not may_vanish(op)]
    given = [(k, n.op) for k, n in plan.nodes.items() if not may_vanish(n.op)]
    other = "the plan was made for another model"
    for (old, op), (new, wanted) in zip(given, there, strict=False):
        if op != wanted:
            raise ConfigError(f"{other}: its node {old!r} is {op}, and {new!r} there {wanted}")
    if len(given) != len(there):
        raise ConfigError(f"{other}: it has {len(given)} operators, and the graph {len(there)}")
    names = {old: new for (old, _), (new, _) in zip(given, there, strict=True)}
    names |= {p.name: p.name for p in module.main.params}
    for what, entries in (("values", plan.values), ("weights", plan.weights)):
        for name in entries:
            if name not in names:
                raise ConfigError(f"the plan's {what}: {unknown('value', name, names)}")
    origins = {k: b.origins for k, (b, _) in made.items()}
    return _renamed(plan, names, origins, fingerprint_of(module))


def _renamed(
    plan: Plan, names: Mapping[str, str], origins: Mapping[str, tuple[str, ...]], model: str
) -> Plan:
    def keys(entries: Mapping[str, T]) -> dict[str, T]:
        return {names.get(k, k): v for k, v in entries.items()}

    nodes = {
        k: replace(
            n,
            function_of=names.get(n.function_of, n.function_of),
            origins=origins.get(k, n.origins),
        )
        for k, n in keys(plan.nodes).items()
    }
    return replace(
        plan,
        model=model,
        config=replace(plan.config, skip=tuple(names.get(k, k) for k in plan.config.skip)),
        nodes=nodes,
        values=keys(plan.values),
        weights=keys(plan.weights),
        formats=keys(plan.formats),
        shifts=keys(plan.shifts),
    )
