"""Meaning of a PrimFunc at any stage of scheduling: a slow walk over numpy arrays, the oracle for
schedules and code generation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from compiler.arithmetic import over_arrays
from compiler.arithmetic.arrays import Arithmetic, arithmetic
from compiler.arithmetic.rounding_sites import RoundingSites
from compiler.arithmetic.scalar_functions import BITS
from compiler.errors import LoweringError
from compiler.interpret.copies import Copies
from compiler.interpret.threads import Sharing, in_turn, iterations
from compiler.symbolic import Index, Var
from compiler.tensor.expr import (
    COMPARISONS,
    At,
    BinOp,
    Buffer,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    Gather,
    IndexValue,
    IntImm,
    Let,
    LetVar,
    Load,
    Select,
)
from compiler.tensor.lanes import points
from compiler.tensor.stmt import (
    SLACK,
    Attempt,
    Barrier,
    Commit,
    For,
    Intrin,
    Pick,
    PrimFunc,
    Stmt,
    Store,
    Wait,
    When,
    family,
    range_of,
    walk_stmts,
)
from compiler.types.dtypes import BOOL, FLOAT64, Array, DType

_METHODS = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Max": "maximum",
    "Min": "minimum",
}


def run(func: PrimFunc, arrays: Sequence[Array], dims: Mapping[Var, int] | None = None) -> None:
    """Run `func` on one storage array per parameter; the outputs are written in place.

    Packed parameters take the packed array (see `pack_array`).
    """
    _Interpreter(func, arrays, dims or {}).body(func.body)


class _Interpreter:
    def __init__(self, func: PrimFunc, arrays: Sequence[Array], dims: Mapping[Var, int]):
        self.env: dict[Var, int] = dict(dims)
        self.memory: dict[Buffer, Array] = dict(zip(func.params, arrays, strict=True))
        self.temps = set(func.temps)
        self.started: set[tuple[int, int, tuple[int, ...]]] = set()
        self.bound: dict[LetVar, Any] = {}
        self.sharing: list[Sharing] = []  # of the blocks and the threads around
        self.copies = Copies(set())  # of the thread

    def array(self, b: Buffer) -> Array:
        if b.data is not None:
            return b.data
        if b not in self.memory:
            shape = tuple(int(d.value(self.env)) for d in map(Index.of, b.shape))
            self.memory[b] = np.zeros(shape, b.dtype.storage)
        return self.memory[b]

    def body(self, stmts: list[Stmt]) -> None:
        for s in stmts:
            if isinstance(s, For) and family(s):
                (self.threads if family(s) == "threadIdx" else self.blocks)(s)
            elif isinstance(s, For):
                for i in range(int(s.extent.value(self.env))):
                    self.env[s.var] = i
                    self.body(s.body)
            elif isinstance(s, Intrin):
                loops = s.intrin.loops
                for x in points(list(loops.values())):
                    self.env.update({s.vars[n]: i for n, i in zip(loops, x, strict=True)})
                    (self.copy if s.intrin.late else self.store)(s.store)
            elif isinstance(s, Attempt):
                for b in s.watched:
                    self.array(b).fill(0)  # an earlier, larger tile may have left something
                self.body(s.body)
                unsure = any(np.isnan(self.array(b)).any() for b in s.watched)
                self.body(s.again if unsure else s.rest)
            elif isinstance(s, When):
                if self.value(s.condition):
                    self.body(s.body)
            elif isinstance(s, Pick):
                at = int(self.value(s.at))
                if 0 <= at < int(Index.of(s.var.extent or 0).value(self.env)):
                    self.env[s.var] = at
                    self.body(s.body)
            elif isinstance(s, Commit):
                self.copies.commit()
            elif isinstance(s, Wait):
                for (b, idx, _), value in self.copies.wait(s.left):
                    self.touched(b, idx, True)
                    self.array(b)[idx] = value
            elif isinstance(s, Store):
                self.store(s)

    # ---- grids -----------------------------------------------------------------------------------
    def blocks(self, s: For) -> None:
        chain, each = iterations(s, self.env)
        self.sharing.append(Sharing("block", ("global",)))
        for k, values in enumerate(each):
            self.sharing[-1].current = k
            self.env.update(values)
            self.fresh("shared", "local", "register")
            self.body(chain[-1].body)
        self.sharing.pop()

    def fresh(self, *scopes: str) -> None:
        """Forget what is in memory that does not outlive an iteration."""
        self.memory = {b: a for b, a in self.memory.items() if b.scope not in scopes}

    def threads(self, s: For) -> None:
        chain, each = iterations(s, self.env)
        own = ("local", "register")
        self.fresh(*own)
        held = [dict[Buffer, Array]() for _ in each]
        outer, last, arriving = dict(self.env), [0], set[tuple[Buffer, int]]()
        copies = [Copies(arriving) for _ in each]

        def resume(k: int) -> None:
            """Let thread k have its own loop variables and memory."""
            held[last[0]] = {b: a for b, a in self.memory.items() if b.scope in own}
            environments[last[0]] = self.env
            self.fresh(*own)
            self.memory.update(held[k])
            self.env, self.copies, last[0] = environments[k], copies[k], k

        environments = [{**outer, **values} for values in each]
        self.sharing.append(Sharing("thread", ("global", "shared")))
        if each:
            self.env = environments[0]
            in_turn([self.whole(chain[-1].body) for _ in each], resume, self.sharing[-1])
        self.sharing.pop()
        self.fresh(*own)
        self.env = outer

    def whole(self, stmts: list[Stmt]) -> Iterator[Barrier]:
        """Run all statements of one thread, up to a barrier at a time."""
        yield from self.thread(stmts)
        self.copies.end()

    def thread(self, stmts: list[Stmt]) -> Iterator[Barrier]:
        """Run the statements of one thread, up to a barrier at a time."""
        for s in stmts:
            if isinstance(s, Barrier):
                yield s
            elif isinstance(s, For) and any(isinstance(x, Barrier) for x, _, _ in walk_stmts([s])):
                for i in range(int(s.extent.value(self.env))):
                    self.env[s.var] = i
                    yield from self.thread(s.body)
            else:
                self.body([s])

    def touched(self, b: Buffer, idx: tuple[int, ...], stored: bool) -> None:
        """Note an access to memory that other iterations may access."""
        position = _flat(idx, self.array(b).shape)
        if (b, position) in self.copies.arriving:
            raise LoweringError(f"an element of {b.name} is touched before its copy is waited for")
        for s in self.sharing:
            (s.store if stored else s.load)(b, position)

    def at(self, idx: tuple[Index, ...]) -> tuple[int, ...]:
        return tuple(int(i.value(self.env)) for i in idx)

    def stored_at(self, s: Store) -> tuple[int, ...]:
        """Where a statement stores."""
        idx, shape = self.at(s.idx), self.array(s.buffer).shape
        if any(i < 0 for i in idx) or (beyond := _flat(idx, shape)) >= math.prod(shape):
            raise LoweringError(f"stage {s.stage} stores outside {s.buffer.name}: {idx}")
        if any(i >= n for i, n in zip(idx, shape, strict=True)):
            idx = tuple(map(int, np.unravel_index(beyond, shape)))  # as in `load`
        if self.sharing:
            self.touched(s.buffer, idx, True)
        return idx

    def copy(self, s: Store) -> None:
        """Begin to store."""
        idx = self.stored_at(s)
        position = _flat(idx, self.array(s.buffer).shape)
        self.copies.begin((s.buffer, idx, position), self.value(s.value))

    def store(self, s: Store) -> None:
        idx, out = self.stored_at(s), self.array(s.buffer)
        own = self.sharing[-1].current if self.sharing and s.buffer.scope != "global" else 0
        if s.init is not None and (key := (id(s), own, idx)) not in self.started:
            self.started.add(key)  # not decomposed: the first visit of an element starts from init
            out[idx] = self.value(s.init)
        place = s.value if s.update and isinstance(s.value, At) else None
        value = s.value if place is None else place.value
        if s.update == "Fma":
            assert isinstance(value, BinOp)
            a, b, dtype = self.value(value.a), self.value(value.b), s.buffer.dtype
            if place is not None:
                out[idx] = self.arithmetic(dtype, place).fma(a, b, out[idx])
            else:
                out[idx] = fma(a, b, out[idx], dtype)
        elif (bounds := range_of(s.update)) is not None:
            total = self.binary("Add", s.buffer.dtype, out[idx], self.value(value))
            out[idx] = np.clip(total, *bounds)
        elif s.update:
            out[idx] = self.binary(s.update, s.buffer.dtype, out[idx], self.value(value), place)
        else:
            out[idx] = self.value(s.value)

    def arithmetic(self, dtype: DType, place: At | None) -> Arithmetic:
        """The arithmetic of `dtype` that rounds at a place."""
        if place is None:
            return arithmetic(dtype)
        sites = RoundingSites(place.node, step=int(self.value(place.step)))
        return arithmetic(dtype, sites).at(np.asarray(self.value(place.index)))

    def binary(self, op: str, dtype: DType, a: Any, b: Any, place: At | None = None) -> Any:
        ar = self.arithmetic(dtype, place)
        if op in COMPARISONS:
            return ar.compare(op, a, b)
        if op in BITS:
            return BITS[op](a, b)
        return getattr(ar, _METHODS[op])(a, b)

    def value(self, e: Expr, place: At | None = None) -> Any:
        if isinstance(e, At):
            return self.value(e.value, e)
        if isinstance(e, Load):
            return self.load(e)
        if isinstance(e, Gather):
            position, flat = int(self.value(e.at)), self.array(e.buffer).reshape(-1)
            for x in self.sharing:
                x.load(e.buffer, position)
            return flat[position]
        if isinstance(e, FloatImm):
            return arithmetic(e.dtype).const(e.value)[()]
        if isinstance(e, IntImm):
            return e.dtype.storage.type(e.value)
        if isinstance(e, IndexValue):
            return np.int64(e.index.value(self.env))
        if isinstance(e, BinOp):
            return self.binary(e.op, e.a.dtype, self.value(e.a), self.value(e.b), place)
        if isinstance(e, Cast):
            if e.dtype == BOOL:
                return self.value(e.value) != 0
            ar = self.arithmetic(e.dtype, place)
            return ar.cast(np.asarray(self.value(e.value)), e.value.dtype)[()]
        if isinstance(e, Select):
            return self.value(e.a) if self.value(e.cond) else self.value(e.b)
        if isinstance(e, LetVar):
            return self.bound[e]
        if isinstance(e, Let):
            self.bound[e.var] = self.value(e.value)
            return self.value(e.body)
        if isinstance(e, Call):
            return self.call(e)
        if isinstance(e, CallExtern):
            raise LoweringError(f"the interpreter does not call C functions ({e.symbol})")
        raise LoweringError(f"the interpreter does not know {type(e).__name__}")

    def load(self, e: Load) -> Any:
        """The element; beyond the end of a row lies the next row, and beyond a temporary zeros.
        Parameters may be anybody's memory: beyond them nothing may be read."""
        idx, a = self.at(e.idx), self.array(e.buffer)
        if self.sharing:
            self.touched(e.buffer, idx, False)
        if any(i < 0 for i in idx):
            raise LoweringError(f"load outside {e.buffer.name}: {idx}")
        if all(i < n for i, n in zip(idx, a.shape, strict=True)):
            return a[idx]
        position = _flat(idx, a.shape)
        if position >= a.size + (SLACK if e.buffer in self.temps else 0):
            raise LoweringError(f"load outside {e.buffer.name}: {idx}")
        return a.reshape(-1)[position] if position < a.size else a.dtype.type(0)

    def call(self, e: Call) -> Any:
        if e.fn == "lowest":
            return arithmetic(e.dtype).lowest()[()]
        args = [self.value(a) for a in e.args]
        if e.fn == "fma":
            return fma(args[0], args[1], args[2], e.dtype)
        if e.fn == "bits":
            return np.asarray(args[0]).view(e.dtype.storage)[()]
        if e.fn == "limit":
            return np.clip(args[0], -args[1], args[1])
        if e.fn == "rint_i32":
            return np.int32(np.clip(np.rint(args[0]), -(2.0**31), 2.0**31 - 1))
        if e.fn == "abs":  # of integers, too
            return np.abs(args[0])
        if e.dtype.is_custom:
            return np.asarray(arithmetic(e.dtype).call(e.fn, np.asarray(args[0])))[()]
        return over_arrays.function(e.fn, e.dtype, *map(np.asarray, args))[()]


def _flat(idx: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """Where an element is in memory, row after row."""
    position = 0
    for i, n in zip(idx, shape, strict=True):
        position = position * n + i
    return position


def fma(a: Any, b: Any, c: Any, dtype: DType) -> Any:
    """a * b + c rounded once: float32 through float64 rounded to odd, which makes the second
    rounding harmless (Boldo and Melquiond, 2008); float64 through fractions."""
    if dtype == FLOAT64:
        return _fma64(float(a), float(b), float(c))
    with np.errstate(all="ignore"):
        product = np.float64(a) * np.float64(b)
        s = product + np.float64(c)
        if not np.isfinite(s):
            return np.float32(s)
        t = s - product
        error = (product - (s - t)) + (np.float64(c) - t)
        odd = bool(np.float64(s).view(np.int64) & 1)
        if error != 0 and not odd:
            s = np.nextafter(s, np.inf if error > 0 else -np.inf)
        return np.float32(s)


def _fma64(a: float, b: float, c: float) -> np.float64:
    plain = np.float64(a * b + c)  # right where it is no number, and of a zero's sign
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return plain
    try:
        return np.float64(float(exact))
    except OverflowError:
        return np.float64(math.inf if exact > 0 else -math.inf)
