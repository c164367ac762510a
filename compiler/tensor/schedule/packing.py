"""Packing: a constant operand laid out in the order in which the kernel walks it."""

from __future__ import annotations

import numpy as np

from compiler.dtypes import Array
from compiler.errors import ScheduleError
from compiler.symbolic import Index, Var
from compiler.tensor.expr import Expr, Load, loads, rewrite
from compiler.tensor.schedule.loops import LoopPrimitives
from compiler.tensor.stmt import Buffer, Packed, PrimFunc


class PackPrimitives(LoopPrimitives):
    """pack."""

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


def pack_array(func: PrimFunc, buffer: Buffer, source: Array) -> Array:
    """numpy twin of `pack`: `source` laid out as the packed parameter `buffer` (zeros outside)."""
    packed = func.packed[buffer]
    shape = tuple(int(n.const) for n in buffer.shape)
    env = dict(zip(packed.vars, np.ogrid[tuple(slice(0, n) for n in shape)], strict=True))
    at = [np.broadcast_to(i.value(env), shape) for i in packed.idx]
    inside = np.ones(shape, bool)
    for a, n in zip(at, source.shape, strict=True):
        inside &= a < n
    clamped = tuple(np.minimum(a, n - 1) for a, n in zip(at, source.shape, strict=True))
    return np.where(inside, source[clamped], 0).astype(source.dtype)
