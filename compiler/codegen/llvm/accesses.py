"""Loads and stores: vectors, splats, shuffles and registers for lane patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from compiler.codegen.llvm.addresses import Address, Addresses
from compiler.codegen.llvm.scope import Scope
from compiler.errors import LoweringError
from compiler.symbolic import Index, Var
from compiler.target.cpus import LINE
from compiler.target.emit import LLVM_BYTES, Emitter, Val, memory_type
from compiler.tensor.expr import Buffer
from compiler.tensor.lanes import classify, store_runs, windows

SOON = 1 << 13
"""Bytes up to which a prefetch goes to the nearest cache; what is farther ahead goes to the next,
which keeps it longer."""


class Accesses:
    """What is read and written.

    `written`: buffers that are stored to somewhere, so that what was loaded may be stale.
    `prefetch`: bytes by which vector loads of a buffer are fetched ahead, the first of a line.
    `words`: whether neighbouring bytes are moved as words, as there are no registers for vectors.
    `begin`: bytes that buffers are aligned to, if it pays to know that of vectors in them; else 0.
    """

    begin = 0

    def __init__(
        self,
        scope: Scope,
        addresses: Addresses,
        written: AbstractSet[Buffer] = frozenset(),
        prefetch: Mapping[Buffer, int] | None = None,
        words: bool = False,
    ):
        self.words = words
        self.scope, self.e, self.addresses = scope, scope.e, addresses
        self.written, self.prefetch = written, prefetch or {}

    # ---- loads -----------------------------------------------------------------------------------
    def read(self, b: Buffer, flat: Index, address: Address | None = None) -> Val:
        """The lanes of `b` at `flat`."""
        at = address or self.addresses.address(b, flat)
        e = self.e
        if b.scope == "register":
            return self._register(b, at)
        if at.scattered:
            t, size = memory_type(b.dtype), LLVM_BYTES[memory_type(b.dtype)]
            out = e.gather_lanes([e.load(p, c * size, t, 1, size) for p, c in at.scattered])
        else:
            assert at.pointer is not None
            key = (at.pointer.name, at.const, at.offsets)
            if key not in self.scope.memo or b in self.written:
                known = self._aligned(b, flat)
                self.scope.memo[key] = self._load_lanes(
                    b, at.pointer, at.const, at.offsets, at.block, known
                )
            out = self.scope.memo[key]
        return from_memory(self.e, b, out)

    def _register(self, b: Buffer, at: Address) -> Val:
        """What a register holds: all its lanes, or neighbours of more that were written."""
        hit = self.scope.regs.get((b, at.const, at.offsets))
        if hit is not None:
            return hit
        n = len(at.offsets)
        for (buffer, const, offsets), v in self.scope.regs.items():
            if buffer is not b or len(offsets) <= n:
                continue
            first = at.const + at.offsets[0] - const
            wanted = tuple(at.const + o - const for o in at.offsets)
            k = offsets.index(first) if first in offsets else 0
            if offsets[k : k + n] == wanted:
                return self.e.shuffle(v, v, list(range(k, k + n)))
        parts = self._parts(b, at)
        if parts:
            return self._joined(parts)
        raise LoweringError(
            f"register {b.name}+{at.const} read before it is written, or with other lanes"
        )

    def _parts(self, b: Buffer, at: Address) -> list[Val]:
        """Equal registers that hold the lanes one after another; none, if that is not so."""
        n = len(at.offsets)
        for k in sorted({len(offs) for x, _, offs in self.scope.regs if x is b}, reverse=True):
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
            if all(key in self.scope.regs for key in keys):
                return [self.scope.regs[key] for key in keys]
        return []

    def _joined(self, parts: list[Val]) -> Val:
        """Vectors of equal length, or numbers, one after another."""
        e = self.e
        if parts[0].n == 1:
            return e.gather_lanes(parts)
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

    def _load_lanes(
        self,
        b: Buffer,
        p: Val,
        const: int,
        offs: tuple[int, ...],
        block: int = 0,
        known: int = 1,
    ) -> Val:
        e, t = self.e, memory_type(b.dtype)
        size, n = LLVM_BYTES[t], len(offs)
        at, how = const * size, classify(offs)
        if n == 1:
            return e.load(p, at, t, 1, size)
        if how.kind == "splat":
            return e.splat(e.load(p, at, t, 1, size), n)
        if how.kind == "vector":
            align = max(b.align, size) if n * size >= 64 and b.align else max(size, known)
            if b in self.prefetch and at % LINE < n * size:
                fetch_ahead(e, p, at, self.prefetch[b])
            if (self.words or known >= 4) and n * size % 4 == 0 and size < 4:
                # What was packed is walked in whole vectors.
                align = known if not self.words else min(n * size, 8) if b.align else size
                return e.bitcast(e.load(p, at, "i32", n * size // 4, align), t, n)
            return e.load(p, at, t, n, align)
        if how.kind == "repeat" and size * how.period <= 8 and t.startswith("i"):
            word = e.load(p, at, f"i{8 * size * how.period}", 1, size)
            return e.bitcast(e.splat(word, n // how.period), t, n)
        if how.kind == "repeat":
            v = e.load(p, at, t, how.period, size)
            return e.shuffle(v, v, [k % how.period for k in range(n)])
        if how.kind == "turned":
            rows = [e.load(p, at + o * size, t, k, size) for o, k in how.runs]
            return self._joined(_turned(e, rows))
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
            starts = [k * block for k in used]
            return self._from_windows(b, p, starts, block, [const + o for o in offs])
        width, firsts = windows(offs) if not self.words else (1, ())
        if firsts and 2 * len(firsts) <= n:
            starts = [const + k for k in firsts]
            return self._from_windows(b, p, starts, width, [const + o for o in offs])
        return e.gather_lanes([e.load(p, at + o * size, t, 1, size) for o in offs])

    def _from_windows(
        self, b: Buffer, p: Val, starts: Sequence[int], width: int, at: Sequence[int]
    ) -> Val:
        """Lanes from anywhere in a few stretches of `width` elements: all of each is loaded, and
        shuffled."""
        e, t = self.e, memory_type(b.dtype)
        size, n = LLVM_BYTES[t], len(at)
        out: Val | None = None
        done: set[int] = set()
        for start in starts:
            part = e.load(p, start * size, t, width, size)
            fresh = [j for j, o in enumerate(at) if start <= o < start + width and j not in done]
            mine = [at[j] - start if j in fresh else None for j in range(n)]
            if out is None:
                out = e.shuffle(part, part, mine)
            else:
                if width != n:
                    part = e.shuffle(part, part, mine)
                    mine = [None if i is None else j for j, i in enumerate(mine)]
                joined = [
                    j if j in done else None if i is None else n + i for j, i in enumerate(mine)
                ]
                out = e.shuffle(out, part, joined)
            done |= {*fresh}
        assert out is not None
        return out

    def aligned(self, b: Buffer, flat: Index, nbytes: int) -> bool:
        """Whether the first lane of an access surely is at a multiple of so many bytes."""
        size = LLVM_BYTES[memory_type(b.dtype)]
        return size == nbytes or self._aligned(b, flat) % nbytes == 0

    def _aligned(self, b: Buffer, flat: Index) -> int:
        """Bytes that the first lane of an access is a multiple of, as far as that is known; 1: it
        is not looked for."""
        size = LLVM_BYTES[memory_type(b.dtype)]
        if not self.begin or b.scope not in ("global", "shared") or size >= self.begin:
            return 1
        lanes = {v for v, _ in self.scope.lanes}
        rest = Index(const=flat.const)
        for a, c in flat.terms.items():
            if isinstance(a, Var) and a in lanes:
                continue
            if a.leaves() & lanes:
                return 1
            env = {v: x for v in a.leaves() if isinstance(x := self.scope.env[v], int)}
            rest = rest + a.replaced(env) * c
        found = self.begin // size
        while found > 1 and not rest.multiple_of(found):
            found //= 2
        return found * size

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
        address: Address | None = None,
    ) -> None:
        """Store the lanes of `v`; `order[k]` is the element that lane k holds (None: none)."""
        at = address or self.addresses.address(b, flat)
        e = self.e
        if at.scattered:
            size = LLVM_BYTES[memory_type(b.dtype)]
            v = to_memory(self.e, v if order is not None else e.splat(v, len(at.scattered)))
            for k, element in enumerate(order or range(len(at.scattered))):
                if element is not None:
                    p, c = at.scattered[element]
                    e.store(e.extract(v, k), p, c * size, size)
            return
        v = e.splat(v, len(at.offsets)) if order is None else v
        if b.scope == "register":
            self.scope.regs.pop(
                (b, at.const, at.offsets), None
            )  # keep the dict in order of writing
            self.scope.regs[b, at.const, at.offsets] = v
            return
        assert at.pointer is not None
        v = to_memory(self.e, v)
        size = LLVM_BYTES[v.t]
        if v.n == 1:
            e.store(v, at.pointer, at.const * size, size)
            return
        offs: tuple[int | None, ...] = at.offsets
        if order is not None:
            offs = tuple(None if k is None else at.offsets[k] for k in order)
        known = self._aligned(b, flat) if offs == at.offsets else 1
        for o, sel in store_runs(offs):
            part = self._pick(v, sel, size)
            align = max(size, known) if o == 0 else size
            if (
                (self.words or align >= 4)
                and part.n * size % 4 == 0
                and size < 4
                and part.t[0] == "i"
            ):
                part = e.bitcast(part, "i32", part.n * size // 4)
            e.store(part, at.pointer, (at.const + o) * size, align)

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


def _turned(e: Emitter, rows: Sequence[Val]) -> list[Val]:
    """The columns of a square of 2^k rows: each of k steps interleaves those of the first half with
    those of the second."""
    n = len(rows)
    pairs = [(i // 2 + (n if i % 2 else 0)) for i in range(2 * n)]
    for _ in range(n.bit_length() - 1):
        halves = zip(rows[: n // 2], rows[n // 2 :], strict=True)
        rows = [e.shuffle(a, b, pairs[k : k + n]) for a, b in halves for k in (0, n)]
    return list(rows)


def fetch_ahead(e: Emitter, p: Val, at: int, distance: int) -> None:
    """Fetch the line that lies `distance` bytes after that at `at` bytes from `p`."""
    e.decls["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
    there, keep = e.at(p, at + distance), 3 if distance <= SOON else 2
    e.lines.append(f"  call void @llvm.prefetch.p0({there}, i32 0, i32 {keep}, i32 1)")


def to_memory(e: Emitter, v: Val) -> Val:
    """A value as it is in memory, where booleans are bytes."""
    return e.op(f"zext {v} to {Val('', 'i8', v.n).ty}", "i8", v.n) if v.t == "i1" else v


def from_memory(e: Emitter, b: Buffer, v: Val) -> Val:
    """What was loaded from `b`, as it is in registers."""
    if b.dtype.kind != "bool":
        return v
    return e.op(f"trunc {v} to {Val('', 'i1', v.n).ty}", "i1", v.n)
