"""Default schedules of machines that have grids of threads, chosen from the loop nest alone.

Products of matrices go by tiles (see `compiler.scheduling.grids.tiled`), what is done with the rows
of a tensor by blocks that share them (see `compiler.scheduling.grids.row_groups`), and what reads
along another axis than it stores along by squares (`compiler.scheduling.grids.transposed`). Every
other top-level loop nest becomes one grid: its outermost loops whose iterations share nothing are
numbered as one, innermost first, and each thread does one iteration. So neighbouring threads do
neighbouring elements. A reduction adds up in a register of its thread, which then also computes
what elementwise stages make of the sum; padding is read where it is needed. What has no such loops
runs on one thread.
"""

from __future__ import annotations

from collections.abc import Collection

from compiler.errors import ScheduleError
from compiler.scheduling import Schedule
from compiler.scheduling.choices import Choice
from compiler.scheduling.default import untiled
from compiler.scheduling.grids.consumers import contracted, join_consumers
from compiler.scheduling.grids.neighbours import neighbours
from compiler.scheduling.grids.padding import read_padding
from compiler.scheduling.grids.row_groups import group_rows
from compiler.scheduling.grids.tiled import tile_products
from compiler.scheduling.grids.transposed import transposed
from compiler.scheduling.grids.warps import tile_by_warps
from compiler.scheduling.grids.windows import share_windows
from compiler.scheduling.independent import independent
from compiler.scheduling.user_schedules import arranged
from compiler.symbolic import Index, IntLike, Var, imin
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Load
from compiler.tensor.stmt import For, PrimFunc, Stmt, Store, clone, family, walk_stmts

THREADS = 128
"""Threads of a block, where there is work for so many."""
WARP = 32


def schedule_grids(
    f: PrimFunc,
    target: Target,
    constants: Collection[Buffer] = (),
    choices: Choice | None = None,
) -> None:
    """Schedule `f` in place.

    Args:
        f: the loop nests.
        target: a GPU.
        constants: the parameters whose arrays are known at build time.
        choices: there are none yet.

    Raises:
        ScheduleError: something is chosen.
    """
    if choices:
        raise ScheduleError(f"{f.name}: nothing can be chosen for target {target.text!r}")
    if not arranged(f):
        s = untiled(f)
        read_padding(f)
        tile_by_warps(s, target, constants)
        tile_products(s, target, constants)
        group_rows(s, target)
        join_consumers(s, target)
    f.body[:] = [_grid(s, target) for s in f.body]
    _start_reductions(f)


def _grid(s: Stmt, target: Target) -> Stmt:
    """A top-level statement as a grid."""
    if isinstance(s, For) and family(s):
        return s
    if (made := transposed(s) or neighbours(s)) is not None:
        return made
    loops, body = _apart(s)
    for x, _, _ in walk_stmts(body):
        if isinstance(x, For) and x.kind == "parallel":
            x.kind = "serial"
    body = _in_register(body, {f.var for f in loops}, target)
    loops, body = share_windows(loops, body)
    total = Index.of(1)
    for f in loops:
        total = total * f.extent
    most = total.range()[1]
    if most == 0:  # it never runs
        return For(Var("block", 0), [For(Var("thread", 1), [s], "threadIdx.x")], "blockIdx.x")
    threads = THREADS if most is None or most >= THREADS else -(-most // WARP) * WARP
    block = Var("block", (total + threads - 1) // threads)
    exact = total.multiple_of(threads)
    thread = Var("thread", threads if exact else imin(threads, total - block * threads))
    number = (Index() if block.extent == 1 else block * threads) + thread
    at: dict[Var, IntLike] = {}
    for f in reversed(loops):
        last = f is loops[0]
        at[f.var] = number if last else number % f.extent
        number = number // f.extent
    inner = [clone(x, at) for x in body]
    return For(block, [For(thread, inner, "threadIdx.x")], "blockIdx.x")


def _apart(s: Stmt) -> tuple[list[For], list[Stmt]]:
    """The loops from a statement on that are directly inside each other, of which no iterations
    share anything, and what is in them."""
    loops: list[For] = []
    body = [s]
    while len(body) == 1 and isinstance(loop := body[0], For):
        around = {f.var for f in loops}
        marked = loop.kind == "parallel"  # somebody says so
        if loop.kind not in ("serial", "parallel") or loop.extent.vars() & around:
            break
        if not marked and not independent(loop):
            break
        loops.append(loop)
        body = loop.body
    return loops, body


def _in_register(body: list[Stmt], fixed: set[Var], target: Target) -> list[Stmt]:
    """A reduction of one element per thread, which adds up in a register."""
    nest, path = body, list[Stmt]()
    while len(nest) == 1 and isinstance(loop := nest[0], For):
        path.append(loop)
        nest = loop.body
    if not path or len(nest) != 1 or not isinstance(store := nest[0], Store):
        return body
    if store.init is None or not store.update or store.buffer.scope != "global":
        return body
    if any(not i.vars() <= fixed | _dims(i) for i in store.idx):
        return body
    sum_ = Buffer(f"{store.buffer.name}_sum", (Index.of(1),), store.buffer.dtype, "register")
    zero = (Index(),)
    nest[0] = Store(store.stage, sum_, zero, store.value, contracted(store, target))
    return [
        Store(f"{store.stage}.init", sum_, zero, store.init),
        *body,
        Store(f"{store.stage}.out", store.buffer, store.idx, Load(sum_, zero)),
    ]


def _dims(i: Index) -> set[Var]:
    """The variables of an index that are no loops."""
    return {v for v in i.vars() if v.extent is None}


def _start_reductions(f: PrimFunc) -> None:
    """The initializations of reductions that are left, as statements."""
    s = Schedule(f)
    for stage in s.stages():
        for store, path, home in s.stage_stores(stage):
            if store.init is None:
                continue
            used: set[Var] = set().union(*(i.vars() for i in store.idx))
            inside = [x for x in path if not family(x)]
            reduction = next((x for x in inside if x.var not in used), None)
            if reduction is not None:
                s.decompose_reduction(stage, reduction.var.name)
            else:  # of one step, whose loop became part of the grid
                home.insert(home.index(store), _begun(store))
                store.init = None


def _begun(store: Store) -> Store:
    """The statement that a reduction starts from."""
    assert store.init is not None
    return Store(f"{store.stage}.init", store.buffer, store.idx, store.init)


__all__ = ["THREADS", "schedule_grids"]
