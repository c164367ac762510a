"""Where the data of measured kernels lies, and kernels timed in their network."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.tuning_log import Record, apply_records, read_log
from compiler.target.registry import Target, host_cpu
from compiler.tensor.packed_arrays import ALIGN, LARGE_PAGE
from compiler.tuning import in_network
from compiler.tuning.in_network import shares_in_network
from compiler.tuning.kernel_run import LARGE, KernelRun, Room, random_arrays
from compiler.tuning.measure import network_inputs
from compiler.tuning.tasks import tasks_of
from compiler.tuning.tuner import tune

HOST = Target.parse("llvm")


def net(size: int = 10) -> IRModule:
    """Two equal convolutions and a smaller one."""
    rng, b = np.random.default_rng(0), FunctionBuilder()
    y = b.param("x", (1, 8, size, size))
    for _ in range(2):
        weight = b.const(rng.normal(size=(8, 8, 3, 3)).astype(np.float32))
        y = b.call("nn.relu", b.call("nn.conv2d", y, weight, padding=(1, 1, 1, 1)))
    weight = b.const(rng.normal(size=(4, 8, 1, 1)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.conv2d", y, weight))})


def records(mod: IRModule, n: int) -> list[Record]:
    """Handwritten ones of the workloads with most work."""
    tasks = tasks_of(compiler.optimize(mod), HOST)[:n]
    where = (str(HOST), HOST.isa, host_cpu())
    return [Record(t.key, t.text, *where, t.space.neighbours()[0], 2.0, 1.0, 0, "") for t in tasks]


# ---- memory --------------------------------------------------------------------------------------
@given(st.lists(st.integers(0, 4 * LARGE), max_size=6))
def test_arrays_are_aligned_and_apart(sizes: list[int]) -> None:
    arrays = Room().laid(sizes)
    assert [a.nbytes for a in arrays] == sizes
    for k, a in enumerate(arrays):
        assert a.ctypes.data % ALIGN == 0
        a[:] = k
    assert all((a == k).all() for k, a in enumerate(arrays))


def test_large_data_lies_in_large_pages() -> None:
    (large,) = Room().laid([LARGE])
    assert large.ctypes.data % LARGE_PAGE == 0
    assert large.base is not None
    assert large.base.nbytes >= 2 * LARGE_PAGE  # which numpy asks large pages for
    (small,) = Room().laid([64])
    assert small.base is not None
    assert small.base.nbytes < 2 * LARGE


def test_kernels_that_take_turns_write_to_one_place() -> None:
    task = tasks_of(compiler.optimize(net()), HOST)[0]
    inputs, room = random_arrays(legalize(task.function), 0), Room()

    def made(choice: Any, **where: Any) -> KernelRun:
        return KernelRun(
            compile_kernel(legalize(task.function), HOST, choice), HOST, inputs, **where
        )

    rules, chosen = made({}, room=room), made(task.space.neighbours()[0], room=room)
    other = made({})
    assert rules.outputs[0].ctypes.data == chosen.outputs[0].ctypes.data
    assert other.outputs[0].ctypes.data != rules.outputs[0].ctypes.data
    want = rules.result()
    assert want == chosen.result() == other.result()
    assert any(want)


# ---- in a network --------------------------------------------------------------------------------
def test_kernels_with_records_are_timed_in_their_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks when it is read: a kernel takes a tick wherever it is."""
    monkeypatch.setattr(in_network, "thread_time", count().__next__)
    mod, default = net(), compiler.build(net())
    made = records(mod, 2)
    with apply_records(made):
        tuned = compiler.build(mod)
    assert tuned.tuned >= 3  # of two workloads: the equal ones share theirs
    arrays = network_inputs(default, 0)
    shares = shares_in_network(default, tuned, arrays, 0.0)
    assert shares == {r.workload: 1.0 for r in made}
    assert {k.workload for k in tuned.kernels if k.tuned} == {r.workload for r in made}
    assert default(*arrays).tobytes() == tuned(*arrays).tobytes()
    assert shares_in_network(default, default, arrays, 0.0) == {}


def test_a_kernel_that_takes_longer_among_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stages advance, those of the tuned build by more."""
    mod, default, ticks = net(), compiler.build(net()), [0]
    with apply_records(records(mod, 2)):
        tuned = compiler.build(mod)
    run = in_network.stage_calls

    def counted(exe: Any, *given: Any) -> Any:
        found, cost = run(exe, *given), 7 if exe is tuned else 2

        def call() -> None:
            ticks[0] += cost

        return SimpleNamespace(calls=[(s, call) for s, _ in found.calls], memory=found.memory)

    monkeypatch.setattr(in_network, "stage_calls", counted)
    monkeypatch.setattr(in_network, "thread_time", lambda: ticks[0])
    shares = shares_in_network(default, tuned, network_inputs(default, 0), 0.0)
    assert set(shares.values()) == {3.5}


def test_what_is_slower_in_the_network_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much faster it is alone, and the network with it."""
    monkeypatch.setattr("compiler.tuning.tuner.in_turns", lambda a, b, rounds: (2.0, 1.0))
    seen: list[str] = []

    def shares(default: Any, tuned: Any, arrays: Any, limit_s: float) -> dict[str, float]:
        seen.extend(sorted({k.workload for k in tuned.kernels if k.tuned}))
        return {seen[0]: 1.1, seen[1]: 0.9}

    monkeypatch.setattr("compiler.tuning.tuner.shares_in_network", shares)
    done = tune(net(), budget_s=300, log=tmp_path / "tune.jsonl", trials=1)
    assert len(seen) == done.workloads == 4
    assert {r.workload for r in done.records} == set(seen[1:])
    assert tuple(read_log(tmp_path / "tune.jsonl")) == done.records
