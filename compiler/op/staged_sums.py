"""Loop nests of sums whose accumulator adds in chunks, trees or aligned groups, or with a
compensation (`compiler.op.accumulator`): the terms of a group are added in one expression, and what
is held between groups lies in memory. The last axis of the result is the innermost loop, so that
groups of neighbouring results are vectors.

Steps are those of `compiler.op.staged_rounding`. Padding is zeros, which have their places among
the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from compiler.errors import LoweringError
from compiler.op.accumulator import Accumulator
from compiler.op.aligned_sums import aligned_sum
from compiler.op.staged_rounding import Factors, Rounding, term_of
from compiler.symbolic import Index, IntLike, Var, dim
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Expr,
    call,
    cast,
    const,
    index_value,
    let,
    select,
)
from compiler.tensor.stmt import For, Store
from compiler.types.dtypes import FLOAT32, INT32, INT64, DType, least_normal

_STEPS = 2
"""Terms that an expression adds one after another: each step takes so long that the CPU must find
the next group's while it waits."""
_LEAVES = 16
"""Terms whose pairwise sum is one expression; a power of two."""

Read = Callable[[Sequence[Any], Sequence[Index]], Factors]
"""(position in the result, position in what is added up) -> a term, or two factors."""
Step = Callable[[Expr, Sequence[Factors]], Expr]


def staged_sum(
    b: PrimBuilder,
    name: str,
    shape: Sequence[IntLike],
    over: Sequence[IntLike],
    value: Callable[..., Expr],
    how: Accumulator,
    dtype: DType,
    bias: Callable[..., Expr] | None = None,
) -> Buffer:
    """The buffer of sums of `dtype`, rounded from the accumulator.

    Args:
        b: collects the stages.
        name: of the buffer.
        shape: of the result.
        over: extents of what is added up, outermost first.
        value: (*position in the result, *position in what is added up) -> a term, or the product
            of two factors, of `dtype`.
        how: the accumulator.
        dtype: of terms or factors, and of the result.
        bias: position in the result -> the last term.

    Raises:
        LoweringError: the number of terms is known at run time only, and they are added in pairs,
            or along more open axes than the outermost.
    """
    extents = [Index.of(n) for n in over]
    inner = [n for m in extents[1:] if (n := m.constant()) is not None]
    text = f"sums in {how} are of {' x '.join(map(str, over))} terms"
    if len(inner) < len(extents[1:]):
        raise LoweringError(f"{text}: only the first size may be open; give the model fixed shapes")
    if extents and extents[0].constant() is None and how.order == "pairwise":
        raise LoweringError(
            f"{text}, and how many levels of pairs these make is open; give the model fixed "
            "shapes, or choose order = 'tree8'"
        )

    def read(i: Sequence[Any], k: Index) -> Factors:
        at: list[Index] = []
        for n in reversed(inner):
            at.insert(0, k % n if n != 1 else Index())
            k = k // n
        first = [k if extents[0] != 1 else Index()] if extents else []
        x = value(*i, *first, *at)
        return (x.a, x.b) if isinstance(x, BinOp) and x.op == "Mul" else (x,)

    terms = dim(reduce(lambda a, n: a * n, extents, Index(const=1)))
    return _Nest(b, name, tuple(shape), read, how, dtype, terms).run(bias)


@dataclass(frozen=True)
class _Nest:
    b: PrimBuilder
    name: str
    shape: tuple[IntLike, ...]
    read: Callable[[Sequence[Any], Index], Factors]
    how: Accumulator
    dtype: DType
    terms: IntLike

    @property
    def inner(self) -> Rounding:
        return Rounding.of(self.how, False, self.dtype)

    def run(self, bias: Callable[..., Expr] | None) -> Buffer:
        inner, outer = self.inner, Rounding.of(self.how, True, self.dtype)
        part = self.chunks()
        count = part.shape[0]
        single = count == 1

        def finish(*i: Any) -> Expr:
            last: Expr = part[(0, *i)] if single else total[i]
            form = inner if single else outer
            if single and outer.dtype != inner.dtype:
                last, form = outer.held(inner.value(last)), outer
            if bias is not None:
                last = form.put((bias(*i),), last)
            return cast(last, self.dtype)

        if not single:
            total = self.b.buffer(f"{self.name}_total", self.shape, outer.dtype)
            self.start(total, outer.dtype)

            def add(i: Sequence[Any], group: Index, k: int) -> Expr:
                return outer.put((part[(group, *i)],), total[tuple(i)])

            self.groups(total, lambda i: tuple(i), count, 1, add)
        return self.b.compute(self.name, self.shape, self.dtype, finish)

    def chunks(self) -> Buffer:
        """Sums of chunks, which are the first axis; the last may be shorter."""
        length = self.how.chunk
        if not length or (isinstance(self.terms, int) and self.terms <= length):
            part = self.b.buffer(f"{self.name}_chunks", (1, *self.shape), self.inner.dtype)
            self.chunk(part, 1, 0, self.terms)
            return part
        whole = dim(Index.of(self.terms) // length)
        last = dim((Index.of(self.terms) + (length - 1)) // length - whole)
        shape = (dim(Index.of(whole) + last), *self.shape)
        part = self.b.buffer(f"{self.name}_chunks", shape, self.inner.dtype)
        self.chunk(part, whole, 0, length)
        if last != 0:
            self.chunk(part, last, whole, dim(Index.of(self.terms) % length))
        return part

    def chunk(self, part: Buffer, count: IntLike, first: IntLike, length: IntLike) -> None:
        """The chunks from `first` on."""
        base = Index.of(first) * self.how.chunk

        def factors(i: Sequence[Any], c: Index, k: IntLike) -> Factors:
            return self.read(i, c * self.how.chunk + k + base)

        if self.how.order == "pairwise":
            assert isinstance(length, int)
            self.pairwise(part, count, first, length, factors)
        elif self.how.compensated:
            self.compensated(part, count, first, length, factors)
        else:
            self.stepwise(part, count, first, length, factors)

    # ---- in order --------------------------------------------------------------------------------
    def stepwise(
        self,
        part: Buffer,
        count: IntLike,
        first: IntLike,
        length: IntLike,
        factors: Callable[..., Factors],
    ) -> None:
        at_once = self.how.tree or (self.how.group if self.how.align_bits else _STEPS)
        self.start(part, self.inner.dtype, count, first)

        def place(i: Sequence[Any], c: Index) -> tuple[Any, ...]:
            return (c + first, *i)

        def add(i: Sequence[Any], c: Index, group: Index, size: int) -> Expr:
            every = [factors(i, c, group * at_once + t) for t in range(size)]
            return self.step(part[place(i, c)], every)

        open_end = Index.of(length)
        if not self.how.align_bits or open_end.constant() is not None:
            self.nest(part, place, count, length, at_once, add)
            return
        whole, last = dim(open_end // at_once), open_end - 1

        def filled(i: Sequence[Any], c: Index, _: Index, size: int) -> Expr:
            """The group that is shorter, with zeros: these change no aligned sum."""
            every = []
            for t in range(size):
                k = Index.of(whole) * at_once + t
                there = index_value(k) < index_value(open_end)
                found = factors(i, c, k.minimum(last))
                every.append(tuple(select(there, x, const(0, x.dtype)) for x in found))
            return self.step(part[place(i, c)], every)

        more = dim((open_end + (at_once - 1)) // at_once - whole)
        self.nest(part, place, count, dim(Index.of(whole) * at_once), at_once, add)
        self.nest(part, place, count, dim(Index.of(more) * at_once), at_once, filled)

    def step(self, acc: Expr, terms: Sequence[Factors]) -> Expr:
        """acc and a group of terms."""
        if self.how.align_bits:
            least = least_normal(self.dtype), least_normal(self.inner.dtype)
            added = aligned_sum(self.inner.value(acc), terms, self.how.align_bits, *least)
            return self.inner.held(added)
        if self.how.tree:
            return self.inner.add(acc, self.tree([self.term(t) for t in terms]))
        for t in terms:
            acc = self.inner.put(self.term(t), acc)
        return acc

    def term(self, factors: Factors) -> Factors:
        """A term as it is added: a product that is rounded before is one number."""
        if len(factors) == 2 and self.how.products == "rounded":
            return (self.inner.value(self.inner.held(term_of(factors))),)
        return factors

    def tree(self, terms: Sequence[Factors]) -> Expr:
        """What neighbours add up to, level by level; an odd one is rounded."""
        form = self.inner
        pairs = zip(terms[::2], terms[1::2], strict=False)
        odd = [form.held(term_of(t)) for t in terms[len(terms) - len(terms) % 2 :]]
        level = [*(form.put(x, term_of(y)) for x, y in pairs), *odd]
        while len(level) > 1:
            following = zip(level[::2], level[1::2], strict=False)
            last = level[len(level) - len(level) % 2 :]
            level = [*(form.add(x, y) for x, y in following), *last]
        return level[0]

    # ---- pairwise --------------------------------------------------------------------------------
    def pairwise(
        self,
        part: Buffer,
        count: IntLike,
        first: IntLike,
        length: int,
        factors: Callable[..., Factors],
    ) -> None:
        """Trees over blocks of terms, then over what these add up to, until one is left."""
        form = self.inner

        def leaf(i: Sequence[Any], c: Index, k: IntLike) -> Factors:
            return self.term(factors(i, c, k))

        read: Callable[[Sequence[Any], Index, IntLike], Factors] = leaf
        while True:
            groups = -(-length // _LEAVES)
            into_part = groups == 1
            shape = (count, groups, *self.shape)
            out = part if into_part else self.b.buffer(f"{self.name}_pairs", shape, form.dtype)

            def add(i: Sequence[Any], c: Index, group: Index, size: int, read: Any = read) -> Expr:
                every = [read(i, c, group * _LEAVES + t) for t in range(size)]
                return self.tree(every)

            def place(
                i: Sequence[Any], c: Index, group: IntLike = 0, last: bool = into_part
            ) -> tuple[Any, ...]:
                return (c + first, *i) if last else (c, group, *i)

            self.nest(out, place, count, length, _LEAVES, add, grouped=not into_part)
            if into_part:
                return

            def following(i: Sequence[Any], c: Index, k: IntLike, out: Buffer = out) -> Factors:
                return (out[(c, k, *i)],)

            read, length = following, groups

    # ---- with a compensation ---------------------------------------------------------------------
    def compensated(
        self,
        part: Buffer,
        count: IntLike,
        first: IntLike,
        length: IntLike,
        factors: Callable[..., Factors],
    ) -> None:
        """Kahan's sum: y = x + c, t = s + y, c = y - (t - s), s = t. Two float32 are one integer;
        other s and c lie twice in memory, to be read and written in turn."""
        form = self.inner
        if FLOAT32 in (form.dtype, form.dtype.storage_dtype):
            self.packed(part, count, first, length, factors)
            return
        shape = (2, count, *self.shape)
        pair = [self.b.buffer(f"{self.name}_{n}", shape, form.dtype) for n in ("sum", "lost")]
        for buffer in pair:
            self.start(buffer, form.dtype)

        def state(which: int) -> Callable[..., Expr]:
            def add(i: Sequence[Any], c: Index, turn: Index, k: Index) -> Expr:
                s, lost = (x[(turn, c, *i)] for x in pair)
                term = self.term(factors(i, c, k))
                return self.inner.compensated(s, lost, term, lambda *new: new[which])

            return add

        self.turns(pair, count, length, [state(0), state(1)])
        done = Index.of(length) % 2

        def last(c: Index, *i: Any) -> tuple[tuple[Any, ...], Expr]:
            return (c + first, *i), pair[0][(done, c, *i)]

        self.b.stage(part, {"c": count, **self.loops()}, last, name=f"{self.name}_kept")

    def packed(
        self,
        part: Buffer,
        count: IntLike,
        first: IntLike,
        length: IntLike,
        factors: Callable[..., Factors],
    ) -> None:
        """Kahan's sum of numbers that float32 holds, s in the upper half of an integer."""
        state = self.b.buffer(f"{self.name}_pair", (count, *self.shape), INT64)
        self.start(state, INT64)

        def held(half: Expr) -> Expr:
            return self.inner.kept(call("bits", cast(half, INT32), dtype=FLOAT32))

        def add(i: Sequence[Any], c: Index, group: Index, size: int) -> Expr:
            def steps(s: Expr, lost: Expr, done: int) -> Expr:
                if done == size:
                    return _packed(s, lost)
                term = self.term(factors(i, c, group * _STEPS + done))
                return self.inner.compensated(s, lost, term, partial(steps, done=done + 1))

            pair = state[(c, *i)]
            return let(held(pair >> 32), lambda s: let(held(pair), lambda n: steps(s, n, 0)))

        self.nest(state, lambda i, c: (c, *i), count, length, _STEPS, add)

        def last(c: Index, *i: Any) -> tuple[tuple[Any, ...], Expr]:
            return (c + first, *i), held(state[(c, *i)] >> 32)

        self.b.stage(part, {"c": count, **self.loops()}, last, name=f"{self.name}_kept")

    # ---- stages ----------------------------------------------------------------------------------
    def loops(self) -> dict[str, IntLike]:
        return {f"i{k}": n for k, n in enumerate(self.shape)}

    def start(self, buffer: Buffer, dtype: DType, count: IntLike = 0, first: IntLike = 0) -> None:
        """Let a buffer, or its chunks from `first` on, start from +0."""
        sizes = {f"z{k}": n for k, n in enumerate(buffer.shape)}
        if count != 0:
            sizes["z0"] = Index.of(count)

        def zero(*i: Any) -> tuple[tuple[Any, ...], Expr]:
            at = (i[0] + first, *i[1:]) if count != 0 else i
            return at, const(0, dtype)

        self.b.stage(buffer, sizes, zero, name=f"{self.name}_start")

    def nest(
        self,
        out: Buffer,
        place: Callable[..., tuple[Any, ...]],
        count: IntLike,
        length: IntLike,
        at_once: int,
        add: Callable[[Sequence[Any], Index, Index, int], Expr],
        grouped: bool = False,
    ) -> None:
        """out[place] = add(...), for every chunk and every group of its terms in order."""
        for first, groups, size in _groups(Index.of(length), at_once):
            outer = list(self.loops().items())
            lead, tail, rank = outer[:-1], outer[-1:], max(0, len(outer) - 1)
            several = [("group", groups)] if groups != 1 else []
            loops = dict([*lead, ("c", count), *several, *tail])

            def body(
                *v: Any,
                first: IntLike = first,
                size: int = size,
                loops: int = len(several),
                rank: int = rank,
            ) -> tuple[tuple[Any, ...], Expr]:
                i = (*v[:rank], *v[rank + 1 + loops :])
                c, group = Index.of(v[rank]), Index.of(v[rank + 1] if loops else 0) + first
                at = place(i, c, group) if grouped else place(i, c)
                return at, add(i, c, group, size)

            self.b.stage(out, loops, body, name=f"{self.name}_group")

    def groups(
        self,
        out: Buffer,
        place: Callable[[Sequence[Any]], tuple[Any, ...]],
        length: IntLike,
        at_once: int,
        add: Callable[[Sequence[Any], Index, int], Expr],
    ) -> None:
        """The same without chunks."""
        self.nest(out, lambda i, _: place(i), 1, length, at_once, lambda i, _, g, n: add(i, g, n))

    def turns(
        self,
        pair: Sequence[Buffer],
        count: IntLike,
        length: IntLike,
        steps: Sequence[Callable[[Sequence[Any], Index, Index, Index], Expr]],
    ) -> None:
        """For every term, the statements that store to each buffer, in the other of its halves."""
        stages = [self.b.fresh(f"{self.name}_turn") for _ in pair]
        outer = list(self.loops().items())
        kept = [Var(f"{stages[0]}.{n}", dim(e)) for n, e in outer[:-1]]
        c, k = Var(f"{stages[0]}.c", count), Var(f"{stages[0]}.k", length)
        inside: list[Any] = []
        for stage, buffer, step in zip(stages, pair, steps, strict=True):
            last = [Var(f"{stage}.{n}", dim(e)) for n, e in outer[-1:]]
            i = [*map(Index.of, kept), *map(Index.of, last)]
            turn = Index.of(k) % 2
            value = step(i, Index.of(c), turn, Index.of(k))
            at = ((Index.of(k) + 1) % 2, Index.of(c), *i)
            node: Any = Store(stage, buffer, at, value)
            for v in last:
                node = For(v, [node])
            inside.append(node)
        node = For(k, inside)
        for v in (c, *reversed(kept)):
            node = For(v, [node])
        self.b.body.append(node)


def _groups(length: Index, at_once: int) -> list[tuple[IntLike, IntLike, int]]:
    """(first group, how many, terms of each): whole groups, then one of what is left. Of an open
    length, one group or none of every size that may be left."""
    whole, rest = dim(length // at_once), length % at_once
    left = rest.constant()
    if left is not None:
        last: list[tuple[IntLike, IntLike, int]] = [(whole, 1, left)] if left else []
    else:
        reached = [(rest + (at_once - size)) // at_once for size in range(1, at_once + 1)]
        here = zip(reached, [*reached[1:], Index()], strict=True)
        last = [(whole, dim(a - b), s) for s, (a, b) in enumerate(here, 1) if s < at_once]
    return [*([(0, whole, at_once)] if whole != 0 else []), *last]


def _packed(high: Expr, low: Expr) -> Expr:
    """An integer of two numbers that float32 holds."""
    parts = [cast(call("bits", cast(x, FLOAT32), dtype=INT32), INT64) for x in (high, low)]
    return parts[0] << 32 | parts[1] & 0xFFFFFFFF
