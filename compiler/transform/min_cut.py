"""Least cuts of networks of pipes (E. Dinic's algorithm, 1970)."""

from __future__ import annotations

from collections import deque

WIDE = 1 << 62
"""Capacity of what must not be cut."""


class Pipes:
    """A directed graph whose edges have capacities, whole numbers; nodes are counted from 0."""

    def __init__(self, count: int):
        self._edges: list[list[int]] = [[] for _ in range(count)]
        self._to: list[int] = []
        self._left: list[int] = []

    def node(self) -> int:
        """A new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def add(self, a: int, b: int, capacity: int) -> None:
        """An edge from `a` to `b`."""
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            self._edges[start].append(len(self._to))
            self._to.append(end)
            self._left.append(room)

    def least_cut(self, source: int, sink: int) -> tuple[int, set[int]]:
        """The least capacity that cuts `sink` off `source`, and the fewest nodes that can be left
        on the side of the source then: what the source reaches when all that fits flows."""
        total = 0
        while True:
            levels = self._levels(source)
            if sink not in levels:
                return total, set(levels)
            tried = [0] * len(self._edges)
            while flow := self._push(source, sink, levels, tried):
                total += flow

    def _levels(self, source: int) -> dict[int, int]:
        levels, waiting = {source: 0}, deque([source])
        while waiting:
            a = waiting.popleft()
            for k in self._edges[a]:
                b = self._to[k]
                if self._left[k] and b not in levels:
                    levels[b] = levels[a] + 1
                    waiting.append(b)
        return levels

    def _push(self, source: int, sink: int, levels: dict[int, int], tried: list[int]) -> int:
        """What flows along one more path from level to level; 0: there is none."""
        path: list[int] = []
        at = source
        while at != sink:
            edges = self._edges[at]
            while tried[at] < len(edges):
                k = edges[tried[at]]
                if self._left[k] and levels.get(self._to[k]) == levels[at] + 1:
                    break
                tried[at] += 1
            if tried[at] < len(edges):
                path.append(edges[tried[at]])
                at = self._to[path[-1]]
            elif path:
                at = self._to[path.pop() ^ 1]
                tried[at] += 1
            else:
                return 0
        flow = min(self._left[k] for k in path)
        for k in path:
            self._left[k] -= flow
            self._left[k ^ 1] += flow
        return flow
