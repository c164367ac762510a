"""Executables: inputs, outputs, views, batches, threads, and what callers get wrong."""

import threading

import numpy as np
import pytest

import compiler
from compiler.codegen import cache
from compiler.codegen.llvm import jit
from compiler.errors import InputError, LoweringError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var as Dim

RNG = np.random.default_rng(3)
N = Dim("n")


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def convnet() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (N, 3, 11, 9))
    c = b.call(
        "nn.conv2d", x, b.const(normal(20, 3, 3, 3)), b.const(normal(20)), padding=(1, 1, 1, 1)
    )
    r = b.call("nn.relu", c)
    d = b.call("nn.conv2d", r, b.const(normal(20, 1, 3, 3)), groups=20, strides=(2, 2))
    s = b.call("add", b.call("nn.max_pool2d", d, pool_size=(2, 2), strides=(2, 2)),
               b.const(np.float32(0.5)))  # fmt: skip
    flat = b.call("reshape", s, newshape=(0, -1))
    out = b.call("nn.dense", flat, b.const(normal(7, 80)), b.const(normal(7)))
    soft = b.call("nn.softmax", out, axis=-1)
    return IRModule({"main": b.finish(soft, flat)}, {"outputs": ["probability", "features"]})


def same(a: list[np.ndarray], b: list[np.ndarray]) -> None:
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])
def test_a_network_on_every_target_and_batch(target: str) -> None:
    try:
        compiler.Target.parse(target)
    except UnsupportedError as e:
        pytest.skip(str(e))
    mod = convnet()
    exe = compiler.build(mod, target=target)
    assert list(exe.outputs) == ["probability", "features"]
    for n in (1, 2, 7, 1):
        x = normal(n, 3, 11, 9)
        same(exe(x), compiler.evaluate(mod, x))
        same(exe(x=x), exe({"x": x}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", [0, 2, 3])
def test_optimization_levels_agree(level: int) -> None:
    mod = convnet()
    x = normal(2, 3, 11, 9)
    with compiler.PassContext(opt_level=level):
        exe = compiler.build(mod)
    same(exe(x), compiler.evaluate(mod, x))
    with compiler.PassContext(opt_level=3, disabled_pass=["FuseOps"]):
        exe = compiler.build(mod)
    same(exe(x), compiler.evaluate(mod, x))


@pytest.mark.thorough
def test_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = convnet()
    x = normal(5, 3, 11, 9)
    want = compiler.build(mod)(x)
    monkeypatch.setattr("compiler.codegen.llvm.graph_entry.PARALLEL_WORK", 1)
    for threads in (2, 3, 8, 300):
        exe = compiler.build(mod, threads=threads)
        assert "call void @dtypelab_parallel" in exe.llvm_text()
        for a, b in zip(exe(x), want, strict=True):
            assert a.tobytes() == b.tobytes()


def test_stages_that_run_together_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Concatenation copies each operand in a stage; the pool waits for all of them."""
    b = FunctionBuilder()
    parts = [b.param(f"x{k}", (N, 3 + k, 13, 9)) for k in range(6)]
    whole = b.call("concatenate", *parts, axis=1)
    y = b.call("nn.max_pool2d", whole, pool_size=(3, 3), strides=(2, 2))
    mod = IRModule({"main": b.finish(y)})
    xs = [[normal(n, 3 + k, 13, 9) for k in range(6)] for n in (1, 3)]
    want = [compiler.build(mod)(*images) for images in xs]
    monkeypatch.setattr("compiler.codegen.llvm.graph_entry.PARALLEL_WORK", 1)
    for threads in (2, 3, 8):
        exe = compiler.build(mod, threads=threads)
        assert sum(s.joins for k in exe.program.kernels for s in k.stages) > 3
        for images, answer in zip(xs, want, strict=True):
            assert all(exe(*images).tobytes() == answer.tobytes() for _ in range(20))


def test_results_may_be_written_over_those_of_an_earlier_run() -> None:
    exe = compiler.build(convnet())
    (n,) = exe.inputs["x"].shape[:1]
    held: list[np.ndarray] = []
    for rows in (2, 2, 3):
        x = normal(rows, 3, 11, 9)
        earlier = held
        held = exe.run([x], {n: rows}, earlier)
        for a, b in zip(held, exe(x), strict=True):
            np.testing.assert_array_equal(a, b)
        assert all(a is b for a, b in zip(held, earlier, strict=False)) == (rows == 2)


def test_callers_may_share_an_executable_between_threads() -> None:
    exe = compiler.build(convnet())
    xs = [normal(n, 3, 11, 9) for n in (1, 6, 3, 8)]
    want = [exe(x)[0] for x in xs]
    got: dict[int, np.ndarray] = {}

    def work(k: int) -> None:
        for _ in range(20):
            got[k] = exe(xs[k])[0]

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert all(got[k].tobytes() == want[k].tobytes() for k in range(4))


def test_results_that_are_inputs_constants_views_or_repeated() -> None:
    b = FunctionBuilder()
    x = b.param("x", (N, 4))
    c = b.const(np.arange(3, dtype=np.int64))
    v = b.call("reshape", x, newshape=(-1,))
    y = b.call("nn.relu", x)
    z = b.call("reshape", y, newshape=(-1, 2))
    mod = IRModule({"main": b.finish(x, c, v, y, z, y)})
    a = normal(3, 4)
    outs = compiler.build(mod)(a)
    relu = np.maximum(a, 0)
    for got, want in zip(outs, [a, np.arange(3), a.reshape(-1), relu, relu.reshape(-1, 2), relu],
                         strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, want)
    outs[0][:] = 0
    assert a.any()


def test_equal_workloads_compile_once() -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 8, 6, 6))
    for _ in range(4):
        x = b.call("nn.conv2d", x, b.const(normal(8, 8, 3, 3)), padding=(1, 1, 1, 1))
    mod = IRModule({"main": b.finish(x)})

    def made() -> int:
        stats = cache.statistics()
        return stats["compiled"] + stats["loaded"]

    before = made()
    exe = compiler.build(mod)
    kernels = [k for k in exe.program.kernels if "conv2d" in k.func.name]
    assert len(kernels) == 4
    assert len({s.symbol for s in kernels[0].stages}) == len(
        {s.symbol for k in kernels for s in k.stages}
    )
    # Each distinct kernel once, plus the entry of the network.
    distinct = {k.stages[0].symbol for k in exe.program.kernels}
    assert made() - before == len(distinct) + 1
    again = made()
    compiler.build(mod)
    assert made() == again


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": np.zeros((1, 3, 11, 9), np.float32)}, "unknown input 'y'"),
        ({}, "missing input 'x'"),
        ({"x": np.zeros((3, 11, 9), np.float32)}, "rank 4"),
        ({"x": np.zeros((1, 3, 11, 9))}, "float32, not float64"),
        ({"x": np.zeros((1, 3, 11, 8), np.float32)}, "needs"),
    ],
)
@pytest.mark.parametrize("how", ["build", "evaluate"])
def test_wrong_inputs(given: dict[str, np.ndarray], message: str, how: str) -> None:
    mod = convnet()
    run = compiler.build(mod) if how == "build" else lambda **kw: compiler.evaluate(mod, **kw)
    with pytest.raises(InputError, match=message):
        run(**given)


def test_unequal_symbolic_dimensions_are_named() -> None:
    b = FunctionBuilder()
    x, y = b.param("x", (N, 2)), b.param("y", (N, 2))
    exe = compiler.build(IRModule({"main": b.finish(b.call("add", x, y))}))
    with pytest.raises(InputError, match="n = 3"):
        exe(normal(3, 2), normal(4, 2))


@pytest.mark.parametrize("target", ["cuda", "llvm -mcpu=haswel", "llvm -march=x", ""])
def test_unknown_targets(target: str) -> None:
    with pytest.raises(UnsupportedError):
        compiler.build(convnet(), target=target)


def test_bad_build_options() -> None:
    with pytest.raises(InputError, match="threads"):
        compiler.build(convnet(), threads=0)
    with pytest.raises(InputError, match="library"):
        compiler.build(convnet(), dtype_lowering="librari")


def test_a_missing_c_function_is_named() -> None:
    with pytest.raises(LoweringError, match="no_such_function"):
        jit.compile_text(
            "declare i32 @no_such_function()\n"
            "define void @needs_it() {\n  %a = call i32 @no_such_function()\n  ret void\n}",
            "needs_it",
            compiler.Target.parse("llvm"),
        )


def test_what_runs_can_be_read() -> None:
    exe = compiler.build(convnet())
    assert "conv2d" in exe.as_text()
    assert "define void @main_" in exe.llvm_text()
    assert "x: Tensor[(n, 3, 11, 9), float32]" in repr(exe)
    assert exe.workspace_bytes(n=4) > exe.workspace_bytes(n=1) > 0


def test_a_profile_names_every_native_stage_and_leaves_results_alone() -> None:
    from compiler.runtime.profile import profile

    exe = compiler.build(convnet())
    x = normal(2, 3, 11, 9)
    want = exe(x)
    times = profile(exe, x, runs=2)
    assert [t.symbol for t in times] == [s.symbol for k in exe.program.kernels for s in k.stages]
    assert all(t.milliseconds > 0 for t in times)
    assert max(times, key=lambda t: t.work).symbol.startswith("conv2d")
    same(exe(x), want)
    with pytest.raises(InputError):
        profile(exe)
