"""Products in number formats by tiles: the interpreter's bits, whatever the shape, the format, the
way sums are formed, and the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grid_interpreter import interpreted
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gpu_formats import FORMATS
from test_grid_consumers import convolution
from test_grid_tiles import MATMUL, dense, tiled

import compiler
import datatypes
from compiler.build import compile_program
from compiler.codegen.backend import backend_of
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.codegen.shared_tables import share_tables
from compiler.errors import DtypelabError, LoweringError
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.scheduling import Schedule
from compiler.scheduling.grids.products import product_of
from compiler.scheduling.grids.steps import BUILT_IN, step_of
from compiler.scheduling.grids.tiles import REGISTERS, choose_tile
from compiler.symbolic import Index, Var, imin
from compiler.target.registry import Target
from compiler.tensor.expr import Buffer, Gather, Load, cast
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import Barrier, For, PrimFunc, Stmt, Store, accesses
from compiler.types.dtypes import INT32, INT64

SIMT, PTX = (f"cuda -arch=sm_80 -runner={name}" for name in ("simt", "ptx"))
RNG = np.random.default_rng(0)
SPECIAL = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 1e30, 448.0, 2.0**-9])
SUMS = ("sequential", "fma", "float32", "exact", "float22_e8m13", "posit16_es1")


def numbers(shape: tuple[int, ...], special: float = 0.0) -> np.ndarray:
    """Ordinary numbers, and a share of others."""
    x = RNG.normal(size=shape).astype(np.float32)
    return np.where(RNG.random(shape) < special, RNG.choice(SPECIAL, shape), x).astype(np.float32)


def check(
    mod: IRModule,
    name: str,
    *args: np.ndarray,
    sums: str = "sequential",
    target: str = SIMT,
    lowering: str | None = None,
) -> Any:
    """A module in a format has the interpreter's bits; returns what was built."""
    mod = datatypes.change_dtype(mod, "float32", name, accumulate=sums)
    exe = compiler.build(mod, target=target, dtype_lowering=lowering)
    with np.errstate(all="ignore"):
        want = compiler.evaluate(mod, *args)
    got = exe(*args)
    np.testing.assert_array_equal(got, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))
    return exe


@pytest.mark.parametrize("name", ["posit16_es1", "float8_e4m3fn"])
def test_a_product_in_a_format_goes_by_tiles(name: str) -> None:
    x, w = numbers((17, 27), 0.02), numbers((20, 27), 0.02)
    assert tiled(check(dense("float32", 17, 20, 27), name, x, w))
    assert not tiled(check(dense("float32", 3, 20, 27), name, x[:3], w))


@pytest.mark.thorough
@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str, sums: str) -> None:
    shapes = (9, 27), (12, 27)
    x, w = (numbers(s, 0.05) for s in shapes)
    try:
        check(dense("float32", 9, 12, 27), name, x, w, sums=sums, target="llvm")
    except DtypelabError as error:
        pytest.skip(f"not on the CPU either: {error}")
    check(dense("float32", 9, 12, 27), name, x, w, sums=sums)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("runner", [SIMT, PTX])
@pytest.mark.parametrize("name", ["posit16_es1", "bfloat16"])
def test_nan_stays_nan_without_its_sign_and_bits(name: str, runner: str) -> None:
    """GPUs give one NaN: that of a number, and that of lanes that are not sure of a product."""
    shapes = (9, 9), (10, 9)
    signs, sizes = ([f(s) for s in shapes] for f in (numbers, lambda s: RNG.uniform(-26, 26, s)))
    x, w = (np.copysign(2.0**e, s).astype(np.float32) for e, s in zip(sizes, signs, strict=True))
    x[0, 0] = np.nan
    check(dense("float32", 9, 10, 9), name, x, w, target=runner)


@pytest.mark.thorough
@pytest.mark.parametrize("zeros", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("name", ["posit16_es1", "posit16_es2", "posit8_es2", "bfloat16"])
def test_numbers_of_all_sizes(name: str, zeros: float) -> None:
    """Few terms other than zero: sums of products that are tiny, or huge."""
    shapes = (90, 9), (80, 9)
    x, w = (
        np.copysign(2.0 ** RNG.uniform(-30, 30, s), numbers(s)) * (RNG.random(s) >= zeros)
        for s in shapes
    )
    check(dense("float32", 90, 80, 9), name, x.astype(np.float32), w.astype(np.float32))


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["posit16_es1", "posit8_es0", "bfloat16", "float8_e4m3fn", "fixed8_4"]),
    sums=st.sampled_from(["sequential", "fma", "float22_e8m13"]),
    m=st.integers(8, 70),
    n=st.integers(8, 70),
    k=st.integers(8, 70),
    special=st.sampled_from([0.0, 0.02]),
)
def test_dense(name: str, sums: str, m: int, n: int, k: int, special: float) -> None:
    x, w = numbers((m, k), special), numbers((n, k), special)
    assert tiled(check(dense("float32", m, n, k), name, x, w, sums=sums))


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["posit16_es1", "posit8_es2", "bfloat16", "float8_e4m3fn"]),
    sums=st.sampled_from(["sequential", "fma", "float22_e8m13"]),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    channels=st.tuples(st.integers(1, 9), st.sampled_from([8, 12, 33])),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
    special=st.sampled_from([0.0, 0.02]),
)
def test_convolutions(
    name: str,
    sums: str,
    size: tuple[int, int],
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    pad: int,
    dilation: int,
    groups: int,
    special: float,
) -> None:
    """Of weights that are no constants, which may be no numbers where they meet the padding."""
    if min(size) + 2 * pad < (kernel - 1) * dilation + 1:
        return
    x = (2, channels[0] * groups, *size)
    w = (channels[1] * groups, channels[0], kernel, kernel)
    attrs: dict[str, Any] = {
        "padding": (pad,) * 4, "strides": (stride,) * 2, "dilation": (dilation,) * 2,
    }  # fmt: skip
    mod = convolution("float32", x, w, groups=groups, **attrs)
    check(mod, name, numbers(x, special), numbers(w, special), sums=sums)


@pytest.mark.parametrize("name", ["posit16_es1", "float8_e5m2"])
def test_taps_in_the_padding_are_left_out(name: str) -> None:
    """Not multiplied by zeros: weights there may be infinite or no numbers."""
    x, w = (1, 3, 4, 5), (8, 3, 3, 3)
    mod = convolution("float32", x, w, relu=False, padding=(1, 1, 1, 1))
    weights = numbers(w)
    weights[0, 0, 0, 0], weights[1, 1, 0, 0] = np.nan, np.inf
    exe = check(mod, name, numbers(x), weights)
    assert tiled(exe)
    assert "for inside in" in str(exe.as_text())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["posit16_es1", "float8_e4m3fn", "lns8_3"])
def test_batches_are_products_of_their_own(name: str) -> None:
    b = FunctionBuilder()
    x, w = numbers((3, 9, 17), 0.02), numbers((3, 17, 10), 0.02)
    y = b.call("nn.matmul", b.param("x", x.shape), b.param("w", w.shape))
    assert tiled(check(IRModule({"main": b.finish(y)}), name, x, w))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [n for n in FORMATS if n != "float8_e8m0fnu"])
@pytest.mark.parametrize("sums", ["sequential", pytest.param("fma", marks=pytest.mark.slow)])
def test_every_format_in_ptx(name: str, sums: str) -> None:
    x, w = numbers((9, 27), 0.03), numbers((10, 27), 0.03)
    check(dense("float32", 9, 10, 27), name, x, w, sums=sums, target=PTX)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["posit16_es1", "bfloat16", "float8_e4m3fn_sat"])
@pytest.mark.parametrize("k", [8, 70])
def test_ptx(name: str, k: int) -> None:
    x, w = numbers((9, k), 0.02), numbers((10, k), 0.02)
    check(dense("float32", 9, 10, k), name, x, w, target=PTX)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["posit16_es1", "float8_e4m3fn"])
def test_threads_share_without_races(name: str) -> None:
    mod = datatypes.change_dtype(dense("float32", 9, 10, 27), "float32", name)
    x, w = numbers((9, 27)), numbers((10, 27))
    np.testing.assert_array_equal(interpreted(mod)(x, w), compiler.evaluate(mod, x, w))


@pytest.mark.skipif(not assembler(), reason="ptxas (package nvidia-cuda-nvcc) is not installed")
@pytest.mark.thorough
@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90", "sm_90a"])
@pytest.mark.parametrize("name", ["posit16_es1", "posit8_es0", "bfloat16", "float8_e4m3fn"])
def test_no_registers_are_spilled(name: str, chip: str) -> None:
    for m in (256, 2048):
        mod = datatypes.change_dtype(dense("float32", m, m, 512), "float32", name)
        program = compile_program(mod, f"cuda -arch={chip}")
        found = [x for k in program.kernels for x in assemble(k.code, chip)[0]]
        assert max(x.shared for x in found) > 4 << 10  # the operands' tiles
        assert all(x.spills == 0 for x in found)
        assert all(x.registers <= 128 for x in found)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "kernels"), [("float8_e4m3fn", 1), ("posit16_es1", 9)])
def test_exact_sums_are_products_of_parts_by_tiles(name: str, kernels: int) -> None:
    x, w = numbers((9, 27), 0.02), numbers((10, 27), 0.02)
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", x.shape), b.param("w", w.shape))
    text = str(check(IRModule({"main": b.finish(y)}), name, x, w, sums="exact").as_text())
    assert text.count("shared rows_shared: float") == text.count("blockIdx.x for") - copies(text)
    assert text.count("shared rows_shared: float") == kernels


def copies(text: str) -> int:
    """Kernels that sum nothing up."""
    return sum("mac" not in part for part in text.split("primfunc @")[1:])


@pytest.mark.parametrize(
    ("dtype", "update", "copies"),
    [
        ("float32", "Add", 1),
        ("custom[posit16_es1]16:float32", "Add", 2),
        ("custom[posit16_es1]16:float32", "Fma", 1),
        ("custom[float8_e4m3fn]8:table", "Add", 1),
    ],
)
def test_what_a_step_takes(dtype: str, update: str, copies: int) -> None:
    """Two copies of a sum, where steps may have to be done again."""
    zero, least = f"{dtype}(0.0)", f"{dtype}(-4.0)"
    text = MATMUL.format(dtype=dtype, b=1, m=9, n=9, k=9, zero=zero, least=least)
    p = product_of(Schedule(parse_primfunc(text)), "mac")
    assert p is not None
    step = step_of(p, update, Target.parse("cuda"))
    assert (step.words, step.copies) == (1, copies)
    assert (step == BUILT_IN) == (dtype == "float32")
    tile = choose_tile(p, step)
    assert tile is not None
    assert tile.products * step.registers <= REGISTERS


# ---- tables ----------------------------------------------------------------------------------
def table_kernel(lowering: str | None, name: str = "posit8_es0") -> Any:
    x, w = numbers((16, 40), 0.02), numbers((16, 40), 0.02)
    return check(dense("float32", 16, 16, 40), name, x, w, lowering=lowering)


def test_small_tables_are_read_in_shared_memory() -> None:
    text = str(table_kernel("vector", "posit16_es1").as_text())
    assert "shared posit16_es1_sums_c_shared: float32[64]" in text
    assert "= posit16_es1_sums_c.flat" not in text


def test_large_tables_stay_where_they_are() -> None:
    text = str(table_kernel("table").as_text())
    assert "posit8_es0_mul.flat" in text
    assert "posit8_es0_mul_shared" not in text


def look_up(threads: Index, entries: int, reads: int) -> PrimFunc:
    """Threads, in blocks of `threads`, each of which looks some entries of a table up."""
    data = RNG.integers(0, 1000, entries).astype(np.int32)
    table = Buffer("table", (Index.of(entries),), INT32, "constant", data=data)
    x, y = (Buffer(name, (Index.of(100), Index.of(reads)), INT32) for name in "xy")
    block, k = Var("block", 4), Var("k", reads)
    thread = Var("thread", threads.subst({BLOCK: block}))
    row = block * 32 + thread
    value = Gather(table, cast(Load(x, (row, Index.of(k))), INT64))
    node: Stmt = For(k, [Store("look", y, (row, Index.of(k)), value)])
    node = For(block, [For(thread, [node], "threadIdx.x")], "blockIdx.x")
    return PrimFunc("look_up", [x, y], 1, [node])


BLOCK = Var("b", 4)


@pytest.mark.thorough
@pytest.mark.parametrize("entries", [40, 64])
def test_threads_without_work_copy_tables_too(entries: int) -> None:
    """Of the last block, only 4 have any."""
    f = look_up(imin(32, 100 - BLOCK * 32), entries, 32)
    made = share_tables(f)
    assert "table_shared" in str(made)
    assert "barrier" in str(made)
    x = RNG.integers(0, entries, (100, 32)).astype(np.int32)
    got, want = np.zeros_like(x), np.zeros_like(x)
    loop_nests.run(f, [x, want])
    loop_nests.run(made, [x, got])
    np.testing.assert_array_equal(got, want)
    assert want.any()


def test_loops_that_wait_for_threads_without_work_stay() -> None:
    """Backends refuse them."""
    f = look_up(imin(32, 100 - BLOCK * 32), 40, 32)
    (block,) = f.body
    assert isinstance(block, For)
    (thread,) = block.body
    assert isinstance(thread, For)
    thread.body.append(Barrier())
    assert "table_shared" not in str(share_tables(f))
    target = Target.parse("cuda")
    tables = [b for b, *_ in accesses(f.body) if b.scope == "constant"]
    with pytest.raises(LoweringError, match="barriers, and an extent that varies"):
        backend_of(target).kernel(share_tables(f), tables, target)


def test_tables_that_are_read_seldom_are_not_copied() -> None:
    f = look_up(imin(32, 100 - BLOCK * 32), 40, 2)
    assert "table_shared" not in str(share_tables(f))
