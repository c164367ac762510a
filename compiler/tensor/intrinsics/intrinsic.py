"""What a hardware instruction computes, declared as loops, and how LLVM spells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compiler.codegen.emit import Val
from compiler.symbolic import Var
from compiler.tensor.expr import (
    BinOp,
    Call,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Load,
    index_vars,
    loads,
)
from compiler.tensor.stmt import Store

Emit = Callable[..., Val]


@dataclass(eq=False)
class Intrinsic:
    """One tensor intrinsic.

    `semantics(*vars)` gives the Store it performs over placeholder buffers. Operands are handed to
    `emit(emitter, accumulator, *operands)` as lists of vectors: one vector over the loops
    `lanes[name]` for each point of the remaining loops.

    Attributes:
        loops: tile loop -> extent, outermost first.
        lanes: operand placeholder -> the loops that are its lanes.
        out_lanes: the loops that are the result's lanes.
        order: the tile element held by lane k of the result (None: natural order).
        features: CPU features it needs.
    """

    name: str
    loops: Mapping[str, int]
    lanes: Mapping[str, tuple[str, ...]]
    semantics: Callable[..., Store]
    emit: Emit
    out_lanes: tuple[str, ...] = ()
    order: tuple[int | None, ...] | None = None
    features: tuple[str, ...] = ()
    vars: dict[str, Var] = field(init=False)
    pattern: Store = field(init=False)

    def __post_init__(self) -> None:
        self.vars = {n: Var(n, e) for n, e in self.loops.items()}
        self.pattern = self.semantics(*self.vars.values())

    def match(self, store: Store, variables: Mapping[str, Var]) -> dict[str, Expr] | str:
        """Bind the pattern's operands in `store` (tile loop -> its variable), or say why it
        differs."""
        bound: dict[str, Expr] = {}
        p = self.pattern
        if store.update != p.update:
            return f"the update is {store.update or '='}, not {p.update or '='}"
        if store.init is not None:
            return "the reduction is not decomposed"
        out = Load(store.buffer, store.idx)
        why = self._same(Load(p.buffer, p.idx), out, variables, bound)
        why = why or self._same(p.value, store.value, variables, bound)
        return why or {n: bound[n] for n in self.lanes}

    def _same(self, a: Expr, b: Expr, variables: Mapping[str, Var], bound: dict[str, Expr]) -> str:
        if isinstance(a, Load):
            mine = index_vars(a)
            foreign = {v for n, v in variables.items() if self.vars[n] not in mine}
            used: set[Var] = set().union(*(index_vars(x) for x in loads(b)))
            if a.dtype != b.dtype:
                return f"operand {a.buffer.name} is {b.dtype}, not {a.dtype}"
            if used & foreign:
                return f"operand {a.buffer.name} depends on {sorted(map(str, used & foreign))}"
            bound[a.buffer.name] = b
            return ""
        if type(a) is not type(b) or a.dtype != b.dtype:
            return f"{b!r} is not {a!r}"
        alike = (
            (isinstance(a, BinOp) and isinstance(b, BinOp) and a.op == b.op)
            or isinstance(a, Cast)
            or (isinstance(a, Call) and isinstance(b, Call) and a.fn == b.fn)
            or (isinstance(a, (IntImm, FloatImm)) and a.value == getattr(b, "value", None))
        )
        if not alike:
            return f"{b!r} is not {a!r}"
        for x, y in zip(a.children(), b.children(), strict=True):
            if why := self._same(x, y, variables, bound):
                return why
        return ""


def dot4(
    name: str, lanes: int, emit: Emit, data: str = "uint8", features: tuple[str, ...] = ()
) -> Intrinsic:
    """The 4-way int8 dot product c[o] += sum_i a[o, i] * b[o, i]; a broadcast `a` just ignores
    o."""
    from compiler.dtypes import DType
    from compiler.symbolic import Index
    from compiler.tensor.stmt import Buffer

    c = Buffer("c", (Index.of(lanes),), DType.parse("int32"))
    a = Buffer("a", (Index.of(lanes), Index.of(4)), DType.parse(data))
    b = Buffer("b", (Index.of(lanes), Index.of(4)), DType.parse("int8"))

    def semantics(o: Var, i: Var) -> Store:
        product = a[o, i].astype("int32") * b[o, i].astype("int32")
        return Store("", c, (o,), product, update="Add")

    return Intrinsic(
        name, {"o": lanes, "i": 4}, {"a": ("o", "i"), "b": ("o", "i")}, semantics, emit, ("o",),
        features=features,
    )  # fmt: skip
