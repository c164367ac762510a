"""Loads and stores: from symbolic indices to pointers, constant offsets and lane patterns."""

from __future__ import annotations

from typing import NamedTuple

from compiler.codegen.emit import LLVM_BYTES, Emitter, Val, memory_type
from compiler.codegen.lanes import classify, lane_offsets, points, store_runs
from compiler.errors import LoweringError
from compiler.symbolic import Atom, Index, Quasi, Var
from compiler.tensor.stmt import Buffer, PrimFunc

Registers = dict[tuple[Buffer, int, tuple[int, ...]], Val]
Split = tuple[Index, tuple[int, ...], list[tuple[Quasi, int]]]


class Place(NamedTuple):
    """Where an access goes. Contiguity is in `offsets` (elements, per lane, relative to `const`);
    `pointer` None: a register buffer; `scattered`: lanes whose distances are only known at run
    time; `block`: the pointer is a multiple of so many elements, the buffer's last extent (0: it
    may not be)."""

    pointer: Val | None
    const: int
    offsets: tuple[int, ...]
    scattered: tuple[tuple[Val, int], ...] = ()
    block: int = 0


class Accesses:
    """Mixin of the lowering: everything about addresses."""

    e: Emitter
    func: PrimFunc
    env: dict[Var, int | Val]
    lanes: list[tuple[Var, int]]
    regs: Registers
    memo: dict[object, Val]
    cursor: dict[Buffer, tuple[Val, dict[Var, int]]]
    written: set[Buffer]
    _flats: dict[int, tuple[Index, tuple[Index, ...]]]
    _splits: dict[tuple[Index, tuple[tuple[Var, int], ...]], Split]

    def flat_of(self, b: Buffer, idx: tuple[Index, ...]) -> Index:
        """Row-major position, remembered per index tuple."""
        hit = self._flats.get(id(idx))
        if hit is None:  # keep idx alive so that its id stays unique
            hit = self._flats[id(idx)] = (b.flat(idx), idx)
        return hit[0]

    def known(self, i: Index) -> int | None:
        """The value of `i` if it is a constant here."""
        total = i.const
        for a, c in i.terms.items():
            x = self.env.get(a) if isinstance(a, Var) else self._known_atom(a)
            if not isinstance(x, int):
                break
            total += c * x
        else:
            return total
        lo, hi = i.range()
        return lo if lo is not None and lo == hi else None

    def _known_atom(self, a: Quasi) -> int | None:
        if all(isinstance(self.env.get(v), int) for v in a.leaves()):
            return int(a.eval(self.env))
        return None

    def runtime(self, i: Index) -> Val:
        """Emit an index expression as i64."""
        e = self.e
        constant = self.known(i)
        if constant is not None:
            return e.const(constant, "i64")
        key = ("rt", i, tuple(self.env[v] for v in sorted(i.vars(), key=lambda v: (v.name, id(v)))))
        if key in self.memo:
            return self.memo[key]
        acc = e.const(i.const, "i64")
        for a, c in i.terms.items():
            x = self._atom(a)
            if c != 1:
                x = e.bin("mul nsw", x, e.const(c, "i64"))
            acc = x if acc.name == "0" else e.bin("add nsw", acc, x)
        self.memo[key] = acc
        return acc

    def _atom(self, a: Atom) -> Val:
        e = self.e
        if isinstance(a, Var):
            x = self.env[a]
            return e.const(x, "i64") if isinstance(x, int) else x
        p, q = self.runtime(a.a), self.runtime(a.b)
        if a.op == "min":
            return e.call("llvm.smin.i64", "i64", 1, [p, q])
        if a.op == "*":
            return e.bin("mul nsw", p, q)
        low = a.a.range()[0]
        if low is not None and low >= 0:
            return e.bin({"//": "udiv", "%": "urem"}[a.op], p, q)
        return self._floor_divide(a.op, p, q)

    def _floor_divide(self, op: str, p: Val, q: Val) -> Val:
        """Division of a possibly negative number, rounding down; the divisor is positive."""
        e = self.e
        r = e.bin("srem", p, q)
        negative = e.op(f"icmp slt {r}, 0", "i1")
        if op == "%":
            return e.op(f"select {negative}, {e.bin('add', r, q)}, {r}", "i64")
        one = e.op(f"zext {negative} to i64", "i64")
        return e.bin("sub", e.bin("sdiv", p, q), one)

    def place(self, b: Buffer, flat: Index) -> Place:
        """Where the access at row-major position `flat` goes, for the current lanes."""
        at = [v for v, _ in self.lanes]
        extents = tuple(n for _, n in self.lanes)
        base, offs, odd = self._split(flat)
        if odd:  # a // or % of a lane variable: look at every lane
            bound = {v: x for v, x in self.env.items() if isinstance(x, int)}
            per_lane = []
            for o, x in zip(offs, points(extents), strict=True):
                m = {**bound, **dict(zip(at, x, strict=True))}
                extra = Index(const=o)
                for a, c in odd:
                    extra = extra + a.replaced(m) * c
                per_lane.append(extra)
            steps = [p - per_lane[0] for p in per_lane]
            if any(s.terms for s in steps):
                if b.scope == "register":
                    raise LoweringError(f"register buffer {b.name} indexed by a run-time value")
                return Place(None, 0, (), tuple(self._scalar_place(b, base + p) for p in per_lane))
            base, offs = base + per_lane[0], tuple(s.const for s in steps)
        if b.scope == "register":
            position = self.known(base)
            if position is None:
                raise LoweringError(f"register buffer {b.name} indexed by a run-time value {base}")
            return Place(None, position, offs)
        pointer, const = self._scalar_place(b, base)
        return Place(pointer, const, offs, (), _block(b, base) if odd else 0)

    def _split(self, flat: Index) -> Split:
        """`flat` as what all lanes share, the offsets of the lanes (the first is 0), and the atoms
        that mix lane variables with others; remembered."""
        key = (flat, tuple(self.lanes))
        hit = self._splits.get(key)
        if hit is not None:
            return hit
        at = {v for v, _ in self.lanes}
        rest: dict[Atom, int] = {}
        odd: list[tuple[Quasi, int]] = []
        for a, c in flat.terms.items():
            if isinstance(a, Var):
                if a not in at:
                    rest[a] = c
            elif a.leaves() & at:
                odd.append((a, c))
            else:
                rest[a] = c
        factors = tuple(flat.terms.get(v, 0) for v, _ in self.lanes)
        offs = lane_offsets(tuple(n for _, n in self.lanes), factors)
        out = self._splits[key] = (Index(rest, flat.const), offs, odd)
        return out

    def _scalar_place(self, b: Buffer, flat: Index) -> tuple[Val, int]:
        """(pointer, constant element offset) of a position without lane variables."""
        pointer, inc = self.cursor[b]
        const, rest = flat.const, Index()
        for a, c in flat.terms.items():
            if isinstance(a, Var):
                x = self.env[a]
                if isinstance(x, int):
                    const += c * x
                elif inc.get(a) != c:
                    rest = rest + Index({a: c - inc.get(a, 0)})
            else:
                bound = {v: x for v in a.leaves() if isinstance(x := self.env[v], int)}
                part = a.replaced(bound) * c
                const, rest = const + part.const, rest + (part - part.const)
        if rest.terms:
            key = (
                "at",
                pointer.name,
                rest,
                tuple(str(self.env[v]) for v in sorted(rest.vars(), key=str)),
            )
            if key not in self.memo:
                size = LLVM_BYTES[memory_type(b.dtype)]
                self.memo[key] = self.e.at(pointer, self.runtime(rest * size))
            pointer = self.memo[key]
        return pointer, const

    # ---- loads -----------------------------------------------------------------------------------
    def read(self, b: Buffer, flat: Index, place: Place | None = None) -> Val:
        """The lanes of `b` at `flat`."""
        at = place or self.place(b, flat)
        e = self.e
        if b.scope == "register":
            return self._register(b, at)
        if at.scattered:
            t, size = memory_type(b.dtype), LLVM_BYTES[memory_type(b.dtype)]
            out = e.gather_lanes([e.load(p, c * size, t, 1, size) for p, c in at.scattered])
        else:
            assert at.pointer is not None
            key = (at.pointer.name, at.const, at.offsets)
            if key not in self.memo or b in self.written:
                self.memo[key] = self._load_lanes(b, at.pointer, at.const, at.offsets, at.block)
            out = self.memo[key]
        return self._from_memory(b, out)

    def _register(self, b: Buffer, at: Place) -> Val:
        """What a register holds: all its lanes, or the first of more that were written."""
        hit = self.regs.get((b, at.const, at.offsets))
        if hit is not None:
            return hit
        n = len(at.offsets)
        for (buffer, const, offsets), v in self.regs.items():
            if buffer is b and const == at.const and offsets[:n] == at.offsets:
                return self.e.shuffle(v, v, list(range(n)))
        parts = self._parts(b, at)
        if parts:
            return self._joined(parts)
        raise LoweringError(
            f"register {b.name}+{at.const} read before it is written, or with other lanes"
        )

    def _parts(self, b: Buffer, at: Place) -> list[Val]:
        """Equal registers that hold the lanes one after another; none, if that is not so."""
        n = len(at.offsets)
        for k in sorted({len(offs) for x, _, offs in self.regs if x is b}, reverse=True):
            if k >= n or n % k:
                continue
            keys = [
                (
                    b,
                    at.const + at.offsets[j],
                    tuple(o - at.offsets[j] for o in at.offsets[j : j + k]),
                )
                for j in range(0, n, k)
            ]
            if all(key in self.regs for key in keys):
                return [self.regs[key] for key in keys]
        return []

    def _joined(self, parts: list[Val]) -> Val:
        """Vectors of equal length, one after another."""
        e = self.e
        while len(parts) > 1:
            odd = parts[len(parts) // 2 * 2 :]
            pairs = zip(parts[::2], parts[1::2], strict=False)
            if odd and len(parts) == 3:
                a, c, d = parts
                n = a.n
                wide = e.shuffle(d, d, [*range(n), *[None] * n])
                both = e.shuffle(a, c, list(range(2 * n)))
                return e.shuffle(both, wide, list(range(3 * n)))
            parts = [e.shuffle(a, c, list(range(a.n + c.n))) for a, c in pairs]
        return parts[0]

    def _from_memory(self, b: Buffer, v: Val) -> Val:
        return (
            self.e.op(f"trunc {v} to {Val('', 'i1', v.n).ty}", "i1", v.n)
            if b.dtype.kind == "bool"
            else v
        )

    def _load_lanes(
        self, b: Buffer, p: Val, const: int, offs: tuple[int, ...], block: int = 0
    ) -> Val:
        e, t = self.e, memory_type(b.dtype)
        size, n = LLVM_BYTES[t], len(offs)
        at, how = const * size, classify(offs)
        if n == 1:
            return e.load(p, at, t, 1, size)
        if how.kind == "splat":
            return e.splat(e.load(p, at, t, 1, size), n)
        if how.kind == "vector":
            align = max(b.align, size) if n * size >= 64 and b.align else size
            if b in self.func.prefetch:
                e.decls["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
                ahead = e.at(p, at + self.func.prefetch[b])
                e.lines.append(f"  call void @llvm.prefetch.p0({ahead}, i32 0, i32 3, i32 1)")
            return e.load(p, at, t, n, align)
        if how.kind == "repeat" and size * how.period <= 8 and t.startswith("i"):
            word = e.load(p, at, f"i{8 * size * how.period}", 1, size)
            return e.bitcast(e.splat(word, n // how.period), t, n)
        if how.kind == "repeat":
            v = e.load(p, at, t, how.period, size)
            return e.shuffle(v, v, [k % how.period for k in range(n)])
        if how.kind == "runs" and len({k for _, k in how.runs}) == 1:
            parts = [e.load(p, at + o * size, t, k, size) for o, k in how.runs]
            parts = [x if x.n > 1 else e.gather_lanes([x, Val("poison", t)]) for x in parts]
            width = how.runs[0][1]
            while len(parts) > 1:
                parts = [
                    e.shuffle(a, c, self._join(width, a.n))
                    for a, c in zip(parts[::2], parts[1::2], strict=True)
                ]
                width *= 2
            return e.shuffle(parts[0], parts[0], how.selection)
        used = sorted({(const + o) // block for o in offs}) if block else []
        if used and 2 * len(used) <= n:
            return self._from_blocks(b, p, used, block, [const + o for o in offs])
        return e.gather_lanes([e.load(p, at + o * size, t, 1, size) for o in offs])

    def _from_blocks(self, b: Buffer, p: Val, used: list[int], block: int, at: list[int]) -> Val:
        """Lanes from anywhere in a few blocks: whole blocks are loaded and shuffled."""
        e, t = self.e, memory_type(b.dtype)
        size, n = LLVM_BYTES[t], len(at)
        out: Val | None = None
        for k in used:
            part = e.load(p, k * block * size, t, block, size)
            mine = [o - k * block if o // block == k else None for o in at]
            if out is None:
                out = e.shuffle(part, part, mine)
                continue
            if block != n:
                part, mine = (
                    e.shuffle(part, part, mine),
                    [None if i is None else j for j, i in enumerate(mine)],
                )
            joined = [
                j if o // block < k else None if i is None else n + i
                for j, (o, i) in enumerate(zip(at, mine, strict=True))
            ]
            out = e.shuffle(out, part, joined)
        assert out is not None
        return out

    @staticmethod
    def _join(width: int, lanes: int) -> list[int | None]:
        """Shuffle that puts the first `width` lanes of two vectors of `lanes` lanes side by
        side."""
        return [*range(width), *range(lanes, lanes + width)]

    # ---- stores ----------------------------------------------------------------------------------
    def write(
        self,
        b: Buffer,
        flat: Index,
        v: Val,
        order: tuple[int | None, ...] | None = None,
        place: Place | None = None,
    ) -> None:
        """Store the lanes of `v`; `order[k]` is the element that lane k holds (None: none)."""
        at = place or self.place(b, flat)
        e = self.e
        if at.scattered:
            size = LLVM_BYTES[memory_type(b.dtype)]
            v = self._to_memory(e.splat(v, len(at.scattered)))
            for k, (p, c) in enumerate(at.scattered):
                e.store(e.extract(v, k), p, c * size, size)
            return
        v = e.splat(v, len(at.offsets)) if order is None else v
        if b.scope == "register":
            self.regs.pop((b, at.const, at.offsets), None)  # keep the dict in order of writing
            self.regs[b, at.const, at.offsets] = v
            return
        assert at.pointer is not None
        v = self._to_memory(v)
        size = LLVM_BYTES[v.t]
        if v.n == 1:
            e.store(v, at.pointer, at.const * size, size)
            return
        offs: tuple[int | None, ...] = at.offsets
        if order is not None:
            offs = tuple(None if k is None else at.offsets[k] for k in order)
        for o, sel in store_runs(offs):
            e.store(self._pick(v, sel, size), at.pointer, (at.const + o) * size, size)

    def _to_memory(self, v: Val) -> Val:
        return self.e.op(f"zext {v} to {Val('', 'i8', v.n).ty}", "i8", v.n) if v.t == "i1" else v

    def _pick(self, v: Val, sel: tuple[int, ...], size: int) -> Val:
        """The lanes `sel` of `v`; whole dwords are moved where that is possible."""
        e, per = self.e, 4 // size if size < 4 else 1
        if list(sel) == list(range(v.n)):
            return v
        dwords = per > 1 and len(sel) % per == 0 and v.n % per == 0 and all(
            sel[j] % per == 0 and sel[j : j + per] == tuple(range(sel[j], sel[j] + per))
            for j in range(0, len(sel), per)
        )  # fmt: skip
        if dwords:
            w = e.bitcast(v, "i32", v.n // per)
            return e.shuffle(w, w, [i // per for i in sel[::per]])
        return e.shuffle(v, v, sel)


def _block(b: Buffer, base: Index) -> int:
    """The buffer's last extent, if it is a power of two and everything that is not constant in
    `base` is a multiple of it; else 0."""
    n = b.shape[-1].constant() if b.shape else None
    if n is None or n & (n - 1) or not 4 <= n <= 64:
        return 0
    return n if (base - base.const).multiple_of(n) else 0
