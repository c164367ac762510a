"""Tiles of products whose operands are both computed, and of reductions along rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_runs import assert_same_bits

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var as Dim

TARGETS = st.sampled_from(["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])


def matmul(left: tuple[object, ...], right: tuple[object, ...], scaled: bool) -> IRModule:
    b = FunctionBuilder()
    y = b.call("nn.matmul", b.param("x", left), b.param("w", right))
    if scaled:
        y = b.call("multiply", y, b.const(np.float32(0.3)))
    return IRModule({"main": b.finish(y)})


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=2), st.integers(1, 20), st.integers(1, 40),
    st.integers(1, 70), st.booleans(), st.booleans(), TARGETS,
)  # fmt: skip
def test_matmul_of_computed_operands(
    batch: list[int], m: int, k: int, n: int, broadcast: bool, scaled: bool, target: str
) -> None:
    left, right = (*batch, m, k), (*(1 if broadcast else b for b in batch), k, n)
    mod = matmul(left, right, scaled)
    rng = np.random.default_rng(m * n)
    x, w = (rng.normal(size=s).astype(np.float32) for s in (left, right))
    exe = compiler.build(mod, target=target)
    want = (x.astype(np.float64) @ w) * (np.float32(0.3) if scaled else 1)
    np.testing.assert_allclose(exe(x, w), want, rtol=1e-4, atol=1e-4)
    for kernel in exe.program.kernels:
        assert_same_bits(kernel, target=target)


def test_a_copied_operand_is_read_in_whole_vectors() -> None:
    exe = compiler.build(matmul((4, 49, 12), (4, 12, 49), True))
    text = exe.as_text()
    assert "x1_blocks" in text
    lanes = exe.target.vector_bytes // 4
    assert f"x1_blocks: float32[4, {-(-49 // lanes)}, 12, {lanes}]" in text
    assert "unroll for mac.i1 in 7" in text or lanes != 16


def test_few_rows_do_not_pay_for_a_copy() -> None:
    assert "_blocks" not in compiler.build(matmul((4, 2, 12), (4, 12, 49), False)).as_text()


@pytest.mark.thorough
def test_matmul_of_any_batch() -> None:
    n = Dim("n")
    exe = compiler.build(matmul((n, 9, 12), (n, 12, 20), True))
    assert "_blocks" in exe.as_text()
    rng = np.random.default_rng(0)
    for batch in (1, 3, 8):
        x, w = (rng.normal(size=(batch, *s)).astype(np.float32) for s in ((9, 12), (12, 20)))
        np.testing.assert_allclose(exe(x, w), x @ w * np.float32(0.3), rtol=1e-4, atol=1e-4)
        for kernel in exe.program.kernels:
            assert_same_bits(kernel, {n: batch})


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 40),
    st.sampled_from(["nn.softmax", "nn.log_softmax", "sum", "max", "mean"]),
)  # fmt: skip
def test_reductions_of_rows_keep_their_order(rows: list[int], columns: int, op: str) -> None:
    b = FunctionBuilder()
    x = b.param("x", (*rows, columns))
    attrs = {"axis": -1} if op.startswith("nn.") else {"axis": (-1,)}
    mod = IRModule({"main": b.finish(b.call(op, x, **attrs))})
    data = np.random.default_rng(columns).normal(size=(*rows, columns)).astype(np.float32)
    exe = compiler.build(mod)
    for kernel in exe.program.kernels:
        assert_same_bits(kernel)
    if op in ("sum", "max"):  # the oracle adds in the same order
        assert exe(data).tobytes() == compiler.evaluate(mod, data).tobytes()
    np.testing.assert_allclose(exe(data), compiler.evaluate(mod, data), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 7, 8, 9, 17])
def test_rows_run_side_by_side(rows: int) -> None:
    b = FunctionBuilder()
    x = b.param("x", (rows, 48))
    text = compiler.build(IRModule({"main": b.finish(b.call("sum", x, axis=(-1,)))})).as_text()
    by_rows = any(f"unroll for sum_s.i0o in {n}:" in text for n in range(2, 9))
    assert by_rows or "vector for sum_s.row in 8:" in text, text  # in squares


@pytest.mark.thorough
@pytest.mark.parametrize("int8", [False, True])
def test_one_build_serves_every_batch_size(int8: bool) -> None:
    rng = np.random.default_rng(1)
    b = FunctionBuilder()
    n = Dim("n")
    x = b.param("x", (n, 36), "uint8" if int8 else "float32")
    if int8:
        w = b.const(rng.integers(-128, 128, (40, 36)).astype(np.int8))
        y = b.call("nn.dense", x, w, out_dtype="int32")
        scale = b.const(rng.uniform(1e-4, 3e-3, 40).astype(np.float32))
        y = b.call("qnn.requantize", y, scale, axis=-1, output_zero_point=7, out_dtype="uint8")
    else:
        y = b.call(
            "nn.relu", b.call("nn.dense", x, b.const(rng.normal(size=(40, 36)).astype(np.float32)))
        )
    mod = IRModule({"main": b.finish(y)})
    exe = compiler.build(mod)
    (kernel,) = exe.program.kernels
    assert "_few" in str(kernel.func)
    data = rng.integers(0, 255, (30, 36)).astype("uint8" if int8 else "float32")
    alone = np.concatenate([exe(row[None]) for row in data])
    for batch in (1, 2, 7, 8, 9, 15, 16, 17, 30):
        assert exe(data[:batch]).tobytes() == alone[:batch].tobytes(), batch
        assert_same_bits(kernel, {n: batch})
    np.testing.assert_allclose(alone, compiler.evaluate(mod, data), rtol=1e-4, atol=1e-3)
