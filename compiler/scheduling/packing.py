"""Packing: a constant operand laid out in the order in which the kernel walks it."""

from __future__ import annotations

from compiler.errors import ScheduleError
from compiler.scheduling.loops import LoopPrimitives
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import Buffer, Expr, Load, loads, rewrite, subst
from compiler.tensor.stmt import For, Packed, Stmt, Store, clone

RUN = 16
"""Rows of a matrix that are copied together into each of its blocks."""


def _step(load: Load, v: Var) -> bool:
    """Whether neighbours along a loop are neighbours in memory."""
    flat = load.buffer.flat(load.idx)
    hidden = any(v in a.leaves() for a in flat.terms if not isinstance(a, Var))
    return not hidden and flat.terms.get(v, 0) == 1


class PackPrimitives(LoopPrimitives):
    """pack, copy_in_blocks, skew, fill."""

    def copy_in_blocks(
        self, stage: str, buffer: Buffer, axis: int, lanes: int, steps: int = 1, group: int = 0
    ) -> Buffer:
        """Let `stage` read `buffer` from a temporary in which `lanes` neighbours along its output
        `axis` lie together, in the order in which the reduction walks them; the stages
        `<stage>.<buffer>` and, if the axis ends within a block, `<stage>.<buffer>.rest` copy. Of
        the first loop of the reduction, `steps` neighbours, which must divide it, are innermost;
        if there are others, and `group` divides it, it is walked in groups of as many neighbours,
        inside the others.

        The twin of `pack` for data that is not known at build time. The end of the last block is
        left as it is: `fill` may multiply it, and nobody reads the result. Reads of the buffer that
        do not follow the axis stay: those of the other operand, where both are one value.

        Raises:
            ScheduleError: the stage does not read the buffer along the axis exactly once, or the
                axis' extent is not known.
        """
        ((store, path, _),) = self.stage_stores(stage)
        along = path[axis].var
        mine = [
            x
            for x in loads(store.value)
            if x.buffer is buffer and any(along in i.vars() for i in x.idx)
        ]
        n = path[axis].extent.constant()
        if len(mine) != 1 or n is None:
            raise ScheduleError(
                f"{stage} must read {buffer.name} once along {along}, over a known extent"
            )
        (load,) = mine
        used: set[Var] = set().union(*(i.vars() for i in load.idx))
        lane, rank = path[axis].var, len(store.idx)
        shared = [f.var for f in path[:rank] if f.var in used and f.var is not lane]
        inner = [f.var for f in path[rank:] if f.var in used]
        outer, walked = ([v.extent or Index.of(1) for v in vs] for vs in (shared, inner))
        if steps > 1:
            walked[0] = Index.of((walked[0].constant() or 0) // steps)
        length = walked[0].constant() if walked else None
        grouped = steps == 1 and group > 1 and len(inner) > 1
        grouped = grouped and length is not None and length > group and length % group == 0
        if grouped:
            walked = [Index.of((length or 0) // group), *walked[1:], Index.of(group)]
        shape = (*outer, Index.of(-(-n // lanes)), *walked, Index.of(lanes))
        shape += (Index.of(steps),) if steps > 1 else ()
        blocks = Buffer(f"{buffer.name}_blocks", shape, buffer.dtype, align=64)
        self.func.temps.append(blocks)
        at = next(k for k, x in enumerate(self.func.body) if x is path[0])
        for name, first, count, width in (
            ("", 0, n // lanes, lanes), (".rest", n // lanes, 1, n % lanes),
        ):  # fmt: skip
            if not count or not width:
                continue
            name = f"{stage}.{buffer.name}{name}"
            fresh = {
                v: Var(f"{name}.{v.name.rsplit('.', 1)[-1]}", v.extent) for v in shared + inner
            }
            block, within = Var(f"{name}.block", count), Var(f"{name}.lane", width)
            m: dict[Var, IntLike] = {**fresh, lane: (block + first) * lanes + within}
            order = [*(fresh[v] for v in shared), block, *(fresh[v] for v in inner), within]
            if steps > 1:
                step = Var(f"{name}.step", steps)
                several = Var(fresh[inner[0]].name, walked[0])
                m[inner[0]] = several * steps + step
                order[len(shared) + 1] = several
                order.append(step)
            if grouped:
                several = Var(fresh[inner[0]].name, walked[0])
                near = Var(f"{name}.near", group)
                m[inner[0]] = several * group + near
                order[len(shared) + 1] = several
                order.insert(len(order) - 1, near)
            idx = [Index.of(v) for v in order]
            idx[len(shared)] = block + first
            if len(inner) == 1 and steps == 1 and (length or 1) % RUN == 0 and _step(load, lane):
                # Some rows of all blocks, one after another: neighbours in memory are near in time.
                far = Var(fresh[inner[0]].name, (length or 0) // RUN)
                near = Var(f"{name}.near", RUN)
                m[inner[0]] = idx[-2] = far * RUN + near
                order = [*order[: len(shared)], far, block, near, within]
            node: Stmt = Store(name, blocks, tuple(idx), subst(load, m))
            for v in reversed(order):
                node = For(v, [node])
            self.func.body.insert(at, node)
            at += 1

        def put(e: Expr) -> Expr | None:
            if e is not load:
                return None
            first, *rest = inner
            at = (first // steps, *rest, lane % lanes, first % steps) if steps > 1 else ()
            if grouped:
                at = (first // group, *rest, first % group, lane % lanes)
            at = at or (*inner, lane % lanes)
            return Load(blocks, tuple(map(Index.of, (*shared, lane // lanes, *at))))

        store.value = rewrite(store.value, put)
        return blocks

    def fill(self, stage: str, loop: str, extent: int) -> None:
        """Run `loop` of a stage in registers for all of `extent` iterations, also where fewer are
        needed: the others multiply the zeros that `pack` (which must follow) fills in, or what lies
        at the end of a block (`copy_in_blocks`), and nobody reads what they compute.

        Raises:
            ScheduleError: the stage is not in registers.
        """
        for store, path, _ in self.stage_stores(stage):
            if store.buffer.scope != "register":
                raise ScheduleError(f"{stage} is not in registers: it cannot be filled up")
            moved = next((f.var for f in path if f.var.name == loop), None)
            env = {f.var: (f.extent.range()[1] or 1) - 1 for f in path}
            if moved is not None:
                env[moved] = extent - 1
            reach = [int(i.value(env)) + 1 for i in store.idx]
            held = [int(n.const) for n in store.buffer.shape]
            store.buffer.shape = tuple(Index.of(max(n)) for n in zip(held, reach, strict=True))
        for s, _, home in self.find(loop):
            v = Var(loop, extent)
            self.swap(home, s, [For(v, [clone(x, {s.var: v}) for x in s.body], s.kind)])

    def skew(self, loop: str, by: str, factor: int, extent: int, name: str) -> str:
        """Replace reduction loop `loop` by `name`, of `extent` iterations, with
        loop = name - factor * by; returns the new loop's name.

        Neighbouring outputs (loop `by`) then read the same data in the same iteration: for data
        read at `factor * by + loop`, that is at `name`. Iterations that fall outside the old loop
        multiply by what `pack` puts where the constant operand has no element, which is zero; so
        the constant operand must be packed afterwards, and the data must be readable there.
        """
        for s, path, home in self.find(loop):
            outer = next((f.var for f in path if f.var.name == by), None)
            if outer is None:
                raise ScheduleError(f"{by} is not around {loop}")
            v = Var(name, extent)
            m: dict[Var, IntLike] = {s.var: v - outer * factor}
            self.swap(home, s, [For(v, [clone(x, m) for x in s.body], s.kind)])
        return name

    def pack(self, stage: str, buffer: Buffer, align: int = 64) -> Buffer:
        """Lay `buffer` out in the loop order that `stage` has now, so that it reads one linear
        stream.

        The packed buffer takes the parameter's place; `pack_array` lays out the array at build
        time. Several stages may read it, in the same order.

        Raises:
            ScheduleError: the stage does not read the buffer exactly once, it is no parameter, or
                another stage reads it in another order, or does not read all that this one does.
        """
        ((store, path, _),) = self.stage_stores(stage)
        mine = [x for x in loads(store.value) if x.buffer is buffer]
        held = next((b for b, p in self.func.packed.items() if p.source is buffer), None)
        if len(mine) != 1 or (buffer not in self.func.params and held is None):
            raise ScheduleError(f"{stage} must read the parameter {buffer.name} exactly once")
        (load,) = mine
        used: set[Var] = set().union(*(i.vars() for i in load.idx))
        vs = tuple(f.var for f in path if f.var in used)
        once: dict[Var, IntLike] = {}
        if held is not None and len(vs) > len(self.func.packed[held].vars):
            # A stage before has put 0 for loops of one iteration.
            once = {f.var: 0 for f in path if f.extent == 1}
            vs = tuple(v for v in vs if v not in once)
        shape = []
        for v in vs:
            hi = v.extent.range()[1] if v.extent is not None else None
            if hi is None:
                raise ScheduleError(f"cannot pack {buffer.name}: the extent of {v} is not known")
            shape.append(Index.of(hi))
        new = held or Buffer(buffer.name + "_packed", tuple(shape), buffer.dtype, align=align)
        if held is not None:
            p = self.func.packed[held]
            m: dict[Var, IntLike] = once | dict(zip(vs, p.vars, strict=False))
            within = len(vs) == len(p.vars) and all(
                n.const <= most.const for n, most in zip(shape, held.shape, strict=True)
            )
            if not within or [i.subst(m) for i in load.idx] != list(p.idx):
                raise ScheduleError(f"{buffer.name} is packed in another order already")

        def put(e: Expr) -> Expr | None:
            return Load(new, vs) if e is load else None

        store.value = rewrite(store.value, put)
        if held is None:
            self.func.params[self.func.params.index(buffer)] = new
            self.func.packed[new] = Packed(buffer, vs, load.idx)
        return new
