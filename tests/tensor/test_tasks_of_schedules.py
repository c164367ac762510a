"""The loops that threads share: rows where there are some, channels where these cost less, and only
loops whose iterations may run in any order."""

from compiler.codegen.parallel_tasks import parallel_tasks
from compiler.scheduling import Schedule
from compiler.scheduling.default import schedule_default
from compiler.scheduling.parallelize import share_out
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import FloatImm, IntImm
from compiler.tensor.stmt import For, PrimFunc, Store, stores, walk_stmts
from compiler.types.dtypes import FLOAT32, INT32


def parallel_loops(f: PrimFunc) -> list[For]:
    return [s for s, _, _ in walk_stmts(f.body) if isinstance(s, For) and s.kind == "parallel"]


def convolution(n: int | Var, c: int, o: int, size: int, kernel: int = 1) -> PrimFunc:
    b = PrimBuilder("conv")
    side = size + kernel - 1
    x = b.input("x", (n, c // 16, side, side, 16), FLOAT32)
    w = b.input("w", (o, c, kernel, kernel), FLOAT32)
    acc = b.reduce(
        "mac", (n, o // 16, size, size, 16), FLOAT32,
        {"co": c // 16, "kh": kernel, "kw": kernel, "ci": 16},
        lambda i, p, y, u, v, co, kh, kw, ci: (
            x[i, co, y + kh, u + kw, ci] * w[p * 16 + v, co * 16 + ci, kh, kw]
        ),
        FloatImm(0.0, FLOAT32),
    )  # fmt: skip
    out = b.compute("y", acc.shape, FLOAT32, lambda *i: acc[i] + FloatImm(1.0, FLOAT32))
    f = b.finish([out])
    schedule_default(f, Target.anywhere("llvm -mcpu=x86-64-v4"), [w])
    return f


def rows_of(f: PrimFunc) -> set[int]:
    """Axes of the output along which the iterations of the parallel loops write."""
    axes = set[int]()
    for loop in parallel_loops(f):
        for s in stores([loop]):
            if s.buffer.scope == "global":
                axes |= {k for k, i in enumerate(s.idx) if loop.var in i.vars()}
    return axes


def test_a_convolution_is_shared_out_by_rows() -> None:
    f = convolution(1, 32, 64, 28)
    assert rows_of(f) == {2}
    extent, _ = parallel_tasks(f.body[-1])
    assert extent == 56  # 28 rows of two pairs of blocks: the shares of two threads are equal


def test_small_maps_are_shared_out_by_channels_and_the_last_block_by_rows() -> None:
    f = convolution(1, 32, 96, 14)
    assert rows_of(f) == {0, 1, 2}
    extent, share = parallel_tasks(f.body[-1])
    assert extent == 42
    (only,) = share.values()
    assert only.stride == 1


def test_an_odd_number_of_blocks_leaves_no_block_out() -> None:
    f = convolution(1, 32, 80, 28)
    assert rows_of(f) == {2}
    assert len(parallel_loops(f)) == 2  # pairs of blocks, and the last one
    extent, _ = parallel_tasks(f.body[-1])
    assert extent == 84


def test_many_weights_for_little_data_are_shared_out_by_channels() -> None:
    f = convolution(1, 512, 512, 7, kernel=3)
    assert 1 in rows_of(f)
    assert 2 not in rows_of(f)


def test_many_images_are_shared_out_one_by_one() -> None:
    f = convolution(32, 32, 64, 14)
    assert rows_of(f) == {0}


def test_a_symbolic_batch_is_shared_out_by_rows() -> None:
    f = convolution(Var("n"), 32, 64, 28)
    assert rows_of(f) == {2}
    extent, _ = parallel_tasks(f.body[-1])
    assert extent == Index.of(Var("n")) * 56


def test_a_nest_that_reads_what_it_writes_is_shared_out_at_its_root_only() -> None:
    """Iterations of an inner loop may depend on each other through memory."""
    b = PrimBuilder("running")
    out = b.buffer("out", (8, 20, 20, 20), INT32)
    one = IntImm(1, INT32)
    b.stage(out, {"n": 8, "c": 20, "y": 19, "x": 20},
            lambda n, c, y, x: ((n, c, y + 1, x), out[n, c, y, x] + one))  # fmt: skip
    f = b.finish([out])
    share_out(Schedule(f), [])
    assert [loop.var.name for loop in parallel_loops(f)] == ["out_s.n"]


def test_a_loop_that_writes_one_place_again_is_not_shared_out() -> None:
    b = PrimBuilder("total")
    x = b.input("x", (40, 6), INT32)
    out = b.buffer("out", (6,), INT32)
    b.stage(out, {"r": 40, "k": 6}, lambda r, k: ((k,), x[r, k]), update="Add")
    f = b.finish([out])
    share_out(Schedule(f), [])
    assert [loop.var.name for loop in parallel_loops(f)] == ["out_s.k"]


def test_registers_are_not_carried_between_iterations_that_threads_share() -> None:
    """A value begun before a loop and used in it keeps that loop on one thread."""
    b = PrimBuilder("carried")
    x = b.input("x", (30,), INT32)
    out = b.buffer("out", (30,), INT32)
    b.stage(out, {"k": 30}, lambda k: ((k,), x[k]), name="s")
    f = b.finish([out])
    register = b.buffer("r", (1,), INT32)
    register.scope = "register"
    (loop,) = f.body
    assert isinstance(loop, For)
    begin = Store("begin", register, (Index.of(0),), IntImm(0, INT32))
    (store,) = loop.body
    assert isinstance(store, Store)
    add = Store("add", register, (Index.of(0),), store.value, "Add")
    store.value = register[0]
    loop.body.insert(0, add)
    f.body[:] = [For(Var("once", 1), [begin, loop])]
    share_out(Schedule(f), [])
    assert not [p for p in parallel_loops(f) if p.extent != 1]


def test_a_last_block_by_itself_is_a_task_too() -> None:
    """A dense layer: blocks of outputs, and statements for what is left of them."""
    b = PrimBuilder("dense")
    x, w = b.input("x", (1, 64), FLOAT32), b.input("w", (1000, 64), FLOAT32)
    zero = FloatImm(0.0, FLOAT32)
    acc = b.reduce("mac", (1, 1000), FLOAT32, {"k": 64}, lambda i, j, k: x[i, k] * w[j, k], zero)
    out = b.compute("y", (1, 1000), FLOAT32, lambda i, j: acc[i, j] + FloatImm(1.0, FLOAT32))
    f = b.finish([out])
    schedule_default(f, Target.anywhere("llvm -mcpu=x86-64-v4"), [w])
    extent, _ = parallel_tasks(f.body[-1])
    assert extent == 32  # 31 times two vectors of 16, and the last 8
