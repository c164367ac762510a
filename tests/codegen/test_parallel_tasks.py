"""Parallel loops: any ranges of tasks together do everything once, wherever the loops are."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.codegen.llvm import jit
from compiler.codegen.llvm.backend import NativeStage, lower_primfunc
from compiler.codegen.parallel_tasks import parallel_tasks
from compiler.errors import LoweringError
from compiler.scheduling import Schedule
from compiler.symbolic import Index, IntLike, Var
from compiler.target.registry import Target
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import IntImm
from compiler.tensor.stmt import For, PrimFunc
from compiler.types.dtypes import INT32
from compiler.types.names import digest

EXTENTS = st.integers(1, 6)


def counting(shape: tuple[IntLike, ...]) -> PrimFunc:
    """out[i, j, k] += 1 everywhere."""
    b = PrimBuilder("count")
    out = b.buffer("out", shape, INT32)
    loops = {f"i{k}": n for k, n in enumerate(shape)}
    b.stage(out, loops, lambda *i: (i, IntImm(1, INT32)), update="Add", name="s")
    return b.finish([out])


def run(stage: NativeStage, out: np.ndarray, begin: int, end: int, *dims: int) -> None:
    address = jit.compile_text(stage.text, stage.symbol, Target.parse("llvm"))
    kinds = [ctypes.c_void_p, *[ctypes.c_int64] * (2 + len(dims))]
    ctypes.CFUNCTYPE(None, *kinds)(address)(out.ctypes.data, *dims, begin, end)


def stage_of(f: PrimFunc) -> NativeStage:
    f.name = f"shares_{digest(str(f))}"
    (stage,) = lower_primfunc(f, [])
    return stage


@settings(max_examples=60, deadline=None)
@given(st.tuples(EXTENTS, EXTENTS, EXTENTS), st.integers(0, 2), st.integers(0, 2), st.data())
def test_ranges_of_tasks_together_do_everything_once(
    shape: tuple[int, ...], axis: int, left: int, data: st.DataObject
) -> None:
    """Also where a parallel loop has a tail beside it, which is another one with another extent."""
    whole = data.draw(st.integers(2, 4))
    shape = (*shape[:axis], whole * 4 + (left and left + 1), *shape[axis + 1 :])
    f = counting(shape)
    s = Schedule(f)
    if left and axis:
        outer, inner = s.split(f"s.i{axis}", 4)
        s.peel(outer)
        s.parallel(inner)
    else:
        s.parallel(f"s.i{axis}")
    stage = stage_of(f)
    assert stage.extent is not None
    tasks = int(stage.extent.value({}))
    cuts = sorted(data.draw(st.lists(st.integers(0, tasks), max_size=4)))
    out = np.zeros(shape, np.int32)
    for begin, end in zip([0, *cuts], [*cuts, tasks], strict=True):
        run(stage, out, begin, end)
    assert np.all(out == 1)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_symbolic_rounds(n: int) -> None:
    f = counting((Var("n"), 4, 3))
    Schedule(f).parallel("s.i1")
    stage = stage_of(f)
    assert stage.extent == Index.of(Var("n")) * 4
    out = np.zeros((n, 4, 3), np.int32)
    for begin, end in [(0, n), (n, 3 * n + 1), (3 * n + 1, 4 * n)]:
        run(stage, out, begin, end, n)
    assert np.all(out == 1)


def test_a_range_is_a_range_of_rows_for_every_round() -> None:
    """What makes a thread find its own rows in its cache."""
    f = counting((3, 8, 5))
    Schedule(f).parallel("s.i1")
    stage = stage_of(f)
    out = np.zeros((3, 8, 5), np.int32)
    run(stage, out, 0, 12)
    assert np.all(out[:, :4] == 1)
    assert not out[:, 4:].any()
    run(stage, out, 12, 13)  # one task more: one round of row 4
    assert [out[k, 4, 0] for k in range(3)] == [1, 0, 0]


@given(st.permutations(["s.i0", "s.i1", "s.i2"]), st.integers(1, 3), st.integers(0, 41))
def test_parallel_loops_inside_each_other_are_shared_out_as_one(
    names: list[str], count: int, cut: int
) -> None:
    f = counting((2, 3, 7))
    s = Schedule(f)
    for name in names[:count]:
        s.parallel(name)
    stage = stage_of(f)
    assert stage.extent == 42 if "s.i2" in names[:count] else stage.extent is not None
    tasks = int(stage.extent.value({}))
    cut = cut % (tasks + 1)
    out = np.zeros((2, 3, 7), np.int32)
    run(stage, out, 0, cut)
    if count == 3:
        assert np.all(out.reshape(-1) == (np.arange(42) < cut))  # in the order of memory
    run(stage, out, cut, tasks)
    assert np.all(out == 1)


def test_what_cannot_be_shared_out_is_refused() -> None:
    g = counting((3, 4, 5))
    Schedule(g).parallel("s.i1")
    root, other = g.body[0], counting((2, 2, 2)).body[0]
    assert isinstance(root, For)
    root.body.append(other)
    with pytest.raises(LoweringError, match="is in none"):
        parallel_tasks(root)
    h = counting((3, 4, 5))
    t = Schedule(h)
    t.split("s.i0", 2, ("o", "i"))  # the inner extent is min(2, 3 - 2 o)
    t.reorder("s.i1", "o", "i")
    t.parallel("i")
    with pytest.raises(LoweringError, match="vary"):
        parallel_tasks(h.body[0])
