"""Primitives on the shape of loops."""

from __future__ import annotations

from compiler.errors import ScheduleError, unknown
from compiler.symbolic import Index, IntLike, Var, imin
from compiler.tensor.expr import Buffer, Select, index_condition, walk
from compiler.tensor.stmt import AXES, For, PrimFunc, Stmt, Store, clone, stores, walk_stmts

Found = tuple[For, tuple[For, ...], list[Stmt]]


class LoopPrimitives:
    """split, reorder, fuse, peel, unroll, vectorize, parallel, bind, opaque, prefetch."""

    func: PrimFunc

    # ---- finding things --------------------------------------------------------------------------
    def find(self, name: str) -> list[Found]:
        """(loop, enclosing loops, the list that holds it) for every loop called `name`.

        Raises:
            ScheduleError: there is none.
        """
        found: list[Found] = []
        names: set[str] = set()
        for s, path, home in walk_stmts(self.func.body):
            if isinstance(s, For):
                names.add(s.var.name)
                if s.var.name == name:
                    found.append((s, path, home))
        if not found:
            raise ScheduleError(f"{self.func.name}: {unknown('loop', name, names)}")
        return found

    def stage_stores(self, stage: str) -> list[tuple[Store, tuple[For, ...], list[Stmt]]]:
        """Every Store of `stage`, with its enclosing loops and the list that holds it.

        Raises:
            ScheduleError: there is none.
        """
        every = [(s, p, h) for s, p, h in walk_stmts(self.func.body) if isinstance(s, Store)]
        found = [(s, p, h) for s, p, h in every if s.stage == stage]
        if not found:
            names = {s.stage for s, _, _ in every}
            raise ScheduleError(f"{self.func.name}: {unknown('stage', stage, names)}")
        return found

    def init_loops(self, stage: str) -> tuple[For, ...]:
        """Loops around the initialisation that decompose_reduction made."""
        return self.stage_stores(stage + ".init")[0][1]

    def stages(self) -> list[str]:
        """Names of the stages, in program order."""
        names = [s.stage for s, _, _ in walk_stmts(self.func.body) if isinstance(s, Store)]
        return list(dict.fromkeys(names))

    def loops_named(self) -> set[str]:
        """The names of all loops."""
        return {s.var.name for s, _, _ in walk_stmts(self.func.body) if isinstance(s, For)}

    def loops(self, stage: str) -> list[str]:
        """Names of the loops around `stage`, outermost first."""
        return [f.var.name for f in self.stage_stores(stage)[0][1]]

    @staticmethod
    def swap(home: list[Stmt], old: Stmt, new: list[Stmt]) -> None:
        """Replace a statement in the list that holds it."""
        i = next(k for k, s in enumerate(home) if s is old)
        home[i : i + 1] = new

    # ---- loop shape ------------------------------------------------------------------------------
    def split(
        self, name: str, factor: int, names: tuple[str, str] | None = None, tail: str = "peel"
    ) -> tuple[str, str]:
        """v -> outer * factor + inner; returns their names.

        A remainder either gives the inner loop the extent min(factor, ...), see `peel`, or, with
        tail="shift", moves the last tile back so that it overlaps the one before (needs an extent
        of at least `factor` and stores that may be repeated; works for run-time extents).
        """
        outer, inner = names or (name + "o", name + "i")
        for s, _, home in self.find(name):
            e = s.extent
            exact = e.multiple_of(factor)
            vo = Var(outer, e // factor if exact else (e + factor - 1) // factor)
            base = vo * factor if vo.extent != 1 else Index()
            vi = Var(inner, factor if exact else imin(factor, e - base))
            if tail == "shift" and vi.extent is not None and vi.extent.constant() is None:
                vi, base = Var(inner, factor), imin(base, e - factor)
            m: dict[Var, IntLike] = {s.var: base + vi}
            body = For(vi, [clone(x, m) for x in s.body], s.kind)
            self.swap(home, s, [For(vo, [body], whole=e // factor if tail == "peel" else None)])
        return outer, inner

    def fuse(self, outer: str, inner: str, name: str) -> str:
        """Two perfectly nested loops as one; the inner extent must be constant."""
        for s, _, home in self.find(outer):
            if len(s.body) != 1 or not isinstance(s.body[0], For) or s.body[0].var.name != inner:
                raise ScheduleError(f"{inner} is not directly inside {outer}")
            t = s.body[0]
            n = t.extent.constant()
            if n is None:
                raise ScheduleError(f"cannot fuse {inner}: its extent {t.extent} is not constant")
            v = Var(name, s.extent * n)
            m: dict[Var, IntLike] = {s.var: v // n, t.var: v % n}
            self.swap(home, s, [For(v, [clone(x, m) for x in t.body], s.kind)])
        return name

    def reorder(self, *names: str) -> None:
        """Put the named loops, which form a perfect nest, into the given order (others stay in
        place).

        Raises:
            ScheduleError: not one perfect nest; an extent would depend on a loop inside it; or a
                reduction would leave the order in which it accumulates.
        """
        starts = [
            x for n in names for x in self.find(n) if not any(p.var.name in names for p in x[1])
        ]
        for s, _, home in starts:
            chain = [s]
            while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], For):
                chain.append(chain[-1].body[0])
            by = {f.var.name: f for f in chain}
            if not set(names) <= set(by):
                raise ScheduleError(f"{names} are not one perfect nest; it has {list(by)}")
            it = iter([by[n] for n in names])
            order = [next(it) if f.var.name in names else f for f in chain]
            inner: list[Stmt] = chain[-1].body
            nest, seen = {f.var for f in chain}, set[Var]()
            for f in order:
                if (f.extent.vars() & nest) - seen:
                    raise ScheduleError(
                        f"the extent {f.extent} of {f.var} depends on a loop inside it"
                    )
                seen.add(f.var)
            for f in reversed(order):
                inner = [For(f.var, inner, f.kind, f.opaque, f.whole, f.fence)]
            self.swap(home, s, inner)

    def peel(self, name: str) -> None:
        """Separate the last, partial iteration, so that inner extents become constants in both
        copies."""
        for s, path, home in sorted(self.find(name), key=lambda x: -len(x[1])):
            if s.whole is None or s.whole == s.extent:
                continue
            main, left = Var(name, s.whole), s.extent - s.whole
            out: list[Stmt] = []
            if s.whole != 0:
                body = [clone(x, {s.var: main}) for x in s.body]
                out.append(For(main, body, s.kind, s.opaque, fence=s.fence))
            if left == 1 and path:
                out += [clone(x, {s.var: s.whole}) for x in s.body]
            else:
                # A run-time extent leaves a loop of zero or one iteration. At the top level a unit
                # loop stays, since every top-level statement becomes a function of its own.
                rest = Var(name + "_t", left)
                body = [clone(x, {s.var: s.whole}) for x in s.body]
                out.append(For(rest, body, s.kind, s.opaque, fence=s.fence))
            self.swap(home, s, out)

    def isolate(self, name: str) -> None:
        """Separate the first and the last iterations, in which guards and selects below may leave
        something out, from those between them, where they never do."""
        for s, path, home in self.find(name):
            n, conditions = s.extent.constant(), _conditions(s)
            if n is None or not path or not conditions:
                continue

            def runs(k: int, s: For = s, conditions: list[Index] = conditions) -> bool:
                return all(i.subst({s.var: k}) == 1 for i in conditions)

            lead = next((k for k in range(n) if runs(k)), n)
            after = next((k for k in range(lead, n) if not runs(k)), n)
            out: list[Stmt] = []
            for k in (*range(lead), *range(after, n)):
                if k == after and lead < after:
                    out.append(self._part(s, lead, after))
                out += [clone(x, {s.var: k}) for x in s.body]
            if after == n and lead < after:
                out.append(self._part(s, lead, after))
            self.swap(home, s, out)

    @staticmethod
    def _part(s: For, start: int, end: int) -> For:
        """Iterations [start, end) of a loop."""
        v = Var(s.var.name, end - start)
        body = [clone(x, {s.var: start + (0 if v.extent == 1 else v)}) for x in s.body]
        return For(v, body, s.kind, s.opaque, fence=s.fence)

    def _mark(self, kind: str, names: tuple[str, ...]) -> None:
        for n in names:
            for s, _, _ in self.find(n):
                s.kind = kind

    def unroll(self, *names: str) -> None:
        """Repeat the body for every iteration; extents must become constant."""
        self._mark("unroll", names)

    def vectorize(self, *names: str) -> None:
        """Run the iterations as lanes; extents must become constant."""
        self._mark("vector", names)

    def parallel(self, name: str) -> None:
        """Share the iterations out between threads; those of parallel loops inside each other
        together. In a top-level loop nest that has parallel loops, every statement must be in
        one."""
        self._mark("parallel", (name,))

    def bind(self, name: str, axis: str) -> None:
        """Make the iterations blocks of a grid, or threads of their block: `blockIdx.x`,
        `threadIdx.y` ...

        Raises:
            ScheduleError: there is no such axis.
        """
        if axis not in AXES:
            raise ScheduleError(unknown("axis of a grid", axis, AXES))
        self._mark(axis, (name,))

    def opaque(self, name: str, *buffers: Buffer, fence: bool = False) -> None:
        """Each iteration reads `buffers` through a pointer LLVM cannot see through: loads are not
        merged across iterations. `fence`: nor may LLVM's scheduler move loads from one iteration to
        another."""
        for s, _, _ in self.find(name):
            s.opaque, s.fence = s.opaque | frozenset(buffers), fence

    def prefetch(self, buffer: Buffer, distance: int) -> None:
        """Prefetch `distance` bytes ahead of every vector load of `buffer`."""
        self.func.prefetch[buffer] = distance


def _conditions(loop: For) -> list[Index]:
    """Indices that depend on a loop and below it decide (1 or 0) whether something is computed."""
    extents = [s.extent for s, _, _ in walk_stmts(loop.body) if isinstance(s, For)]
    selects = [e for s in stores(loop.body) for e in walk(s.value) if isinstance(e, Select)]
    conditions = [i for e in selects if (i := index_condition(e)) is not None]
    guards = [e for e in extents if e.range()[1] == 1]
    return [i for i in (*guards, *conditions) if loop.var in i.vars()]
