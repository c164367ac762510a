"""Scalar expressions, evaluated over the current lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.arithmetic.scalar_functions import FUNCTIONS
from compiler.codegen.llvm import rules
from compiler.codegen.llvm.accesses import Accesses, from_memory, to_memory
from compiler.codegen.llvm.addresses import Addresses
from compiler.codegen.llvm.rounding import clipped_rounding, is_within
from compiler.codegen.llvm.scope import Scope
from compiler.errors import LoweringError
from compiler.symbolic import Index, IntLike, Var
from compiler.target.emit import LLVM_BYTES, Emitter, Val, llvm_type, memory_type
from compiler.target.intrinsics import computed_look_up, wasm, x86_look_up
from compiler.tensor.expr import (
    BinOp,
    Call,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    Gather,
    IndexValue,
    IntImm,
    Let,
    Load,
    Select,
    index_condition,
)
from compiler.tensor.lanes import points
from compiler.tensor.stmt import Store, range_of
from compiler.types.dtypes import BOOL, DType


@dataclass(frozen=True, eq=False, repr=False)
class _Bound(Expr):
    """An operand that has been evaluated already."""

    value: Val
    dtype: DType


class Scalars:
    """Expressions to values.

    `features`: of the target, that instructions may be used of. `library`: whether functions of the
    C library may be called.

    Attributes:
        values: what has been computed in this statement.
    """

    def __init__(
        self,
        scope: Scope,
        addresses: Addresses,
        accesses: Accesses,
        features: frozenset[str],
        library: bool = True,
    ):
        self.library = library
        self.scope, self.e = scope, scope.e
        self.addresses, self.accesses, self.features = addresses, accesses, features
        self.values: dict[Expr, Val] = {}

    def eval(self, x: Expr) -> Val:
        """Value of an expression; a node met twice in one statement is computed once."""
        if isinstance(x, _Bound):
            return x.value
        if x.dtype.is_custom:
            raise LoweringError(f"{x.dtype} was not lowered before code generation")
        if isinstance(x, Load):
            return self.accesses.read(x.buffer, self.addresses.flat_of(x.buffer, x.idx))
        hit = self.values.get(x)
        if hit is None:
            hit = self.values[x] = self._eval(x)
        return hit

    def _eval(self, x: Expr) -> Val:
        e, n = self.e, self.scope.width
        if isinstance(x, (FloatImm, IntImm)):
            return e.const(x.value, llvm_type(x.dtype), n)
        if isinstance(x, BinOp):
            if (rounded := self._clipped_rounding(x)) is not None:
                return rounded
            both = self._same(self.eval(x.a), self.eval(x.b))
            return rules.binary(e, x.op, x.a.dtype, *both, self.features)
        if isinstance(x, Cast):
            return rules.cast(e, self.eval(x.value), x.value.dtype, x.dtype)
        if isinstance(x, Select) and (mask := self._mask(x)):
            if len(set(mask)) == 1:
                return e.splat(self.eval(x.a if mask[0] else x.b), n)
            a, b = (e.splat(self.eval(k), n) for k in (x.a, x.b))
            c = e.vector([int(k) for k in mask], "i1")
            return e.op(f"select {c}, {a}, {b}", a.t, n)
        if isinstance(x, Select):
            c, a, b = (e.splat(self.eval(k), n) for k in (x.cond, x.a, x.b))
            return e.op(f"select {c}, {a}, {b}", a.t, n)
        if isinstance(x, Let):
            outer, given = self.values, self.eval(x.value)
            self.values = {**outer, x.var: given}
            result = self.eval(x.body)
            self.values = outer
            return result
        if isinstance(x, IndexValue):
            return e.resized(self._index(x.index), llvm_type(x.dtype))
        if isinstance(x, Gather):
            return self._gather(x)
        if isinstance(x, CallExtern):
            return self._extern(x)
        if isinstance(x, Call):
            args = [self.eval(a) for a in x.args]
            bound = [_Bound(v, a.dtype) for v, a in zip(args, x.args, strict=True)]
            f = FUNCTIONS.get(x.fn)
            body: Callable[..., Expr] | None = None if f is None else f.body(x.dtype)
            if f is not None and body is None and not self.library:
                body = f.body_alone(x.dtype)
            if body is not None:
                return self.eval(body(*bound))
            splat = [e.splat(a, n) for a in args]
            if x.fn == "limit":
                return rules.limit(e, splat[0], splat[1], self.features)
            if x.fn == "rint_i32":
                small = is_within(x.args[0], wasm.SMALL)
                return rules.nearest(e, splat[0], self.features, small)
            return rules.function(e, x.fn, x.dtype, splat, self.features)
        raise LoweringError(f"no lowering for {type(x).__name__} {x!r}")

    def _clipped_rounding(self, x: BinOp) -> Val | None:
        """A float rounded, moved and clipped, where the target had rather clip it first."""
        parts = clipped_rounding(x)
        if parts is None or not wasm.clips_first(*parts[1:3], self.features):
            return None
        value, low, high, k = parts
        v = self.e.splat(self.eval(value), self.scope.width)
        return self.e.bin("add", wasm.clipped(self.e, v, low, high), self.e.const(k, "i32", v.n))

    def _same(self, a: Val, b: Val) -> tuple[Val, Val]:
        n = max(a.n, b.n)
        return self.e.splat(a, n), self.e.splat(b, n)

    def update(self, s: Store, old: Val) -> Val:
        """`old` combined with the statement's value."""
        dtype = s.buffer.dtype
        if s.update == "Fma":
            if not isinstance(s.value, BinOp) or s.value.op != "Mul":
                raise LoweringError(
                    f"stage {s.stage}: an Fma update needs a product, not {s.value!r}"
                )
            n = self.scope.width
            a, b = (self.e.splat(self.eval(k), n) for k in (s.value.a, s.value.b))
            return rules.function(self.e, "fma", dtype, [a, b, self.e.splat(old, n)], self.features)
        bounds = range_of(s.update)
        op = s.update if bounds is None else "Add"
        both = self._same(old, self.eval(s.value))
        new = rules.binary(self.e, op, dtype, *both, self.features)
        for limit, bound in zip(("Max", "Min"), bounds or (), strict=bool(bounds)):
            new = rules.binary(self.e, limit, dtype, new, self.e.const(bound, new.t, new.n))
        return new

    def _mask(self, x: Select) -> list[bool]:
        """Which lanes take `x.a`, if that is known here; else none."""
        index = index_condition(x)
        if index is None:
            return []
        at = [v for v, _ in self.scope.lanes]
        env: dict[Var, IntLike] = {v: k for v, k in self.scope.env.items() if isinstance(k, int)}
        out = []
        for p in points([n for _, n in self.scope.lanes]):
            low, high = index.subst({**env, **dict(zip(at, p, strict=True))}).range()
            if low is None or low != high:
                return []
            out.append(low != 0)
        return out

    def _index(self, index: Index) -> Val:
        e, at = self.e, [v for v, _ in self.scope.lanes]
        lane_values = []
        for x in points([n for _, n in self.scope.lanes]):
            lane_values.append(self.addresses.runtime(index.subst(dict(zip(at, x, strict=True)))))
        return e.gather_lanes(lane_values)

    def _gather(self, x: Gather) -> Val:
        e = self.e
        t = memory_type(x.buffer.dtype)
        for count in (1, 2):  # vectors of two registers are looked up by halves
            if self.scope.width % count:
                continue  # one lane would be left over
            found = x86_look_up.permutation(x, self.scope.width // count, self.features)
            if found is not None:
                return self._permuted(x, found, count)
        for lanes in (8, 16):  # a vector that is not full is looked up as one that is
            found = x86_look_up.permutation(x, lanes, self.features)
            if 1 < self.scope.width < lanes and found is not None:
                return self._filled(x, found)
        line = computed_look_up.formula(x, self.features) if self.scope.width > 1 else None
        if line is not None:

            def numbers(at: Expr) -> Val:
                return e.splat(self.eval(at), self.scope.width)

            return computed_look_up.compute(e, x, line, self.scope.width, numbers)
        base, inc = self.scope.cursor[x.buffer]
        byte = x.byte if x.dtype.nbytes == 1 else None
        if (
            byte is not None
            and self.scope.width > 1
            and not inc
            and x86_look_up.looks_up_bytes(self.features)
        ):
            return x86_look_up.look_up_bytes(e, base, e.splat(self.eval(byte), self.scope.width))
        if inc:
            raise LoweringError(f"{x.buffer.name} is read at run-time positions in a moving loop")
        row = x.row(self.scope.lanes[0][0]) if len(self.scope.lanes) == 1 else None
        if row is not None:
            return self._row(x, *row)
        if self.scope.width == 1 and isinstance(x.at, BinOp) and x.at.op == "Add":
            # The parts one by one, as other look-ups in the same row share the first.
            for part in (x.at.a, x.at.b):
                at = e.as_index(self.eval(part))
                base = e.at(base, e.bin("mul", at, e.const(LLVM_BYTES[t], at.t)))
            return from_memory(e, x.buffer, e.load(base, 0, t, 1, LLVM_BYTES[t]))
        position = e.as_index(e.splat(self.eval(x.at), self.scope.width))
        if self.scope.width > 1 and LLVM_BYTES[t] >= 4:
            return gather(e, base, position, t)
        out = []
        for k in range(position.n):
            at = e.bin("mul", e.extract(position, k), e.const(LLVM_BYTES[t], position.t))
            out.append(e.load(e.at(base, at), 0, t, 1, LLVM_BYTES[t]))
        return from_memory(e, x.buffer, e.gather_lanes(out))

    def _row(self, x: Gather, place: Index, start: Expr) -> Val:
        """Neighbours of a row that starts where data says."""
        e, n, t = self.e, self.scope.width, memory_type(x.buffer.dtype)
        (lane, _), size = self.scope.lanes[0], LLVM_BYTES[t]
        held, self.scope.lanes, self.values = (self.scope.lanes, self.values), [], {}
        base = self.scope.cursor[x.buffer][0]
        for part in (self.addresses.runtime(place.subst({lane: 0})), self.eval(start)):
            at = e.as_index(part)
            base = e.at(base, e.bin("mul", at, e.const(size, at.t)))
        self.scope.lanes, self.values = held
        return from_memory(e, x.buffer, e.load(base, 0, t, n, size))

    def _permuted(self, x: Gather, p: x86_look_up.Permutation, count: int) -> Val:
        """The entries of a small table for `count` parts of the lanes."""
        e, n = self.e, self.scope.width // count
        parts = []
        for k in range(count):
            lanes = list(range(k * n, (k + 1) * n))

            def part(at: Expr, lanes: list[int] = lanes) -> Val:
                whole = e.splat(self.eval(at), self.scope.width)
                return whole if count == 1 else e.shuffle(whole, whole, lanes)

            parts.append(x86_look_up.look_up(e, x, p, self.features, part))
        return (
            parts[0] if count == 1 else e.shuffle(parts[0], parts[1], list(range(self.scope.width)))
        )

    def _filled(self, x: Gather, p: x86_look_up.Permutation) -> Val:
        """The entries of a small table for fewer lanes than it is looked up in."""
        e, n = self.e, self.scope.width

        def filled(at: Expr) -> Val:
            return e.widened(e.splat(self.eval(at), n), p.lanes)

        found = x86_look_up.look_up(e, x, p, self.features, filled)
        return e.shuffle(found, found, list(range(n)))

    def _extern(self, x: CallExtern) -> Val:
        """Call of a C function, lane by lane. Narrow integers are extended as the C ABI expects."""
        e, n = self.e, self.scope.width
        args = [e.splat(to_memory(e, self.eval(a)), n) for a in x.args]
        kinds = [_extension(a.dtype) for a in x.args]
        ret = memory_type(x.dtype)
        types = ", ".join(f"{a.t}{k}" for a, k in zip(args, kinds, strict=True))
        e.decls[x.symbol] = f"declare{_extension(x.dtype)} {ret} @{x.symbol}({types})"
        out = []
        for lane in range(n):
            given = ", ".join(
                f"{a.t}{k} {e.extract(a, lane).name}" for a, k in zip(args, kinds, strict=True)
            )
            out.append(e.op(f"call{_extension(x.dtype)} {ret} @{x.symbol}({given})", ret))
        v = e.gather_lanes(out)
        if x.dtype == BOOL:
            zero = e.const(0, v.t, v.n)
            return e.op(f"icmp ne {v}, {zero.name}", "i1", v.n)
        return v


def _extension(dtype: DType) -> str:
    if dtype.is_float or dtype.storage_bits >= 32:
        return ""
    return " signext" if dtype.kind == "int" else " zeroext"


def gather(e: Emitter, table: Val, at: Val, t: str) -> Val:
    """The entries at the positions `at` of a table in memory, of elements of 4 or 8 bytes."""
    v, pointers = Val("", t, at.n), f"<{at.n} x ptr>"
    places = e.op(f"getelementptr inbounds {t}, ptr {table.name}, {at}", "ptr", at.n)
    name = {"float": "f32", "double": "f64"}.get(t, t)
    fn, mask = f"llvm.masked.gather.v{at.n}{name}.v{at.n}p0", f"<{at.n} x i1>"
    e.decls[fn] = f"declare {v.ty} @{fn}({pointers}, {mask}, {v.ty})"
    where = f"{pointers} align {LLVM_BYTES[t]} {places.name}"
    return e.op(f"call {v.ty} @{fn}({where}, {mask} splat (i1 true), {v.ty} poison)", t, at.n)
