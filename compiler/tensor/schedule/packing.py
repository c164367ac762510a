"""Packing: a constant operand laid out in the order in which the kernel walks it."""

from __future__ import annotations

from compiler.errors import ScheduleError
from compiler.symbolic import Index, IntLike, Var
from compiler.tensor.expr import Expr, Load, loads, rewrite
from compiler.tensor.schedule.loops import LoopPrimitives
from compiler.tensor.stmt import Buffer, For, Packed, clone


class PackPrimitives(LoopPrimitives):
    """pack, skew, fill."""

    def fill(self, stage: str, loop: str, extent: int) -> None:
        """Run `loop` of a stage in registers for all of `extent` iterations, also where fewer are
        needed: the others multiply the zeros that `pack` (which must follow) fills in, and nobody
        reads what they compute.

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
        time.

        Raises:
            ScheduleError: the stage does not read the buffer exactly once, or it is no parameter.
        """
        ((store, path, _),) = self.stage_stores(stage)
        mine = [x for x in loads(store.value) if x.buffer is buffer]
        if len(mine) != 1 or buffer not in self.func.params:
            raise ScheduleError(f"{stage} must read the parameter {buffer.name} exactly once")
        (load,) = mine
        used: set[Var] = set().union(*(i.vars() for i in load.idx))
        vs = tuple(f.var for f in path if f.var in used)
        shape = []
        for v in vs:
            hi = v.extent.range()[1] if v.extent is not None else None
            if hi is None:
                raise ScheduleError(f"cannot pack {buffer.name}: the extent of {v} is not known")
            shape.append(Index.of(hi))
        new = Buffer(buffer.name + "_packed", tuple(shape), buffer.dtype, align=align)

        def put(e: Expr) -> Expr | None:
            return Load(new, vs) if e is load else None

        store.value = rewrite(store.value, put)
        self.func.params[self.func.params.index(buffer)] = new
        self.func.packed[new] = Packed(buffer, vs, load.idx)
        return new
