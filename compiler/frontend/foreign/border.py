"""Which nodes of a model onnxruntime is given: those that we cannot convert, and as few others as
possible, so that what goes in and out of each region is tensors that we have."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.frontend.foreign.kinds import is_foreign
from compiler.frontend.local_functions import all_nodes


@dataclass(frozen=True)
class Unit:
    """What is imported at once: a node, or a region of several.

    Attributes:
        nodes: NodeProtos, in the model's order.
        foreign: whether onnxruntime computes them.
    """

    nodes: tuple[Any, ...]
    foreign: bool = False

    @property
    def reads(self) -> list[str]:
        """Names of the values that come from outside."""
        made = set(self.writes)
        names = (name for n in self.nodes for name in operands_of(n))
        return [name for name in dict.fromkeys(names) if name not in made]

    @property
    def writes(self) -> list[str]:
        """Names of the values that its nodes compute."""
        return [o for n in self.nodes for o in n.output if o]


def operands_of(node: Any) -> Iterator[str]:
    """Names of the values that a node reads, those that its subgraphs see included."""
    yield from (i for i in node.input if i)
    for g in (g for a in node.attribute for g in [*([a.g] if a.HasField("g") else []), *a.graphs]):
        own = {v.name for v in [*g.input, *g.initializer]}
        own |= {t.values.name for t in g.sparse_initializer}
        own |= {o for n in g.node for o in n.output}
        read = [name for n in g.node for name in operands_of(n)]
        yield from (x for x in [*read, *(o.name for o in g.output)] if x and x not in own)


@dataclass
class Border:
    """How a graph is divided.

    Attributes:
        graph: the GraphProto.
        kinds: what is known of its values' types.
        refused: whether a node's operator is one that we have no converter for.
    """

    graph: Any
    kinds: Mapping[str, Any]
    refused: Callable[[Any], bool]
    foreign: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.foreign = {name for name, kind in self.kinds.items() if is_foreign(kind)}
        # A sparse weight is a tensor that only onnxruntime reads.
        self.foreign |= {t.values.name for t in self.graph.sparse_initializer}

    def is_seed(self, node: Any) -> bool:
        """Whether a node must be onnxruntime's."""
        values = [*operands_of(node), *node.output]
        return any(v in self.foreign for v in values) or any(
            self.refused(n) for n in all_nodes(_Alone((node,)))
        )

    def units(self) -> list[Unit]:
        """All that is to be imported, in an order in which everything is there when it is read."""
        nodes = list(self.graph.node)
        seeds = [k for k, n in enumerate(nodes) if self.is_seed(n)]
        if not seeds:
            return [Unit((n,)) for n in nodes]
        group = _Groups(len(nodes))
        makers = {o: k for k, n in enumerate(nodes) for o in n.output if o}
        reads = [[makers[v] for v in operands_of(n) if v in makers] for n in nodes]
        for k in seeds:
            for v in operands_of(nodes[k]):
                if v in self.foreign and v in makers:
                    group.join(k, makers[v])
        for circle in _circles(len(nodes), reads, group):
            for k in circle[1:]:
                group.join(circle[0], k)
        regions = {group.of(k) for k in seeds}
        members: dict[int, list[Any]] = {}
        for k, n in enumerate(nodes):
            members.setdefault(group.of(k), []).append(n)
        units = [Unit(tuple(each), k in regions) for k, each in members.items()]
        return _ordered(units)


@dataclass(frozen=True)
class _Alone:
    """Nodes as a graph has them."""

    node: Sequence[Any]


class _Groups:
    """Disjoint sets of numbers; the smallest of a set stands for it."""

    def __init__(self, count: int):
        self._of = list(range(count))

    def of(self, k: int) -> int:
        """What stands for the set of `k`."""
        while self._of[k] != k:
            self._of[k] = self._of[self._of[k]]
            k = self._of[k]
        return k

    def join(self, a: int, b: int) -> None:
        """Make one set of those of `a` and `b`."""
        a, b = sorted((self.of(a), self.of(b)))
        self._of[b] = a


def _circles(count: int, reads: Sequence[Sequence[int]], group: _Groups) -> list[list[int]]:
    """Sets that need each other, of the graph whose nodes are groups (Kosaraju's algorithm): they
    must be one region, or none could be computed first."""
    forwards: list[set[int]] = [set() for _ in range(count)]
    backwards: list[set[int]] = [set() for _ in range(count)]
    for k, needs in enumerate(reads):
        for j in needs:
            if (a := group.of(j)) != (b := group.of(k)):
                forwards[a].add(b)
                backwards[b].add(a)
    order: list[int] = []
    seen: set[int] = set()
    for root in range(count):
        order += _visited(root, forwards, seen)
    seen = set()
    found = [_visited(root, backwards, seen) for root in reversed(order)]
    return [each for each in found if len(each) > 1]


def _visited(root: int, edges: Sequence[set[int]], seen: set[int]) -> list[int]:
    """What can be reached from `root` and is not in `seen`, which it is added to; in the order in
    which a search in depth leaves them."""
    if root in seen:
        return []
    seen.add(root)
    left, out = [(root, iter(edges[root]))], []
    while left:
        ahead = left[-1][1]
        other = next((j for j in ahead if j not in seen), None)
        if other is None:
            out.append(left.pop()[0])
        else:
            seen.add(other)
            left.append((other, iter(edges[other])))
    return out


def _ordered(units: Sequence[Unit]) -> list[Unit]:
    """Units such that each comes after those it reads, otherwise as they are."""
    makers = {name: k for k, u in enumerate(units) for name in u.writes}
    before = [{makers[v] for v in u.reads if v in makers} for u in units]
    after: dict[int, list[int]] = {}
    for k, needs in enumerate(before):
        for j in needs:
            after.setdefault(j, []).append(k)
    left = [len(needs) for needs in before]
    ready = [k for k, n in enumerate(left) if not n]
    out = []
    while ready:
        k = heapq.heappop(ready)
        out.append(units[k])
        for j in after.get(k, ()):
            left[j] -= 1
            if not left[j]:
                heapq.heappush(ready, j)
    return out if len(out) == len(units) else list(units)  # nodes in a circle: import says so
