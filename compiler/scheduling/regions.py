"""Primitives that move computation between producers and consumers."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.errors import ScheduleError
from compiler.scheduling.loops import LoopPrimitives
from compiler.scheduling.nests import (
    copied,
    index_sums,
    loop_vars,
    nest,
    redirect,
    refreshed,
    region,
    register_like,
    upper,
)
from compiler.symbolic import Index, IntLike, Var, imin
from compiler.tensor.expr import BinOp, Buffer, Expr, Load, rewrite, subst
from compiler.tensor.stmt import For, Pick, Stmt, Store, accesses, clone, stores, walk_stmts


class RegionPrimitives(LoopPrimitives):
    """compute_inline, compute_at, widen, versions, decompose_reduction, cache_read, cache_write,
    contract."""

    def compute_inline(self, stage: str) -> None:
        """Substitute a stage `buffer[i, j, ...] = value` into the stages that read it.

        Raises:
            ScheduleError: it is a reduction, works at picked positions, or its indices are not its
                loops, or a reader is none.
        """
        ((store, path, _),) = self.stage_stores(stage)
        dims = self._own_loops(store, path)
        if store.update:
            raise ScheduleError(f"{stage} is a reduction: it cannot be inlined")
        if sum(s.buffer is store.buffer for s in stores(self.func.body)) > 1:
            raise ScheduleError(f"{store.buffer.name} is written by several stages")
        if any(isinstance(x, Pick) for x, _, _ in walk_stmts([path[0]] if path else [])):
            raise ScheduleError(f"{stage} works at picked positions: it cannot be inlined")
        self._remove(path[0] if path else store)

        def put(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer is store.buffer:
                m: Mapping[Var, IntLike] = dict(zip(dims, e.idx, strict=True))
                return subst(store.value, m)
            return None

        for s in stores(self.func.body):
            s.value = rewrite(s.value, put)
            s.init = None if s.init is None else rewrite(s.init, put)
        self.func.temps = [b for b in self.func.temps if b is not store.buffer]

    def compute_at(self, stage: str, loop: str) -> None:
        """Move `stage` to the start of `loop`, computing only the region that the loop body reads,
        into a register buffer.

        Raises:
            ScheduleError: the stage is not a perfect nest, or the loop does not read it.
        """
        ((store, path, _),) = self.stage_stores(stage)
        ((target, _, _),) = self.find(loop)
        buf = store.buffer
        if sum(s.buffer is buf for s in stores(self.func.body)) > 1:
            raise ScheduleError(f"{buf.name} is written by several stages")
        dims = self._own_loops(store, path)
        inner = loop_vars(target.body)
        found = (i for b, i, _, _ in accesses(target.body) if b is buf and i is not None)
        reads = list(
            dict.fromkeys(found)
        )  # several alike are one: the extent of a rest stays known
        if not reads:
            raise ScheduleError(f"{loop} does not read {buf.name}")
        self._remove(path[0])
        base, extent = region(reads, inner)
        new = [Var(v.name, e) for v, e in zip(dims, extent, strict=True)]
        buf.shape = tuple(Index.of(upper(e)) for e in extent)
        buf.scope = "register"
        redirect(target.body, buf, buf, base)
        shift: dict[Var, IntLike] = {
            d: b + (0 if n.extent == 1 else n) for d, b, n in zip(dims, base, new, strict=True)
        }
        body = clone(store, shift)
        assert isinstance(body, Store)
        body.idx = tuple(Index() if n.extent == 1 else n for n in new)
        renamed: dict[Var, Var] = dict(zip(dims, new, strict=True))
        node: Stmt = body
        for f in reversed(path):
            node = For(renamed.get(f.var, f.var), [node], f.kind)
        target.body.insert(0, refreshed(node, shift))
        self.func.temps = [b for b in self.func.temps if b is not buf]

    def accumulate_apart(self, stage: str) -> str:
        """Let a reduction accumulate into a temporary, and copy that to its buffer in a stage of
        its own, `<stage>.out`, which schedules can tile; returns that stage's name."""
        ((store, path, _),) = self.stage_stores(stage)
        dims = self._own_loops(store, path)
        there = store.buffer
        acc = Buffer(there.name + "_acc", there.shape, there.dtype)
        self.func.temps.append(acc)
        store.buffer = acc
        vs = [Var(f"{stage}.out.{d.name.rsplit('.', 1)[-1]}", d.extent) for d in dims]
        copy = Store(stage + ".out", there, tuple(vs), Load(acc, tuple(vs)))
        at = next(k for k, x in enumerate(self.func.body) if x is path[0])
        self.func.body.insert(at + 1, nest(vs, copy))
        return copy.stage

    def widen(self, stage: str, reader: str, axis: int, factor: int) -> None:
        """Let `stage` accumulate, and `reader` read, `factor` blocks along `axis` side by side in
        the last axis: loops c and b, of extent n, become c // factor and c % factor * n + b.

        Raises:
            ScheduleError: their loops do not divide that way.
        """
        ((store, _, _),) = self.stage_stores(stage)
        there = store.buffer
        (c, b) = (there.shape[axis].constant(), there.shape[-1].constant())
        if c is None or b is None or c % factor or len(there.shape) < axis + 2:
            raise ScheduleError(f"{stage}: {there.name} has no {factor} blocks side by side")
        shape = list(there.shape)
        shape[axis], shape[-1] = Index.of(c // factor), Index.of(b * factor)
        wide = Buffer(there.name + "_wide", tuple(shape), there.dtype, there.scope)
        self.func.temps = [wide if x is there else x for x in self.func.temps]
        for name in (stage, reader):
            ((s, path, _),) = self.stage_stores(name)
            rank = len(there.shape)
            old = [f.var for f in path[:rank]]
            new = list(old)
            new[axis] = Var(old[axis].name, c // factor)
            new[-1] = Var(old[-1].name, b * factor)
            m: dict[Var, IntLike] = {
                old[axis]: new[axis] * factor + new[-1] // b,
                old[-1]: new[-1] % b,
            }
            body = clone(s, m)
            assert isinstance(body, Store)
            at = tuple(Index.of(v) for v in new)

            def put(e: Expr, at: tuple[Index, ...] = at) -> Expr | None:
                return Load(wide, at) if isinstance(e, Load) and e.buffer is there else None

            if s.buffer is there:
                body.buffer, body.idx = wide, at
            body.value = rewrite(body.value, put)
            node: Stmt = body
            for f, v in reversed(
                [*zip(path[:rank], new, strict=True), *((f, f.var) for f in path[rank:])]
            ):
                node = For(v, [node], f.kind)
            self.swap(self.func.body, path[0], [node])

    def versions(self, stage: str, reader: str, axis: int, least: int, before: str = "") -> str:
        """Copies of `stage` and `reader` that run in their place when `axis` is shorter than
        `least`; returns the copy of the stage (both are called `<name>.few`, as are their loops).
        Of what `stage` alone reads, the stage `before` too.

        For an axis whose extent is known at run time only: of each stage and its copy, one has no
        iterations.
        """
        ((store, path, _),) = self.stage_stores(stage)
        n = path[axis].extent
        many = imin(n // least, 1)
        names = (*([before] if before else []), stage, reader)
        few: dict[Buffer, Buffer] = {}
        for name in names[:-1]:
            ((store, _, _),) = self.stage_stores(name)
            b = store.buffer
            few[b] = Buffer(b.name + "_few", b.shape, b.dtype, b.scope)
        self.func.temps += few.values()

        def put(e: Expr) -> Expr | None:
            return Load(few[e.buffer], e.idx) if isinstance(e, Load) and e.buffer in few else None

        for name in names:
            ((_, (root, *_), _),) = self.stage_stores(name)
            copy = copied(root, {}, ".few")
            for st in stores([copy]):
                st.stage += ".few"
                st.buffer = few.get(st.buffer, st.buffer)
                st.value = rewrite(st.value, put)
            at = next(k for k, x in enumerate(self.func.body) if x is root)
            self.func.body.insert(at, copy)
        for name, extent in ((reader, n * many), (reader + ".few", n - n * many)):
            ((_, around, _),) = self.stage_stores(name)
            old = around[axis]
            v = Var(old.var.name, extent)
            home = around[axis - 1].body if axis else self.func.body
            self.swap(home, old, [For(v, [copied(x, {old.var: v}) for x in old.body], old.kind)])
        return stage + ".few"

    def decompose_reduction(self, stage: str, loop: str) -> None:
        """Make the initialisation of `stage` a nest of its own just before `loop`; its loops and
        the stage are named `<name>.init`."""
        for s, path, _ in self.stage_stores(stage):
            if s.init is None:
                continue
            k = next((i for i, f in enumerate(path) if f.var.name == loop), None)
            if k is None:
                raise ScheduleError(f"{stage} is not inside {loop}")
            home = path[k - 1].body if k else self.func.body
            used: set[Var] = set().union(*(i.vars() for i in s.idx))
            node: Stmt = Store(stage + ".init", s.buffer, s.idx, s.init)
            for f in reversed(path[k:]):
                if f.var in used or f.extent == 1:  # keep unit loops: schedules name them
                    node = For(f.var, [node], f.kind)
            node = clone(node, {})
            for t, _, _ in walk_stmts([node]):
                if isinstance(t, For):
                    t.var.name += ".init"
            home.insert(next(i for i, x in enumerate(home) if x is path[k]), node)
            s.init = None

    def contract(self, stage: str) -> None:
        """Let a sum of products round once per step: `acc = fma(a, b, acc)`.

        Raises:
            ScheduleError: the stage does not add a product.
        """
        for s, _, _ in self.stage_stores(stage):
            if s.update != "Add" or not (isinstance(s.value, BinOp) and s.value.op == "Mul"):
                raise ScheduleError(f"{stage} does not add a product")
            s.update = "Fma"

    def cache_read(self, stage: str, buffer: Buffer, loop: str) -> list[str]:
        """Copy the region of `buffer` that `stage` reads inside `loop` into registers at its start;
        returns the names of the copy's loops."""
        names: list[str] = []
        for target, _, _ in self.find(loop):
            inner = loop_vars(target.body)
            reads = [
                i for b, i, w, _ in accesses(target.body) if b is buffer and i is not None and not w
            ]
            base, extent = region(reads, inner)
            reg = register_like(buffer, extent)
            vs = [Var(f"{reg.name}{d}", e) for d, e in enumerate(extent)]
            redirect(target.body, buffer, reg, base)
            copy = Store(f"{stage}.{reg.name}", reg, tuple(vs), Load(buffer, index_sums(base, vs)))
            target.body.insert(0, nest(vs, copy))
            names = [v.name for v in vs]
        return names

    def cache_write(self, stage: str, loop: str) -> None:
        """Keep the tile of `stage`'s output that `loop` updates in registers: load, update, store
        back."""
        for target, _, _ in self.find(loop):
            (store,) = [s for s in stores(target.body) if s.stage == stage]
            base, extent = region([store.idx], loop_vars(target.body))
            there = store.buffer
            reg = register_like(there, extent)
            store.buffer = reg
            store.idx = tuple(i - b for i, b in zip(store.idx, base, strict=True))
            load = [Var(f"{stage}.in{d}", e) for d, e in enumerate(extent)]
            back = [Var(f"{stage}.out{d}", e) for d, e in enumerate(extent)]
            first = Store(stage + ".in", reg, tuple(load), Load(there, index_sums(base, load)))
            last = Store(stage + ".out", there, index_sums(base, back), Load(reg, tuple(back)))
            target.body.insert(0, nest(load, first))
            target.body.append(nest(back, last))

    # ---- helpers ---------------------------------------------------------------------------------
    @staticmethod
    def _own_loops(store: Store, path: tuple[For, ...]) -> list[Var]:
        """The loop variables that are the store's indices, one per dimension."""
        mine = {f.var for f in path}
        out: list[Var] = []
        for i in store.idx:
            v = next(iter(i.vars()), None)
            if v is None or i != v or v not in mine:
                raise ScheduleError(f"{store.stage}: the index {i} is not a loop of its own")
            out.append(v)
        return out

    def _remove(self, root: Stmt) -> None:
        for s, _, home in walk_stmts(self.func.body):
            if s is root:
                home[:] = [x for x in home if x is not root]
                return
