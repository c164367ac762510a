"""Kernels of attention, a tile of rows at a time: the bits of the kernels one after another, and of
the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from attention_cases import Case, operands
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default
from compiler.scheduling.row_cuts import cut
from compiler.scheduling.same_memory import same_memory
from compiler.target.registry import Target
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.shared_rows import SharedRows, shared_rows
from compiler.tensor.stmt import For, PrimFunc, stores
from compiler.types.dtypes import FLOAT32

APART = {"disabled_pass": ["FuseAttention"]}
LONG = 3000
"""Keys of which few rows of scores fit the cache."""

cases = st.builds(
    Case,
    batch=st.integers(1, 2),
    heads=st.integers(1, 5),
    rows=st.integers(1, 40),
    keys=st.integers(1, 50) | st.integers(LONG, LONG + 20),
    width=st.integers(1, 9),
    mask=st.sampled_from(["none", "add", "where"]),
    split=st.booleans(),
)


def check(mod: IRModule, threads: int = 1, target: str = "llvm", exact: bool = True) -> None:
    args = operands(mod)
    one = compiler.build(mod, target=target, threads=threads)
    with compiler.PassContext(**APART):
        several = compiler.build(mod, target=target)
    assert len(one.program.kernels) < len(several.program.kernels)
    assert one(*args).tobytes() == several(*args).tobytes()
    want = compiler.evaluate(mod, *args)
    if exact:
        np.testing.assert_array_equal(one(*args), want)
    else:
        np.testing.assert_allclose(one(*args), want, rtol=2e-4, atol=2e-5)


def loops(mod: IRModule) -> PrimFunc:
    main = mod.main
    f = legalize(Function(main.params, main.bindings, main.results, {"primitive": True})).func
    schedule_default(f, Target.anywhere("llvm -mcpu=cascadelake"))
    return f


def test_results_stay() -> None:
    check(Case(mask="where", batch=2).floats(), exact=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "case",
    [
        Case(heads=3, rows=50, keys=LONG),  # the last tile has fewer rows
        Case(heads=1, rows=42, keys=LONG, width=3, mask="add"),  # even tiles
        Case(batch=2, rows=1, keys=33, mask="where"),
        Case(batch=2, heads=3, rows=6, split=True),
    ],
)
def test_results_of_bytes_stay(case: Case) -> None:
    check(case.bytes(), threads=2)


@pytest.mark.thorough
@settings(max_examples=9, deadline=None)
@given(case=cases, threads=st.integers(1, 2))
def test_bytes_stay(case: Case, threads: int) -> None:
    check(case.bytes(), threads)


@pytest.mark.thorough
@settings(max_examples=9, deadline=None)
@given(case=cases, threads=st.integers(1, 2))
def test_floats_stay(case: Case, threads: int) -> None:
    check(case.floats(), threads, exact=False)


FORMATS = [
    ("posit8_es2", "sequential"),
    ("posit16_es1", "float32"),
    ("bfloat16", "sequential"),
    ("float8_e4m3fn", "float32"),
    ("posit8_es0", "exact"),
    ("float32", "bfloat16"),
    ("bfloat16_stochastic", "sequential"),
    ("fixed16_8", "sequential"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "accumulate"), FORMATS[:2])
def test_formats_stay(dtype: str, accumulate: str) -> None:
    mod = Case(rows=9, mask="add").floats()
    check(datatypes.change_dtype(mod, "float32", dtype, accumulate=accumulate))


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(
    case=cases.filter(lambda c: c.heads * c.batch < 4 and c.width < 4),
    form=st.sampled_from(FORMATS),
    threads=st.integers(1, 2),
)
def test_any_format_stays(case: Case, form: tuple[str, str], threads: int) -> None:
    dtype, accumulate = form
    mod = datatypes.change_dtype(case.floats(), "float32", dtype, accumulate=accumulate)
    args = operands(mod)
    want = compiler.evaluate(mod, *args)
    np.testing.assert_array_equal(compiler.build(mod, threads=threads)(*args), want)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2", "c"])
def test_other_targets(target: str) -> None:
    case = Case(heads=3, rows=50, keys=LONG, width=8)
    check(case.bytes(), target=target)
    check(case.floats(), target=target, exact=False)


def test_scores_stay_in_the_cache() -> None:
    case = Case(heads=32, rows=200, keys=LONG)
    scores = case.heads * case.rows * case.keys * 4
    exe = compiler.build(case.floats())
    assert exe.program.workspace.constant() < scores / 2
    *before, last = loops(case.floats()).body
    assert all(isinstance(s, For) for s in before)  # keys and values, in order, for all tiles
    assert isinstance(last, For)
    assert (last.kind, last.extent) == ("parallel", 16)  # each of two heads
    (tiles,) = last.body[0].body
    assert isinstance(tiles, For)
    assert tiles.extent == 10


def tilings(*extents: int, keys: int = LONG) -> list[tuple[object, ...]]:
    """(rows of a tile, extents of the loops over tiles) of attention with so many rows."""
    heads, rows = extents
    main = Case(heads=heads, rows=rows, keys=keys).floats().main
    f = legalize(Function(main.params, main.bindings, main.results, {"primitive": True})).func
    rows_of = shared_rows(f)
    assert isinstance(rows_of, SharedRows)
    cuts = cut(rows_of, 1 << 18)
    return [(t.rows[-1], *(v.extent.constant() for v in t.loops if v.extent)) for t in cuts]


def test_how_rows_are_cut() -> None:
    assert tilings(1, 21) == []  # one tile
    assert tilings(4, 21) == [(21, 4)]
    assert tilings(34, 21) == [(21, 17, 2)]
    assert tilings(4, 42) == [(21, 4, 2)]
    assert tilings(4, 43) == [(21, 4, 2), (1, 4)]  # and one row
    assert tilings(1, 126) == [(21, 6)]  # threads share tiles of a head
    assert tilings(1, 43) == [(10, 4), (3, 1)]
    assert tilings(1, 1499) == [(19, 13, 6), (17, 1)]
    assert tilings(2, 7) == []  # sums of several heads go side by side
    assert tilings(1, 17, keys=1 << 20) == [(8, 2), (1, 1)]  # a row is larger than the cache


def test_rows_that_are_not_apart() -> None:
    def found(mod: IRModule) -> SharedRows | str:
        main = mod.main
        f = Function(main.params, main.bindings, main.results, {"primitive": True})
        return shared_rows(legalize(f).func)

    rows = found(Case(batch=2, heads=3, rows=5).floats())
    assert isinstance(rows, SharedRows)
    assert rows.extents == (2, 3, 5)
    split = found(Case(batch=2, heads=3, rows=5, split=True).floats())
    assert isinstance(split, SharedRows)
    assert (split.extents, split.order) == ((2, 3, 5), (0, 2, 1, 3))  # moves are no stages
    assert [s.store.stage for s in split.stages] == [s.store.stage for s in rows.stages]
    turned = found(Case(turned=True).floats())
    assert turned == "transpose has other rows than the result"


def test_temporaries_take_the_memory_of_others() -> None:
    """Scores become exponentials, and these become weights, where they lie."""
    f = loops(Case(heads=3, rows=64, keys=40).floats())
    large = [b for b in f.temps if b.shape[-1] == 40]
    assert len(large) == 1
    texts = [s.buffer.name for s in stores(f.body) if s.stage in ("softmax_exp_s", "softmax_s")]
    assert set(texts) == {large[0].name}


def test_elements_that_are_read_elsewhere_are_not_overwritten() -> None:
    """A stage that reads its neighbour's element has memory of its own."""
    b = PrimBuilder("shifted")
    x = b.input("x", (8,), FLOAT32)
    first = b.compute("first", (8,), FLOAT32, lambda i: x[i] + 1)
    turned = b.compute("turned", (8,), FLOAT32, lambda i: first[i * -1 + 7] * 2)
    same = b.compute("same", (8,), FLOAT32, lambda i: turned[i] * 3)
    again = b.compute("again", (8,), FLOAT32, lambda i: same[i] - 1)
    f = b.finish([b.compute("out", (8,), FLOAT32, lambda i: again[i])])
    assert same_memory(f.body, f.temps) == {
        first: first, turned: turned, same: first, again: first
    }  # fmt: skip


@pytest.mark.parametrize("rows", [8, 182])
def test_norms_go_by_rows(rows: int) -> None:
    """Several sums of a row; 182 rows are not one tile."""
    b = FunctionBuilder()
    x = b.param("x", (1, rows, 400))
    gain, shift = (compiler.const(np.full(400, v, np.float32)) for v in (1.5, 0.25))
    mod = IRModule({"main": b.finish(b.call("nn.layer_norm", x, gain, shift))})
    mod = datatypes.change_dtype(mod, "float32", "bfloat16", accumulate="float32")
    (data,) = operands(mod)
    exe = compiler.build(mod, threads=2)
    np.testing.assert_array_equal(exe(data), compiler.evaluate(mod, data))
