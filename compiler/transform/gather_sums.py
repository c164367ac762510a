"""gather_sums: what an importer wrote out as additions, one sum each, so that its accumulation is
that of one sum.

Only values of one node are gathered (they share an origin): a model's own additions stay operators
of their own. A chain of additions becomes a sum over an axis along which its terms lie, that of
products a sum of products; contractions that are added become one over the operands side by side,
as do matrix products and rows that are added to them (the gates of recurrent networks). A sum or
mean of what the node itself multiplied becomes one of products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Function, Var, tensor_type
from compiler.op.concatenate import CONCATENATE
from compiler.op.elementwise import ADD, MULTIPLY
from compiler.op.facts import Moves
from compiler.op.nn.dense import MATMUL
from compiler.op.opdef import OpDef
from compiler.op.reduce import SUM, SUM_PRODUCTS
from compiler.op.shapes import BROADCAST_TO, EXPAND_DIMS, RESHAPE
from compiler.op.slice import STRIDED_SLICE
from compiler.passes.rewrite import Rewriter, call, op_of, typed
from compiler.symbolic import Dim
from compiler.types.dtypes import DType, custom

_MOVES = {*Moves} - {Moves.JOIN, Moves.SPLIT}
"""How a product can be moved by moving its factors."""


def gather_sums(
    f: Function, alike: Callable[[Binding, Binding], bool]
) -> tuple[Function, dict[Var, Binding]]:
    """The function with sums gathered.

    Args:
        f: a function that is not fused.
        alike: (a binding, another one or itself) -> whether both may be part of one sum.

    Returns:
        The function, and for each variable that is new the binding of `f` that it belongs to.
    """
    g = _Gather(f, alike)
    for b in map(g.r.read, f.bindings):
        g.visit(b)
    return g.r.finish(), g.new


class _Gather:
    def __init__(self, f: Function, alike: Callable[[Binding, Binding], bool]):
        self.r, self.alike = Rewriter(f), alike
        self.new: dict[Var, Binding] = {}
        self.moved: dict[tuple[Var, Atom], Atom] = {}
        made = {b.var: b for b in f.bindings}
        # Additions that another one goes on with.
        self.inner = {
            first
            for b in f.bindings
            if isinstance(b.value, Call) and b.value.op is ADD
            for first in b.value.args[:1]
            if isinstance(first, Var) and first in made and self._joined(made[first], b)
        }

    def _joined(self, part: Binding, b: Binding) -> bool:
        """Whether `part`, an operand of `b`, belongs to the same node and may be gathered."""
        return bool({*part.origins} & {*b.origins}) and self.alike(part, b)

    def visit(self, b: Binding) -> None:
        """Append a binding, gathered if it is the last of a sum."""
        value, op = None, op_of(b.value)
        if isinstance(b.value, Call) and self.alike(b, b):
            if op is ADD and b.var not in self.inner:
                value = self.chain(b, self.terms(b))
            elif op is not None and op.summation is not None and op.summation.of_products:
                value = self.of_products(b, b.value)
        if value is None:
            self.r.keep(b)
        else:
            self.r.emit(Binding(b.var, value, b.origins))

    def part(self, a: Atom, b: Binding) -> Binding | None:
        """What computes `a`, an operator's result, if that is part of the node of `b`."""
        made = self.r.producer(a)
        known = made is not None and isinstance(made.value, Call) and self._joined(made, b)
        return made if known else None

    def terms(self, b: Binding) -> list[Atom]:
        """The terms of a chain of additions, from the left."""
        assert isinstance(b.value, Call)
        first, second = b.value.args
        before = self.part(first, b)
        if before is None or op_of(before.value) is not ADD:
            return [first, second]
        return [*self.terms(before), second]

    # ---- what sums become ------------------------------------------------------------------------
    def chain(self, b: Binding, terms: Sequence[Atom]) -> Call | None:
        """The sum of the terms; None: two terms are none, unless they are sums themselves."""
        value = self.contraction(b, terms) or self.product(b)
        if value is not None or len(terms) < 3:
            return value
        shape = tensor_type(b.var).shape
        pairs = [self.factors(a, b) for a in terms]
        known = [p for p in pairs if p is not None]
        if len(known) == len(pairs):
            stacks = [self.stacked(b, column, shape) for column in zip(*known, strict=True)]
            return call(SUM_PRODUCTS, *stacks, axis=(0,))
        return call(SUM, self.stacked(b, terms, shape), axis=(0,))

    def of_products(self, b: Binding, v: Call) -> Call | None:
        """A sum or mean of products."""
        found, op = self.factors(v.args[0], b), op_of(v)
        if found is None:
            return None
        assert op is not None
        assert op.summation is not None
        shape = tensor_type(v.args[0]).shape
        both = [self.widened(a, shape, b) for a in found]
        return call(op.summation.of_products, *both, axis=v.attrs.axis, keepdims=v.attrs.keepdims)

    def contraction(self, b: Binding, terms: Sequence[Atom]) -> Call | None:
        """One contraction in place of several that are added."""
        made = [p.value for a in terms if (p := self.part(a, b)) is not None]
        calls = [v for v in made if isinstance(v, Call) and len(v.args) == 2]
        first = calls[0] if calls else None
        of = None if first is None or not isinstance(first.op, OpDef) else first.op.contraction
        if first is None or of is None or len(calls) < len(terms):
            return None
        if any(v.op is not first.op or v.attrs != first.attrs for v in calls):
            return None
        groups = getattr(first.attrs, "groups", 1)
        operands = []
        for k, axis in enumerate((of.data, of.weights)):
            parts = [v.args[k] for v in calls]
            if len({self._across(a, axis) for a in parts}) > 1:
                return None
            split = groups if k == 0 else 1
            operands.append(self.side_by_side(b, parts, axis, split))
        return replace(first, args=tuple(operands))

    def product(self, b: Binding) -> Call | None:
        """One matrix product in place of several and of rows that are added to each of theirs."""
        found = self.products(b.var, b, b)
        if found is None or all(x is None for x, _ in found):
            return None
        rows = tensor_type(b.var).shape[0]
        one = self.emit(b, call(BROADCAST_TO, _one(tensor_type(b.var).dtype), shape=(rows, 1)))
        left = self.side_by_side(b, [one if x is None else x for x, _ in found], 1, 1)
        return call(MATMUL, left, self.side_by_side(b, [w for _, w in found], 0, 1))

    def products(
        self, a: Atom, b: Binding, made: Binding | None
    ) -> list[tuple[Atom | None, Atom]] | None:
        """What adds up to `a`, [rows, columns], which `made` computes: x and w for a product of
        matrices, None and a row for one that is added to every row; None: something else."""
        if made is not None and isinstance(made.value, Call):
            v = made.value
            if v.op is MATMUL and all(tensor_type(x).rank == 2 for x in v.args):
                return [(v.args[0], v.args[1])]
            if v.op is ADD:
                both = [self.products(x, b, self.part(x, b)) for x in v.args]
                known = [p for p in both if p is not None]
                return [*known[0], *known[1]] if len(known) == 2 else None
            if v.op is STRIDED_SLICE and v.attrs.axes == (1,) and tensor_type(a).rank == 2:
                inner = self.products(v.args[0], b, self.part(v.args[0], b))
                return inner and [(x, self._move(made, v, w, b)) for x, w in inner]
        row = _row(a)
        return None if row is None else [(None, row)]

    @staticmethod
    def _across(a: Atom, axis: int) -> tuple[Dim, ...]:
        shape = list(tensor_type(a).shape)
        del shape[axis]
        return tuple(shape)

    # ---- operands --------------------------------------------------------------------------------
    def side_by_side(self, b: Binding, parts: Sequence[Atom], axis: int, groups: int) -> Atom:
        """The parts behind each other along an axis, those of each group together."""
        if groups == 1:
            rank = tensor_type(parts[0]).rank
            return self.emit(b, call(CONCATENATE, *parts, axis=axis % rank))
        batch, channels, *size = tensor_type(parts[0]).shape
        assert isinstance(channels, int)
        apart = (batch, groups, channels // groups, *size)
        split = [self.emit(b, call(RESHAPE, a, newshape=apart)) for a in parts]
        joined = self.emit(b, call(CONCATENATE, *split, axis=2))
        return self.emit(b, call(RESHAPE, joined, newshape=(batch, channels * len(parts), *size)))

    def stacked(self, b: Binding, terms: Sequence[Atom], shape: Sequence[Dim]) -> Atom:
        """The terms, of `shape`, behind each other along a new first axis."""
        wide = [self.widened(a, shape, b) for a in terms]
        rows = [self.emit(b, call(EXPAND_DIMS, a, axes=(0,))) for a in wide]
        return self.emit(b, call(CONCATENATE, *rows, axis=0))

    def widened(self, a: Atom, shape: Sequence[Dim], b: Binding) -> Atom:
        """`a` broadcast to a shape."""
        if tensor_type(a).shape == tuple(shape):
            return a
        return self.emit(b, call(BROADCAST_TO, a, shape=tuple(shape)))

    def factors(self, a: Atom, b: Binding) -> tuple[Atom, Atom] | None:
        """What the node of `b` multiplies, and may move then, to get `a`."""
        made = self.part(a, b)
        if made is None or not isinstance(made.value, Call):
            return None
        v = made.value
        if v.op is MULTIPLY:
            return v.args[0], v.args[1]
        if not isinstance(v.op, OpDef) or v.op.moves not in _MOVES:
            return None
        if v.op.moves is Moves.PAD and (v.attrs.mode, v.attrs.value) != ("constant", 0.0):
            return None
        found = self.factors(v.args[0], b)
        if found is None:
            return None
        shape = tensor_type(v.args[0]).shape
        first, second = (self._move(made, v, self.widened(x, shape, b), b) for x in found)
        return first, second

    def _move(self, made: Binding, v: Call, factor: Atom, b: Binding) -> Atom:
        if (made.var, factor) not in self.moved:
            value = replace(v, args=(factor, *v.args[1:]))
            self.moved[made.var, factor] = self.emit(b, value)
        return self.moved[made.var, factor]

    def emit(self, b: Binding, value: Call) -> Atom:
        """The variable of a new binding."""
        new = typed(self.r.fresh(f"{b.var.name}_terms"), value, b.origins)
        self.new[new.var] = b
        return self.r.emit(new)


def _row(a: Atom) -> Atom | None:
    """The row [1, columns] that all rows of `a` are, where that is known: what a first state of
    zeros is multiplied to is a constant of such rows."""
    t = tensor_type(a)
    if t.rank != 2 or t.shape[0] == 1:
        return a if t.rank == 2 else None
    if not isinstance(a, Constant) or not len(a.data) or (a.data != a.data[:1]).any():
        return None
    return Constant(a.data[:1], t.dtype)


def _one(dtype: DType) -> Constant:
    code = custom(dtype.name).encode(np.array(1.0), dtype) if dtype.is_custom else 1.0
    return Constant(np.asarray(code, dtype.storage), dtype)
