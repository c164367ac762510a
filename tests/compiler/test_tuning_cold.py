"""Kernels that find cold caches in their network are timed so."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.target.registry import Target
from compiler.tuning import kernel_run, measure, tasks
from compiler.tuning.kernel_run import KernelRun, _read_text, random_arrays, second_cache
from compiler.tuning.tasks import tasks_of

HOST = Target.parse("llvm")
linux = pytest.mark.skipif(sys.platform != "linux", reason="kernels are timed warm elsewhere")


def net(rows: int, columns: int) -> IRModule:
    b, rng = FunctionBuilder(), np.random.default_rng(0)
    x = b.param("x", (1, columns))
    weight = b.const(rng.normal(size=(rows, columns)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.dense", x, weight))})


@linux
def test_networks_that_outgrow_the_caches_are_told_from_others() -> None:
    rows = second_cache() // 4096
    large, small = net(rows, 1024), net(rows // 2, 1024)
    assert [[t.cold for t in tasks_of(compiler.optimize(m), HOST)] for m in (large, small)] == [
        [True], [False],
    ]  # fmt: skip


def test_nothing_is_cold_where_kernels_have_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "times_cold", lambda: False)
    mod = compiler.optimize(net(second_cache() // 1024, 1024))
    assert not tasks.outgrows_caches([legal for _, legal in tasks.legalized(mod)])


@linux
@pytest.mark.parametrize("shape", [(64, 48), (33, 17)])
def test_a_kernel_timed_cold_computes_the_same(shape: tuple[int, int]) -> None:
    (task,) = tasks_of(compiler.optimize(net(*shape)), HOST)
    inputs = random_arrays(legalize(task.function), 0)
    warm, cold = (
        KernelRun(compile_kernel(legalize(task.function), HOST), HOST, inputs, cold=cold)
        for cold in (False, True)
    )
    want = warm.result()
    assert cold.cold_ms() > 0
    assert b"".join(out.tobytes() for out in cold.outputs) == want == cold.result()


@linux
def test_long_kernels_are_timed_by_the_threads_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other processes take does not count: the clock is that of the thread from then on."""
    (task,) = tasks_of(compiler.optimize(net(64, 48)), HOST)
    inputs = random_arrays(legalize(task.function), 0)
    kernel = compile_kernel(legalize(task.function), HOST)
    short = KernelRun(kernel, HOST, inputs, cold=True)
    clocks = []
    for limit in (10**12, 0):
        monkeypatch.setattr(kernel_run, "LONG_NS", limit)
        assert short.cold_ms() > 0
        clocks.append(short._around.which)
    assert clocks == [kernel_run.MONOTONIC, kernel_run.THREAD]
    assert short._cold_calls == kernel_run.FEW_CALLS
    monkeypatch.setattr(kernel_run, "LONGER_NS", 0)
    longer = KernelRun(kernel, HOST, inputs, cold=True)
    assert longer.cold_ms() > 0
    assert longer._cold_calls == 1


@linux
def test_a_sample_of_a_short_kernel_is_no_step_of_the_clock() -> None:
    """Clocks that tell tens of nanoseconds would make a median a multiple of that."""
    (task,) = tasks_of(compiler.optimize(net(64, 48)), HOST)
    kernel = compile_kernel(legalize(task.function), HOST)
    run = KernelRun(kernel, HOST, random_arrays(legalize(task.function), 0), cold=True)
    run._cold_loop = lambda *_: None
    run._times[:] = [110, 120, 110, 120, 9000]
    assert run.cold_ms() == pytest.approx(350e-6 / 3)


@linux
def test_taking_turns_asks_for_cold_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks_of(compiler.optimize(net(64, 48)), HOST)
    kernel = compile_kernel(legalize(task.function), HOST)
    runs = [
        KernelRun(kernel, HOST, random_arrays(legalize(task.function), 0), cold=True)
        for _ in range(2)
    ]
    samples = {id(runs[0]): iter([5.0, 1.0, 2.0]), id(runs[1]): iter([3.0, 3.0, 9.0])}
    monkeypatch.setattr(KernelRun, "cold_ms", lambda self: next(samples[id(self)]))
    assert measure.in_turns(runs[0], runs[1], 3) == (2.0, 3.0)


@pytest.mark.thorough
def test_trials_in_warm_caches_are_none_of_cold_ones() -> None:
    from compiler.tuning.session import _of
    from tests.compiler.test_tuning_records import trial

    assert _of(trial()) != _of(replace(trial(), cold=True))


@linux
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"])
def test_wide_vectors_are_added_up_to_the_moment_of_timing(target: str) -> None:
    """A processor that has seen none for a while does them slowly at first: kernels with 16 lanes
    seemed to take three times as long as they do in a network."""
    chosen = Target.parse(target)
    text = "\n".join(_read_text(chosen.vector_bytes // 4))
    assert f"fadd <{chosen.vector_bytes // 4} x float>" in text
    x = compiler.var("x", (1, 256), "float32")
    mod = IRModule({"main": compiler.function([x], compiler.call("tanh", x))})
    (task,) = tasks_of(compiler.optimize(mod), chosen)
    legal = legalize(task.function)
    inputs = random_arrays(legal, 0)
    run = KernelRun(compile_kernel(legal, chosen), chosen, inputs, cold=True)
    assert run.cold_ms() > 0
