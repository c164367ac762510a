"""What a hardware instruction computes, declared as loops, and what writes it in the languages of
backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compiler.symbolic import Index, Var
from compiler.tensor.expr import (
    BinOp,
    Buffer,
    Call,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Load,
    Select,
    index_vars,
    loads,
)
from compiler.tensor.stmt import Store
from compiler.types.dtypes import INT32, DType

Emit = Callable[..., Any]
"""(what collects code, accumulator, *operands) -> result, in the terms of a backend: for LLVM those
of `compiler.target.emit`."""


class Rows(NamedTuple):
    """A matrix in memory: its address, and the bytes from one row to the next, in the terms of a
    backend."""

    address: Any
    step: Any


class Lane(NamedTuple):
    """Who reads an element: the number of its thread in the warp, and where that thread's loops
    are."""

    number: Index
    at: Mapping[str, Index]


LaneAddress = Callable[[str, Callable[[Index], Lane]], Any]
"""(operand, what each lane of a warp is to have the address of, by the lane's number) -> address,
in the terms of a backend."""


@dataclass(eq=False)
class Intrinsic:
    """One tensor intrinsic.

    `semantics(*vars)` gives the Store it performs over placeholder buffers. `emit` writes it: a
    function for LLVM, or one by the language of each backend, where None, or none for a language,
    means that its loops are written instead. Operands are handed to `emit(emitter, accumulator,
    *operands)` as lists of vectors: one vector over the loops `lanes[name]` for each point of the
    remaining loops.

    An instruction of the threads of a warp together says what one of them adds up, in registers, of
    operands in shared memory. Its `emit` for the language `ptx` gets the thread's sums, one for
    each point of the result's loops, and a `LaneAddress`, and returns the new sums; elsewhere its
    loops are written.

    Attributes:
        loops: tile loop -> extent, outermost first.
        lanes: operand placeholder -> the loops that are its lanes.
        out_lanes: the loops that are the result's lanes.
        order: the tile element held by lane k of the result (None: natural order).
        features: CPU features it needs.
        widens: whether it widens bytes to int16, so that data stored as int16 are multiplied more
            quickly.
        data_bits: low bits of the data that a dot product multiplies; 0: all.
        rows: of an instruction on registers that hold matrices: placeholder of an operand in memory
            (or of the result, if it is stored there) -> the loop over its rows, whose elements are
            neighbours. `emit` gets `Rows` of it; for an operand in a register, what gave the
            register (as the accumulator is), and returns what its own holds. A result in memory
            takes the accumulator's place. None: operands are vectors.
        late: whether it copies without waiting: what it stores is there when the thread waits for
            it (see `compiler.tensor.stmt.Wait`), at the latest. Its loops are the elements of one
            stretch of memory, and `emit` for the language `ptx` gets the addresses and how many
            bytes to read; the others become zeros.
    """

    name: str
    loops: Mapping[str, int]
    lanes: Mapping[str, tuple[str, ...]]
    semantics: Callable[..., Store]
    emit: Emit | Mapping[str, Emit] | None
    out_lanes: tuple[str, ...] = ()
    order: tuple[int | None, ...] | None = None
    features: tuple[str, ...] = ()
    widens: bool = False
    data_bits: int = 0
    rows: Mapping[str, str] | None = None
    late: bool = False
    vars: dict[str, Var] = field(init=False)
    pattern: Store = field(init=False)

    def __post_init__(self) -> None:
        self.vars = {n: Var(n, e) for n, e in self.loops.items()}
        self.pattern = self.semantics(*self.vars.values())

    @property
    def steps(self) -> int:
        """Reduction steps of a dot product (loops o and i); 0: the intrinsic is none."""
        p = self.pattern
        product = isinstance(p.value, BinOp) and p.value.op == "Mul" and p.update == "Add"
        return self.loops["i"] if product and list(self.loops) == ["o", "i"] else 0

    @property
    def operand_dtypes(self) -> list[DType]:
        """dtypes of the values that the pattern reads, in order."""
        return [n.dtype for n in loads(self.pattern.value)]

    def emitter(self, language: str) -> Emit | None:
        """What writes it in a backend's language; None: the backend writes `semantics`."""
        if isinstance(self.emit, Mapping):
            return self.emit.get(language)
        return self.emit if language == "llvm" else None

    def computes(self, value: Expr) -> bool:
        """Whether `value` has the form of what the pattern stores, wherever its operands lie."""
        return not self._same(self.pattern.value, value, {}, {})

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


def dot_product(
    name: str,
    lanes: int,
    emit: Emit | Mapping[str, Emit] | None = None,
    steps: int = 4,
    data: str = "uint8",
    weight: str = "int8",
    features: tuple[str, ...] = (),
    widens: bool = False,
    data_bits: int = 0,
) -> Intrinsic:
    """The dot product c[o] += sum_i int32(a[o, i]) * int32(b[o, i]), o < lanes and i < steps.

    `emit(emitter, c, [a], [b])` gets vectors of `lanes` int32 and of `lanes * steps` values of
    dtype `data` and `weight`, i innermost. A broadcast `a` just ignores o. `emit` by language, or
    None, and `widens`: see `Intrinsic`. `data_bits`, unless 0: a[o, i] & (2**data_bits - 1) takes
    the place of a[o, i], and `emit` has to cut the other bits off.
    """
    c = Buffer("c", (Index.of(lanes),), INT32)
    a = Buffer("a", (Index.of(lanes), Index.of(steps)), DType.parse(data))
    b = Buffer("b", (Index.of(lanes), Index.of(steps)), DType.parse(weight))

    def semantics(o: Var, i: Var) -> Store:
        read = a[o, i] & ((1 << data_bits) - 1) if data_bits else a[o, i]
        product = read.astype(INT32) * b[o, i].astype(INT32)
        return Store("", c, (o,), product, update="Add")

    lane_loops = {"a": ("o", "i"), "b": ("o", "i")}
    loops = {"o": lanes, "i": steps}
    return Intrinsic(
        name, loops, lane_loops, semantics, emit, ("o",), None, features, widens, data_bits
    )


def copied(e: Expr) -> tuple[Load, list[Expr]] | None:
    """What is copied, and the conditions under which it is, where else there are zeros; None: it
    is something else."""
    conditions = []
    while isinstance(e, Select) and _zero(e.b):
        conditions.append(e.cond)
        e = e.a
    return (e, conditions) if isinstance(e, Load) else None


def _zero(e: Expr) -> bool:
    return isinstance(e, IntImm | FloatImm) and str(e.value) in ("0", "0.0")  # and not -0.0
