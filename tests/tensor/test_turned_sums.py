"""Sums of rows by squares that are turned in registers: every row adds in its own order, so that
bits are those of the interpreter, and each register of the machine is used for several rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import compiler.transform
from compiler.ir.expr import Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Sketch
from compiler.scheduling.default import rule_tile, schedule_default, untiled
from compiler.scheduling.tile_config import TileChoice, candidates
from compiler.target.registry import Target
from compiler.tensor.stmt import PrimFunc, stores
from compiler.tuning.kernel_run import KernelRun, random_arrays

SUMS = ("sum", "mean", "max", "prod", "mean_products", "nn.layer_norm", "nn.softmax")


def rows(op: str, shape: tuple[int, ...], dtype: str = "float32") -> IRModule:
    """`op` over the last axis."""
    x = compiler.var("x", shape, dtype)
    if op == "nn.layer_norm":
        gain = compiler.const(np.linspace(0.5, 2, shape[-1]).astype(dtype))
        y = compiler.call(op, x, gain, axis=-1)
    elif op == "mean_products":
        y = compiler.call(op, x, x, axis=-1)
    else:
        y = compiler.call(op, x, axis=-1)
    return IRModule({"main": compiler.function([x], y)})


def primitive(mod: IRModule) -> Function:
    main = compiler.transform.InferType()(mod).main
    return Function(main.params, main.bindings, main.results, {"primitive": True})


def scheduled(mod: IRModule, target: str) -> PrimFunc:
    f = legalize(primitive(mod)).func
    schedule_default(f, Target.anywhere(target))
    return f


def squares(f: PrimFunc) -> list[tuple[int, ...]]:
    """Rows and columns of the registers that squares are turned into."""
    found = [x.buffer for x in stores(f.body) if x.stage.endswith(".terms")]
    return [tuple(n.const for n in b.shape[-2:]) for b in found]


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(SUMS),
    st.lists(st.sampled_from([1, 2, 5]), max_size=2),
    st.sampled_from([7, 8, 11, 16, 30, 32, 50]),
    st.sampled_from([5, 8, 16, 17, 31, 40, 67]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["llvm", "llvm -mcpu=haswell", "c"]),
    st.integers(1, 2),
)
def test_bits_are_those_of_the_interpreter(
    op: str, heads: list[int], n: int, columns: int, dtype: str, target: str, threads: int
) -> None:
    mod = rows(op, (*heads, n, columns), dtype)
    x = np.random.default_rng(n * columns).standard_normal((*heads, n, columns)).astype(dtype)
    threads = 1 if target == "c" else threads  # programs in C have one
    run = compiler.build(mod, target=target, threads=threads)
    np.testing.assert_array_equal(run(x), compiler.evaluate(mod, x))


def test_order_of_additions_and_rounded_products() -> None:
    """Large numbers that cancel tell every other order of additions, and squares whose sum rounds
    once (a fused multiply-add) from those that round twice."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((30, 69)) * 10.0 ** rng.integers(-6, 7, (30, 69))).astype("float32")
    for op in ("sum", "mean_products"):
        mod = rows(op, x.shape)
        assert squares(scheduled(mod, "llvm -mcpu=skylake-avx512")) == [(16, 16)]
        terms = x if op == "sum" else x * x
        total = np.zeros(30, np.float32)
        for k in range(69):
            total = total + terms[:, k]
        np.testing.assert_array_equal(
            compiler.build(mod)(x), total if op == "sum" else total / np.float32(69)
        )


@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        ("llvm -mcpu=skylake-avx512", (128, 64), 16),
        ("llvm -mcpu=skylake-avx512", (8, 64), 8),
        ("llvm -mcpu=skylake-avx512", (64, 24), 8),  # of 16 columns, a third would be beside
        ("llvm -mcpu=skylake-avx512", (64, 20), 16),
        ("llvm -mcpu=skylake-avx512", (64, 30), 0),
        ("llvm -mcpu=skylake-avx512", (10, 64), 0),  # six of sixteen rows would be added twice
        ("llvm -mcpu=skylake-avx512", (7, 64), 0),  # so few sums would wait for their additions
        ("llvm -mcpu=haswell", (128, 64), 0),  # 16 registers
        ("llvm -mtriple=aarch64-linux-gnu", (128, 64), 0),  # 4 lanes
        ("llvm -mtriple=riscv64-linux-gnu -mattr=+v", (128, 64), 0),  # 8 registers
    ],
)
def test_squares_fit_the_registers(target: str, shape: tuple[int, int], expected: int) -> None:
    assert squares(scheduled(rows("sum", shape), target)) == [(expected,) * 2] * bool(expected)


def test_what_is_added_is_not_stored() -> None:
    """The squares of a layer norm's distances from the mean are computed where they are added."""
    f = scheduled(rows("nn.layer_norm", (8, 4096)), "llvm -mcpu=skylake-avx512")
    assert squares(f) == [(8, 8), (8, 8)]
    assert all(b.size.constant() == 8 for b in f.temps)


def test_what_a_row_stores_over_what_it_reads_is_computed_once() -> None:
    """The quotient takes the memory of the largest numbers: rows that two squares had in common
    would be divided twice."""
    x = compiler.var("x", (4, 50, 67), "float32")
    most = compiler.call("max", x, axis=-1, keepdims=True)
    total = compiler.call("sum", x, axis=-1, keepdims=True)
    y = compiler.call("multiply", x, compiler.call("divide", total, most))
    function = primitive(IRModule({"main": compiler.function([x], y)}))
    target = Target.parse("llvm")
    kernel = compile_kernel(legalize(function), target)
    a = np.random.default_rng(0).standard_normal((4, 50, 67)).astype(np.float32)
    got = np.frombuffer(KernelRun(kernel, target, [a]).result(), np.float32)
    want = compiler.evaluate(IRModule({"main": compiler.function([x], y)}), a)
    np.testing.assert_array_equal(got.reshape(a.shape), want)


def test_the_exponential_of_a_softmax_is_read_twice() -> None:
    f = scheduled(rows("nn.softmax", (64, 64)), "llvm -mcpu=skylake-avx512")
    assert (16, 16) in squares(f)
    assert any(b.name.startswith("softmax_exp") for b in f.temps)


def test_products_that_share_their_operands_stay_tiles() -> None:
    """Each row of a matrix product is read for many results."""
    x, y = (compiler.var(n, (4, 32, 64), "float32") for n in "xy")
    z = compiler.call("nn.matmul", x, compiler.call("transpose", y, axes=(0, 2, 1)))
    f = scheduled(IRModule({"main": compiler.function([x, y], z)}), "llvm -mcpu=skylake-avx512")
    assert not squares(f)


def test_choices_of_logs_that_know_no_squares_fit() -> None:
    """A log may choose sums one by one, and what they add in a stage of its own."""
    mod, name = rows("nn.layer_norm", (8, 80)), "llvm -mcpu=skylake-avx512"
    products = "ln_var_sum_products_s"
    alone = TileChoice(1, 4, (), 16, 4, False)
    assert products not in [x.stage for x in stores(scheduled(mod, name).body)]
    f, target = legalize(primitive(mod)).func, Target.anywhere(name)
    schedule_default(f, target, (), {"ln_var_sum_s": alone, products: Sketch(lanes=((1, 8),))})
    assert products in [x.stage for x in stores(f.body)]
    assert squares(f) == [(8, 8)]


@pytest.mark.thorough
def test_choices_of_a_tuner_keep_the_bits() -> None:
    target = Target.parse("llvm")
    function = primitive(rows("nn.layer_norm", (50, 70)))
    legal = legalize(function)
    s = untiled(legal.func, target)
    tiles = {x: rule_tile(s, x, target, ()) for x in s.stages()}
    given = random_arrays(legalize(function), 0)
    expected = KernelRun(compile_kernel(legalize(function), target), target, given).result()
    tried = 0
    for stage, tile in tiles.items():
        for choice in candidates(s, stage, tile, target, ()) if tile is not None else ():
            kernel = compile_kernel(legalize(function), target, {stage: choice})
            assert KernelRun(kernel, target, given).result() == expected
            tried += 1
    assert tried > 4
