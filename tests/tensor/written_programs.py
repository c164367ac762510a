"""Random tensor programs as people might write them: any nest, any order of statements."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import (
    Buffer,
    Expr,
    IntImm,
    Load,
    cast,
    index_value,
    maximum,
    minimum,
    select,
)
from compiler.tensor.stmt import For, PrimFunc, Stmt, Store
from compiler.types.dtypes import INT32

SIZES = (1, 2, 3, 4, 17)
N = Var("n")


@dataclass
class Writer:
    """Draws one program; every buffer is filled before it is read."""

    draw: st.DrawFn
    filled: list[Buffer] = field(default_factory=list)
    loops: int = 0
    stages: int = 0

    def pick(self, *options: object) -> object:
        return self.draw(st.sampled_from(options))

    def shape(self) -> tuple[Index, ...]:
        rank = self.draw(st.integers(0, 3))
        sizes = [self.draw(st.sampled_from([*SIZES, N])) for _ in range(rank)]
        return tuple(Index.of(d) for d in sizes)

    def loop(self, extent: IntLike) -> Var:
        self.loops += 1
        return Var(f"i{self.loops}", extent)

    def index(self, size: Index, around: list[Var]) -> Index:
        """A position below `size`, known to be inside."""
        fitting = [v for v in around if v.extent == size]
        n = size.constant()
        ways = ["first", *(["loop", "back"] if fitting else []), *(["other"] if n else [])]
        way = self.pick(*ways)
        if way == "first":
            return Index()
        if way == "other":
            others = [v for v in around if v.extent is not None and v.extent.constant()]
            assert n is not None
            if not others:
                return Index.of(self.draw(st.integers(0, n - 1)))
            v = self.draw(st.sampled_from(others))
            return (v * self.draw(st.integers(1, 3)) + self.draw(st.integers(0, 5))) % n
        v = self.draw(st.sampled_from(fitting))
        return v if way == "loop" else size - 1 - v

    def value(self, around: list[Var], depth: int = 2) -> Expr:
        """A scalar whose magnitude stays small."""
        kind = self.pick("load", "load", "number", "loop", *(["op"] * 3 if depth else []))
        if kind == "load" and self.filled:
            b = self.draw(st.sampled_from(self.filled))
            x: Expr = Load(b, tuple(self.index(d, around) for d in b.shape))
            return minimum(maximum(x, -9), 9)
        if kind == "loop" and around:
            v = self.draw(st.sampled_from(around))
            return cast(index_value(v % 5), INT32)
        if kind != "op":
            return IntImm(self.draw(st.integers(-3, 3)), INT32)
        a, b = self.value(around, depth - 1), self.value(around, depth - 1)
        op = self.pick("add", "sub", "mul", "max", "select")
        if op == "select":
            return select(a < b, b, a)
        return {"add": a + b, "sub": a - b, "mul": a * b, "max": maximum(a, b)}[str(op)]

    def others(self, most: int) -> list[Var]:
        """Loops that are no dimension of what is stored."""
        return [
            self.loop(n)
            for n in self.draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=most))
        ]

    def nest(self, variables: list[Var], body: list[Stmt]) -> list[Stmt]:
        for v in reversed(variables):
            body = [For(v, body)]
        return body

    def stage(self) -> str:
        self.stages += 1
        return f"s{self.stages}"

    def fill(self, b: Buffer) -> list[Stmt]:
        """All of a buffer: element by element, or as sums."""
        own = [self.loop(d) for d in b.shape]
        if self.pick("map", "sum") == "map":
            store = Store(self.stage(), b, tuple(own), self.value(own))
            return self.nest(own, [store])
        inner = [
            self.loop(self.draw(st.sampled_from(SIZES)))
            for _ in range(self.draw(st.integers(1, 2)))
        ]
        every = [*own, *inner]
        update = str(self.pick("Add", "Max", "Min"))
        store = Store(
            self.stage(), b, tuple(own), self.value(every), update, self.value(own, depth=1)
        )
        if own and self.pick(True, False):  # beside another statement in a loop around both
            after = Store(self.stage(), b, tuple(own), Load(b, tuple(own)) + 1)
            return self.nest(own, [*self.nest(inner, [store]), after])
        return self.nest(every, [store])

    def change(self, b: Buffer) -> list[Stmt]:
        """Some elements anew, perhaps from others: a recurrence."""
        around = [
            self.loop(self.draw(st.sampled_from(SIZES)))
            for _ in range(self.draw(st.integers(1, 3)))
        ]
        around += [self.loop(d) for d in b.shape if self.pick(True, False)]
        at = tuple(self.index(d, around) for d in b.shape)
        return self.nest(around, [Store(self.stage(), b, at, self.value(around))])


@st.composite
def programs(draw: st.DrawFn) -> PrimFunc:
    """A program of one or two inputs, up to two temporaries and one or two outputs."""
    w = Writer(draw)
    inputs = [Buffer("x", (N, Index.of(4)), INT32)]
    inputs += [Buffer(f"x{k}", w.shape(), INT32) for k in range(draw(st.integers(0, 1)))]
    w.filled += inputs
    temps = [Buffer(f"t{k}", w.shape(), INT32) for k in range(draw(st.integers(0, 2)))]
    outputs = [Buffer(f"y{k}", w.shape(), INT32) for k in range(draw(st.integers(1, 2)))]
    body: list[Stmt] = []
    written: list[Buffer] = []
    for b in [*temps, *outputs]:
        body += w.fill(b)
        w.filled.append(b)
        written.append(b)
        if draw(st.booleans()):
            body += w.change(draw(st.sampled_from(written)))
    return PrimFunc("f", [*inputs, *outputs], len(outputs), body, temps, [N])
