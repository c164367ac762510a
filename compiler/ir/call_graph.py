"""Which functions of a module call which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compiler.ir.expr import Call, Function, GlobalVar, IRModule, nested


def globals_of(f: Function) -> set[str]:
    """Names of the module's functions that `f`, or a function in it, calls or holds."""
    out: set[str] = set()
    ahead = [f]
    while ahead:
        for b in ahead.pop().bindings:
            v = b.value
            op = v.op if isinstance(v, Call) else v
            if isinstance(op, GlobalVar):
                out.add(op.name)
            ahead += [op] if isinstance(op, Function) else nested(v)
    return out


def callees_first(mod: IRModule) -> list[tuple[str, ...]]:
    """The graph-level functions of a module, each after those that it calls; functions that call
    each other, directly or through others, stand together (R. Tarjan's strongly connected
    components, 1972, without recursion)."""
    graph = {name: f for name, f in mod.functions.items() if isinstance(f, Function)}
    calls = {name: [g for g in globals_of(f) if g in graph] for name, f in graph.items()}
    return list(_components(calls))


def _components(calls: Mapping[str, list[str]]) -> Iterator[tuple[str, ...]]:
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: dict[str, None] = {}  # visited, and in no component yet
    for root in calls:
        if root in number:
            continue
        path = [(root, iter(calls[root]))]
        number[root] = lowest[root] = len(number)
        open_[root] = None
        while path:
            name, rest = path[-1]
            for callee in rest:
                if callee not in number:
                    number[callee] = lowest[callee] = len(number)
                    open_[callee] = None
                    path.append((callee, iter(calls[callee])))
                    break
                if callee in open_:
                    lowest[name] = min(lowest[name], number[callee])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[name])
                if lowest[name] == number[name]:
                    component = []
                    while name in open_:
                        component.append(open_.popitem()[0])
                    yield tuple(reversed(component))
