"""A region becomes a plan: operators that follow a primitive become its post-operations, as many as
oneDNN takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.engines.onednn import contractions as contractions  # registers them
from compiler.engines.onednn.anchors import ANCHORS, VIEWS, Anchor, GetValue, pointwise
from compiler.engines.onednn.chain import Chain, Post
from compiler.engines.onednn.library import Refused
from compiler.engines.onednn.objects import (
    DST,
    POST_OPS,
    SRC_1,
    ZERO_POINTS,
    Attributes,
    Desc,
    Primitive,
    Sum,
)
from compiler.engines.onednn.operators import POSTS, Node, dtype_of, shape_of
from compiler.engines.onednn.plan import Plan, Slot, Value
from compiler.engines.onednn.rewriting import flat
from compiler.ir.expr import Atom, Constant, Function, Var


def planned(f: Function, certain: bool = False) -> Plan:
    """How oneDNN computes a region.

    Args:
        f: the region.
        certain: it is known that oneDNN does each of its composites alone. What it does only by its
            reference code in the orders in which values lie in memory there is done so.

    Raises:
        Refused: it does not; says why.
    """
    return _Translator(f, certain).plan


@dataclass(eq=False)
class _Group:
    """Nodes that one primitive may compute: each but the first reads the one before it, which
    nobody else reads."""

    nodes: list[Node]
    emitted: bool = False


@dataclass
class _Made:
    """A primitive with its post-operations."""

    anchor: Anchor
    primitive: Primitive
    posts: Sequence[Post] = field(default_factory=list)


class _Translator:
    """The plan of a region, made in the order of its nodes."""

    def __init__(self, f: Function, certain: bool):
        self.plan = Plan()
        self._certain = certain
        self._values: dict[Atom, Value] = {}
        self._nodes, results = flat(f)
        self._results = {r for r in results if isinstance(r, Var)}
        self._readers: dict[Var, list[Node]] = {}
        for node in self._nodes:
            for a in node.args:
                if isinstance(a, Var):
                    self._readers.setdefault(a, []).append(node)
        for k, p in enumerate(f.params):
            desc = Desc.plain(shape_of(p) or (1,), dtype_of(p))
            self._values[p] = Value(desc, Slot(desc.size, given=k))
        groups = self._grouped()
        self._left = set(self._nodes)
        for node in self._nodes:
            group = groups[node]
            if group.nodes[-1] is node:
                self._emit(group.nodes)
                self._left -= set(group.nodes)
        for r in results:
            self.plan.give(self._value(r), shape_of(r))

    # ---- groups ----------------------------------------------------------------------------------
    def _grouped(self) -> dict[Node, _Group]:
        groups: dict[Node, _Group] = {}
        for node in self._nodes:
            if node in groups:
                continue
            group = groups[node] = _Group([node])
            if node.name in VIEWS:
                continue
            for reader in self._followers(node):
                if reader in groups or reader.name not in POSTS:
                    break
                group.nodes.append(reader)
                groups[reader] = group
        return groups

    def _followers(self, node: Node) -> Iterator[Node]:
        """The only reader of a node, the only reader of that, and so on."""
        while node.var not in self._results:
            readers = self._readers.get(node.var, [])
            if len(readers) != 1 or readers[0].shape != node.shape:
                return
            node = readers[0]
            yield node

    # ---- values ----------------------------------------------------------------------------------
    def _value(self, a: Atom) -> Value:
        if a not in self._values:
            if not isinstance(a, Constant):
                raise Refused(f"{a!r} is not computed before it is read")
            dtype_of(a)
            self._values[a] = self.plan.constant(np.asarray(a.data))
        return self._values[a]

    def _plain(self, a: Atom) -> Value:
        """The same in C order."""
        return self.plan.plain(self._value(a))

    def _needed(self, slot: Slot, group: Sequence[Node]) -> bool:
        """Whether anything that is still to come, but this group, reads what is in a slot."""
        held = [v for v, value in self._values.items() if isinstance(v, Var) and value.slot is slot]
        return any(
            v in self._results or any(r in self._left and r not in group for r in self._readers[v])
            for v in held
            if v in self._results or v in self._readers
        )

    # ---- primitives ------------------------------------------------------------------------------
    def _emit(self, nodes: Sequence[Node]) -> None:
        """Add what computes a group: the longest part of it that one primitive does, then the
        rest."""
        first = nodes[0]
        if first.name in VIEWS:
            self._values[first.var] = VIEWS[first.name](self.plan, first, self._value)
            return
        if first.name not in ANCHORS and first.name not in POSTS:
            raise Refused(f"{first.name} is none of the operators that are handed to oneDNN")
        count, made = self._longest(nodes)
        last = nodes[count - 1]
        operands = made.anchor.operands(made.primitive)
        for number, zero in made.anchor.zero_points.items():
            operands[ZERO_POINTS + number] = self.plan.constant(np.array([zero], np.int32))
        summed: Value | None = None
        for k, post in enumerate(made.posts):
            if post.operand is None:
                continue
            if isinstance(post.op, Sum):
                summed = post.operand
                continue
            number = POST_OPS * (k + 1) + SRC_1
            operands[number] = self.plan.held(post.operand, made.primitive.desc(number))
        into: Value | None = None
        if summed is not None:
            read = any(v.slot is summed.slot for v in operands.values())
            free = summed.slot.own and not read and not self._needed(summed.slot, nodes[:count])
            into = self.plan.held(summed, made.primitive.desc(DST), own=not free)
        result = self.plan.run(made.primitive, operands, into)
        self._values[last.var] = self.plan.reshaped(result, last.shape or (1,))
        if nodes[count:]:
            self._emit(nodes[count:])

    def _longest(self, nodes: Sequence[Node]) -> tuple[int, _Made]:
        """How many of the nodes one primitive does, and that: on operands as they lie in memory; if
        it does not do the first one so, on operands in C order."""
        reasons: list[Refused] = []
        for value, slowly in (
            (self._value, False), (self._plain, False), (self._value, True),
        )[: 3 if self._certain else 2]:  # fmt: skip
            for count in range(len(nodes), 0, -1):
                steps = len(self.plan.steps)
                try:
                    return count, self._made(nodes[:count], value, slowly)
                except Refused as e:
                    del self.plan.steps[steps:]
                    reasons.append(e)
        texts = dict.fromkeys(map(str, (reasons[0], reasons[-1])))
        raise Refused("; alone: ".join(texts))

    def _made(self, nodes: Sequence[Node], value: GetValue, slowly: bool) -> _Made:
        """One primitive for all these nodes.

        Raises:
            Refused: oneDNN has none, or only its reference code.
        """
        first = nodes[0]
        if first.name in ANCHORS:
            anchor = ANCHORS[first.name](self.plan, first, value)
            chain = Chain(
                self.plan, first.shape, anchor.fit, anchor.sums, anchor.channels, anchor.broadcasts
            )
            anchor.begin(chain)
        else:
            anchor, chain = pointwise(self.plan, first, value)
        before = first
        for node in nodes[1:]:
            POSTS[node.name](chain, node, node.args.index(before.var), value)
            before = node
        posts = chain.finished(before.dtype)
        ops = tuple(p.op for p in posts)
        attributes = Attributes(ops, tuple(anchor.zero_points))
        primitive = anchor.make(before.dtype, attributes)
        if primitive.reference and not slowly:
            raise Refused(f"oneDNN has only its reference code ({primitive.name}) for {first.name}")
        return _Made(anchor, primitive, posts)
