"""Lanes that lie apart: the stretches that are loaded for them; positions put together again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.choices import Sketch
from compiler.scheduling.default import schedule_default
from compiler.symbolic import Index, Var
from compiler.target.registry import Target
from compiler.tensor.lanes import windows
from compiler.tensor.stmt import Store, walk_stmts
from compiler.tuning.kernel_run import KernelRun, random_arrays

HOST = Target.parse("llvm")


@settings(max_examples=50)
@given(st.lists(st.integers(-40, 40), min_size=2, max_size=32))
def test_windows_hold_every_lane_and_nothing_outside(offsets: list[int]) -> None:
    width, starts = windows(tuple(offsets))
    assert 2 * len(starts) <= len(offsets)
    if starts:
        held = {o for s in starts for o in range(s, s + width)}
        assert {*offsets} <= held
        assert (min(held), max(held)) >= (min(offsets), min(offsets))
        assert max(held) <= max(offsets)


def test_windows_of_strides() -> None:
    assert windows(tuple(range(0, 32, 2))) == (16, (0, 15))
    assert windows(tuple(range(0, 1600, 100)))[1] == ()


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 7), st.integers(2, 7))
def test_joined_positions_are_the_same(a: int, b: int, n: int, m: int) -> None:
    v, w = Var("v", 64), Var("w", 8)
    for x in (Index.of(v), v * a + w * b, v + w * 3 + 2):
        inner = x % (n * m)
        flat = (x // (n * m)) * (n * m) + (inner // m) * m + inner % m
        assert flat.joined() == x.joined()
        assert (x % n * 3 + w).joined() == x % n * 3 + w
        for i in (0, 7, 63):
            env = {v: i, w: i % 8}
            assert flat.joined().value(env) == flat.value(env)


@pytest.mark.parametrize("stride", [2, 3, 9])
@pytest.mark.parametrize("lanes", [8, 16])
def test_strided_reads_as_lanes(stride: int, lanes: int) -> None:
    b = FunctionBuilder()
    n = lanes * stride * 2
    x = b.param("x", (3, n))
    y = b.call("strided_slice", x, begin=(0, 1), end=(3, n), strides=(1, stride))
    mod = compiler.optimize(IRModule({"main": b.finish(y)}), HOST)
    (f,) = [
        x.value.op
        for x in mod.main.bindings
        if isinstance(x.value, Call) and isinstance(x.value.op, Function)
    ]
    inputs = random_arrays(legalize(f), 0)
    kernel = compile_kernel(legalize(f), HOST, {"slice_s": Sketch(lanes=((1, lanes),))})
    found = np.frombuffer(KernelRun(kernel, HOST, inputs).result(), np.float32)
    np.testing.assert_array_equal(found, inputs[0][:, 1::stride].ravel())
    loads = [line for line in kernel.llvm_text().splitlines() if " = load " in line]
    assert all("<" in line for line in loads) == (stride < 9 or lanes == 16)


@pytest.mark.parametrize(("stride", "lanes"), [(1, 16), (2, 16), (4, 16), (5, 1)])
def test_windows_that_lie_apart_are_lanes(stride: int, lanes: int) -> None:
    target = Target.anywhere("llvm -mcpu=cascadelake")
    b = FunctionBuilder()
    n = 40 * stride
    attrs = {"pool_size": (2, 3), "strides": (2, stride), "padding": (0, 0, 0, 1)}
    mod = IRModule({"main": b.finish(b.call("nn.max_pool2d", b.param("x", (1, 3, 8, n)), **attrs))})
    value = np.random.default_rng(0).normal(size=(1, 3, 8, n)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mod)(value), compiler.evaluate(mod, value))
    bound = [x.value for x in compiler.optimize(mod, target).main.bindings]
    (f,) = [v.op for v in bound if isinstance(v, Call) and isinstance(v.op, Function)]
    nest = legalize(f).func
    schedule_default(nest, target)
    found = [p for s, p, _ in walk_stmts(nest.body) if isinstance(s, Store) and s.update == "Max"]
    assert max(p[-1].extent.constant() or 0 for p in found) == lanes


@pytest.mark.parametrize(
    ("scale", "cpu", "lanes"),
    [
        (2, "cascadelake", True),
        (4, "cascadelake", True),
        (3, "cascadelake", True),  # picked one by one
        (4, "x86-64", True),
        (3, "x86-64", False),
    ],
)
def test_neighbours_that_read_the_same_are_lanes(scale: int, cpu: str, lanes: bool) -> None:
    target = Target.anywhere(f"llvm -mcpu={cpu}")
    b = FunctionBuilder()
    attrs = {"scales": (1.0, float(scale))}
    y = b.call("image.resize2d", b.param("x", (1, 2, 3, 30)), **attrs)
    mod = IRModule({"main": b.finish(y)})
    value = np.random.default_rng(0).normal(size=(1, 2, 3, 30)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mod)(value), compiler.evaluate(mod, value))
    bound = [x.value for x in compiler.optimize(mod, target).main.bindings]
    (f,) = [v.op for v in bound if isinstance(v, Call) and isinstance(v.op, Function)]
    nest = legalize(f).func
    schedule_default(nest, target)
    found = [p for s, p, _ in walk_stmts(nest.body) if isinstance(s, Store)]
    assert all(p[-1].kind == "vector" for p in found) == lanes
