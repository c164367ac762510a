# ruff: noqa: F821, N805
"""Programs written in Python: what they may say."""

from __future__ import annotations

import numpy as np

import compiler
from compiler.boundary.external import remove_func
from compiler.ir import function_calls
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.script import (
    Buffer,
    Tensor,
    alloc_buffer,
    axis,
    block,
    call_packed,
    call_tir,
    cast,
    dataflow,
    exp,
    float32,
    fma,
    graph_function,
    grid,
    init,
    int64,
    module,
    output,
    parallel,
    select,
    tensor_program,
    unroll,
    vectorized,
)
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TupleType

rng = np.random.default_rng(3)


def run(f: PrimFunc, *args: Array, outs: list[Tensor]) -> list[Array]:
    """The results of the program compiled, like those of the walk in numpy; its text reads back."""
    b = FunctionBuilder()
    params = [b.param(f"x{k}", a.shape, str(a.dtype)) for k, a in enumerate(args)]
    t = b.bind(function_calls.call_tir("f", params, TupleType(tuple(o.type for o in outs))))
    main = b.finish(*(b.get(t, k) for k in range(len(outs))))
    mod = IRModule({"f": f, "main": main})
    compiler.verify(mod)
    again = compiler.parse(mod.astext(show_meta_data=True))
    assert compiler.structural_equal(mod, again)
    got, walked = (x if isinstance(x, list) else [x] for x in both(again, args))
    for g, w in zip(got, walked, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)
    return got


def both(mod: IRModule, args: tuple[Array, ...]) -> tuple[object, object]:
    return compiler.build(mod)(*args), compiler.evaluate(mod, *args)


def f32(*shape: int) -> Array:
    return rng.normal(size=shape).astype(np.float32)


@tensor_program
def scaled(X: Buffer(("n", 3)), Y: Buffer(("n", 3))):
    """Twice the row's number plus x, where that is positive."""
    for i in range(n):
        for j in range(3):
            v = X[i, j] + float32(i * 2)
            Y[i, j] = v if v > 0 else float32(-1) * v


def test_symbolic_dimensions_have_names_in_the_program() -> None:
    x = f32(5, 3) * 4
    want = x + 2 * np.arange(5, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(run(scaled, x, outs=[Tensor((5, 3))])[0], np.abs(want))
    assert str(scaled).startswith("primfunc @scaled[n](X: float32[n, 3])")


def test_one_program_serves_every_size_that_it_is_called_with() -> None:
    for rows in (1, 4):
        x = f32(rows, 3)
        want = np.abs(x + 2 * np.arange(rows, dtype=np.float32)[:, None])
        np.testing.assert_array_equal(run(scaled, x, outs=[Tensor((rows, 3))])[0], want)


def test_programs_are_named_in_any_alphabet() -> None:
    @tensor_program
    def größe(X: Buffer((2,)), Y: Buffer((2,))):
        for i in range(2):
            Y[i] = X[i] * 3.0

    np.testing.assert_array_equal(run(größe, np.ones(2, np.float32), outs=[Tensor((2,))])[0], 3)


def test_loops_of_every_kind_and_lists_of_values() -> None:
    weights = [1.0, -2.0, 0.5]

    @tensor_program
    def f(X: Buffer((4, 8)), Y: Buffer((4, 8))):
        for i in parallel(4):
            for j in vectorized(8):
                Y[i, j] = X[i, j]
            for w in weights:
                for j in unroll(8):
                    Y[i, j] += X[i, j] * w

    text = str(f)
    assert [word in text for word in ("parallel for i", "vector for j", "unroll for j_")] == [
        True
    ] * 3
    x = f32(4, 8)
    want = ((x + x * np.float32(1)) + x * np.float32(-2)) + x * np.float32(0.5)
    np.testing.assert_array_equal(run(f, x, outs=[Tensor((4, 8))])[0], want)


def test_positions_computed_at_run_time() -> None:
    @tensor_program
    def f(X: Buffer((6, 2)), P: Buffer((3,), "int32"), Y: Buffer((3, 2))):
        for i, j in grid(3, 2):
            Y[i, j] = X[P[i], j]

    x, at = f32(6, 2), np.array([5, 0, 3], np.int32)
    np.testing.assert_array_equal(run(f, x, at, outs=[Tensor((3, 2))])[0], x[at])


def test_conditions_functions_and_casts() -> None:
    @tensor_program
    def f(X: Buffer((5,)), Y: Buffer((5,)), Z: Buffer((5,), "int64")):
        for i in range(5):
            inside = (X[i] > 0 and not X[i] > 1.0) or i == 4
            Y[i] = select(inside, exp(X[i]), fma(X[i], X[i], float32(1)))
            Z[i] = cast(X[i] * 10.0, "int64") + int64(i // 2) if i != 2 else int64(-7)

    x = np.array([0.5, -1.0, 3.0, 1.0, 9.0], np.float32)
    y, z = run(f, x, outs=[Tensor((5,)), Tensor((5,), "int64")])
    np.testing.assert_allclose(y, [np.exp(0.5), 2, 10, np.exp(1), np.exp(9)], rtol=1e-6)
    assert list(z) == [5, -10, -7, 11, 92]


def test_reductions_of_every_kind() -> None:
    @tensor_program
    def f(X: Buffer((3, 4)), S: Buffer((3,)), M: Buffer((3,)), P: Buffer((3,)), D: Buffer((3,))):
        for i, k in grid(3, 4):
            with block("S"):
                vi, vk = axis.remap("SR", [i, k])
                with init():
                    S[vi] = 1.0
                S[vi] += X[vi, vk]
            with block("M"):
                vi, vk = axis.spatial(3, i), axis.reduce(4, k)
                with init():
                    M[vi] = float32(-9)
                M[vi] = max(M[vi], X[vi, vk])
            with block("P"):
                vi, vk = axis.remap("SR", [i, k])
                with init():
                    P[vi] = float32(vi)
                P[vi] = P[vi] * X[vi, vk]
            with block("D"):
                vi, vk = axis.remap("SR", [i, k])
                with init():
                    D[vi] = 0.0
                D[vi] = fma(X[vi, vk], X[vi, vk], D[vi])

    x = f32(3, 4)
    s, m, p, d = run(f, x, outs=[Tensor((3,))] * 4)
    np.testing.assert_allclose(s, 1 + x.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(m, x.max(1))
    np.testing.assert_allclose(p, np.arange(3) * x.prod(1), rtol=1e-5)
    np.testing.assert_allclose(d, (x * x).sum(1), rtol=1e-5)


def test_statements_between_loops_run_in_their_place() -> None:
    @tensor_program
    def running(X: Buffer((2, 5)), Y: Buffer((2, 5))):
        T = alloc_buffer((1,))
        for i in range(2):
            T[0] = 0.0
            for j in range(5):
                T[0] = T[0] + X[i, j]
                Y[i, j] = T[0]

    x = f32(2, 5)
    got = run(running, x, outs=[Tensor((2, 5))])[0]
    np.testing.assert_allclose(got, x.cumsum(1), rtol=1e-5)


def test_a_reduction_starts_anew_in_loops_that_are_none_of_its_axes() -> None:
    @tensor_program
    def f(X: Buffer((3, 4)), Y: Buffer((3,))):
        T = alloc_buffer((1,))
        for i in range(3):
            for k in range(4):
                with block("T"):
                    vk = axis.reduce(4, k)
                    with init():
                        T[0] = 0.0
                    T[0] = T[0] + X[i, vk]
            Y[i] = T[0]

    x = f32(3, 4)
    np.testing.assert_allclose(run(f, x, outs=[Tensor((3,))])[0], x.sum(1), rtol=1e-5)


@module
class Steps:
    scale = 3.0

    @graph_function
    def half(a: Tensor(("n",))) -> Tensor(("n",)):
        return a * 0.5

    @tensor_program
    def double(X: Buffer(("n",)), Y: Buffer(("n",))):
        for i in range(n):
            Y[i] = X[i] * 2.0

    @graph_function
    def main(x: Tensor(("n",))):
        """Calls of every kind."""
        with dataflow():
            y = call_tir(double, (x,), ("n",))
            low, high = y - scale, compiler.call("nn.relu", y)
            output(low, high)
        call_packed("test.seen", low)
        z = half(high)
        call_packed("test.seen", z)
        return low, z


def test_graph_functions_tensor_programs_and_effects_in_one_class() -> None:
    seen: list[Array] = []
    compiler.register_func("test.seen", lambda a: seen.append(a.copy()), override=True)
    try:
        assert list(Steps.functions) == ["half", "double", "main"]
        again = compiler.parse(Steps.astext(show_meta_data=True))
        assert compiler.structural_equal(Steps, again)
        x = np.array([1.0, -2.0, 3.0], np.float32)
        low, z = compiler.evaluate(again, x)
        np.testing.assert_array_equal(low, 2 * x - 3)
        np.testing.assert_array_equal(z, np.maximum(x, 0))
        assert [list(a) for a in seen] == [list(low), list(z)]
    finally:
        remove_func("test.seen")
