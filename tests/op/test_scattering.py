"""Scattering and gathering: what they cost, in which order updates come, and who shares them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.errors import DtypelabError, TypeInferenceError
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_tir
from compiler.scheduling.default import schedule_default
from compiler.scheduling.independent import check_independent
from compiler.symbolic import Var
from compiler.target.registry import Target
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import FLOAT32, INT64, Array
from compiler.types.tensor_types import TensorType

ADDED = ("sequential", "fma", "float32", "float64", "exact")
BOTH = ("scatter_elements", "scatter_nd")


def network(
    op: str, x: Array, at: Array, updates: Array | None = None, **attrs: object
) -> IRModule:
    """One operator of data, positions and perhaps updates, all of them inputs."""
    b = FunctionBuilder()
    params = [b.param("x", x.shape, FLOAT32), b.param("at", at.shape, INT64)]
    if updates is not None:
        params.append(b.param("u", updates.shape, FLOAT32))
    return IRModule({"main": b.finish(b.call(op, *params, **attrs))})


def kernel(mod: IRModule) -> PrimFunc:
    (k,) = compiler.build(mod).program.kernels
    return k.func


def work(mod: IRModule) -> int:
    return sum(int(s.work.value({})) for s in compiler.build(mod).program.steps)


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize("op", BOTH)
def test_the_work_is_that_of_the_data_and_the_updates(op: str, reduction: str) -> None:
    """Not their product."""
    x, updates = np.zeros((400, 6), np.float32), np.zeros((300, 6), np.float32)
    at = np.zeros((300, 6) if op == "scatter_elements" else (300, 1), np.int64)
    assert work(network(op, x, at, updates, reduction=reduction)) <= x.size + updates.size


@st.composite
def scatterings(draw: st.DrawFn) -> tuple[str, dict[str, object], list[Array]]:
    """An operator, its attributes and operands: positions that meet, count from the end, or are
    none."""
    op, rank = draw(st.sampled_from(BOTH)), draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    reduction = draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    attrs: dict[str, object] = {"reduction": reduction}
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    count, high = draw(st.integers(1, 9)), max(shape) + 1
    if op == "scatter_elements":
        axis = draw(st.integers(-rank, rank - 1))
        attrs["axis"] = axis
        many = tuple(
            count if k == axis % rank else draw(st.integers(1, n)) for k, n in enumerate(shape)
        )
        at, wanted = rng.integers(-high, high, many), many
    else:
        depth = draw(st.integers(1, rank))
        at, wanted = rng.integers(-high, high, (count, 2, depth)), (count, 2, *shape[depth:])
    numbers = [np.float32(v) for v in (-0.0, 0.0, 1.5, -2.25, np.inf, np.nan, 3e38, 1e-3)]
    x, updates = (rng.choice(numbers, s).astype(np.float32) for s in (shape, wanted))
    return op, attrs, [x, at, updates]


@settings(max_examples=8)
@given(scatterings(), st.sampled_from([1, 3]))
def test_any_scattering_is_the_references(
    drawn: tuple[str, dict[str, object], list[Array]], threads: int
) -> None:
    op, attrs, operands = drawn
    mod = network(op, *operands, **attrs)
    want = compiler.evaluate(mod, *operands)
    got = compiler.build(mod, threads=threads)(*operands)
    np.testing.assert_array_equal(got, want)
    whole = ~np.isnan(want)
    assert (np.signbit(got) == np.signbit(want))[whole].all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("accumulate", ADDED)
@pytest.mark.parametrize("op", BOTH)
def test_sums_in_every_mode_come_in_the_order_of_updates(op: str, accumulate: str) -> None:
    rng = np.random.default_rng(1)
    x, updates = (rng.normal(size=n).astype(np.float32) for n in ((5, 3, 2), (40, 3, 2)))
    at = rng.integers(-7, 7, (40, 3, 2) if op == "scatter_elements" else (40, 1))
    mod = network(op, x, at, updates, reduction="add")
    mod = datatypes.change_dtype(mod, "float32", "float8_e4m3fn", accumulate=accumulate)
    want = np.asarray(compiler.evaluate(mod, x, at, updates))
    assert np.asarray(compiler.build(mod, threads=2)(x, at, updates)).tobytes() == want.tobytes()


@pytest.mark.parametrize("op", BOTH)
def test_threads_share_what_no_other_thread_updates(op: str) -> None:
    """All updates hit one place, many times: the last one stays, the sum is that of all."""
    x, updates = np.zeros((2, 64, 5), np.float32), np.ones((3000, 64, 5), np.float32)
    updates[-1] = 2
    at = np.zeros((3000, 64, 5) if op == "scatter_elements" else (3000, 1), np.int64)
    for reduction, value in (("none", 2), ("add", 3001)):
        exe = compiler.build(network(op, x, at, updates, reduction=reduction), threads=4)
        assert exe.program.steps[1].stage.extent == 64  # type: ignore[union-attr]
        (first, second) = exe(x, at, updates)
        assert (first == value).all()
        assert not second.any()


def test_open_sizes_never_store_beside_the_data() -> None:
    """More columns of indices than of data: those beside it are left out, as is every position
    that is none."""
    b = FunctionBuilder()
    n, m = Var("n"), Var("m")
    x, at = b.param("x", (3, n), FLOAT32), b.param("at", (2, m), INT64)
    u = b.param("u", (2, m), FLOAT32)
    mod = IRModule({"main": b.finish(b.call("scatter_elements", x, at, u))})
    data, where = np.zeros((3, 2), np.float32), np.array([[0, 9, 1, 1], [-9, 2, 2, 2]])
    got = compiler.build(mod)(data, where, np.arange(1, 9, dtype=np.float32).reshape(2, 4))
    np.testing.assert_array_equal(got, [[1, 0], [0, 0], [0, 6]])


def test_more_indices_than_data_beside_the_axis_are_refused() -> None:
    x, at = np.zeros((3, 2), np.float32), np.zeros((2, 4), np.int64)
    with pytest.raises(TypeInferenceError, match="axis 1 is shorter in the data"):
        network("scatter_elements", x, at, np.zeros((2, 4), np.float32))


@pytest.mark.parametrize("op", [*BOTH, "gather_nd"])
def test_picked_positions_print_and_mean_what_runs(op: str) -> None:
    rng = np.random.default_rng(2)
    x, u = rng.normal(size=(4, 3, 9)).astype(np.float32), np.ones((5, 3, 9), np.float32)
    at = rng.integers(-5, 5, (5, 3, 9) if op == "scatter_elements" else (5, 1))
    operands = [x, at] if op == "gather_nd" else [x, at, u]
    mod = network(op, *operands)
    func, want = kernel(mod), compiler.build(mod)(*operands)
    assert " pick " in str(func)
    out = np.empty_like(want)
    loop_nests.run(parse_primfunc(str(func)), [*operands, out])
    assert (
        out.tobytes() == want.tobytes() == np.asarray(compiler.evaluate(mod, *operands)).tobytes()
    )


def test_slices_are_looked_up_once_and_copied_as_vectors() -> None:
    x, at = np.zeros((9, 64), np.float32), np.zeros((7, 1), np.int64)
    func = kernel(network("gather_nd", x, at))
    schedule_default(func, Target.parse("llvm"))
    text = str(func)
    assert "vector for" in text.split(" pick ")[1]


WRITTEN = """primfunc @shifted(x: float32[6], at: int64[5]) -> (y: float32[6]) {
  for i in 6:
    copy: y[i] = x[i]
  for k in 5:
    pick p in 5 at at[k]:
      STATEMENT
}"""


@pytest.mark.parametrize(
    "statement",
    [
        "move: y[p] = y[p + 1]",  # of its own tensor another element
        "move: y[p + 1] = (y[p + 1] + x[k])",
        "move: y[p] = (y.flat[at[k]] + x[p])",
        "move: y[p] += x[k]",
    ],
)
def test_what_a_person_writes_with_picked_positions_runs_in_its_order(statement: str) -> None:
    func = parse_primfunc(WRITTEN.replace("STATEMENT", statement))
    x, at = np.arange(1, 7, dtype=np.float32), np.array([1, 0, 3, 1, -1])
    want = np.empty_like(x)
    loop_nests.run(func, [x, at, want])
    b = FunctionBuilder()
    operands = [b.param("x", (6,), FLOAT32), b.param("at", (5,), INT64)]
    y = b.bind(call_tir("shifted", operands, TensorType.of((6,), FLOAT32)))
    mod = IRModule({"main": b.finish(y), "shifted": func})
    assert compiler.build(mod, threads=2)(x, at).tobytes() == want.tobytes()


def test_a_vectorized_loop_holds_no_picked_position() -> None:
    text = WRITTEN.replace("STATEMENT", "move: y[p] = x[k]").replace("for k", "vector for k")
    with pytest.raises(DtypelabError, match="share elements of y"):
        check_independent(parse_primfunc(text))
