"""Candidates that crash, or never end, as they run: real code, planted among a tuner's."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.codegen.backend import Code, backend_of
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.target.registry import Target
from compiler.tuning import compilation, processes, tuner
from compiler.tuning.tasks import tasks_of
from compiler.tuning.trials import read_trials
from compiler.tuning.tuner import tune

pytestmark = pytest.mark.skipif(not processes.forks(), reason="candidates run in forks")
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="planted in x86's assembly")
HOST = Target.parse("llvm")
NULL = "store volatile i32 0, ptr null"
DIVISION = 'call void asm sideeffect "xorl %ecx, %ecx; divl %ecx", "~{eax},~{ecx},~{edx}"()'
ENDLESS = 'call void asm sideeffect "1: jmp 1b", ""()'


def net() -> IRModule:
    rng, b = np.random.default_rng(0), FunctionBuilder()
    weight = rng.normal(size=(32, 32)).astype(np.float32)
    return IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (4, 32)), b.const(weight)))})


class Planted:
    """A backend that begins every function with `line`, in the candidate of number `at` that a
    process compiles, if that process is a fork."""

    def __init__(self, line: str, at: int = 0):
        self.line, self.at, self.parent, self.seen = line, at, os.getpid(), 0
        self.real = backend_of(HOST)

    def object_and_assembly(self, code: Code, target: Target) -> tuple[bytes, str]:
        assert os.getpid() != self.parent, "the process that measures compiles nothing untried"
        self.seen += 1
        if self.seen - 1 != self.at:
            return self.real.object_and_assembly(code, target)
        bad = code.text.replace("entry:\n", f"entry:\n  {self.line}\n")
        assert bad != code.text
        return self.real.object_and_assembly(replace(code, text=bad), target)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def plant(line: str, at: int = 0) -> None:
        backend = Planted(line, at)
        monkeypatch.setattr(compilation, "backend_of", lambda target: backend)

    monkeypatch.setattr(processes, "RUN_S", 0.3)
    return plant


CRASHES = [
    (NULL, "it crashes: SIGSEGV"),
    pytest.param(DIVISION, "it crashes: SIGFPE", marks=[X86, pytest.mark.thorough]),
    pytest.param(ENDLESS, "it runs longer than 0 s", marks=[X86, pytest.mark.thorough]),
]


@pytest.mark.parametrize(("line", "reason"), CRASHES)
def test_a_candidate_that_dies_is_rejected_with_a_reason(
    planted: Callable[..., None], line: str, reason: str
) -> None:
    """Each process that tries candidates dies of its second one; the others come through."""
    planted(line, 1)
    (task, *_) = tasks_of(compiler.optimize(net()), HOST)
    choices = [{}, *task.space.neighbours()[:4]]
    compilers = processes.Compilers([task], ())
    try:
        for choice in choices:
            compilers.submit(0, choice)
        found = [compilers.take()[1] for _ in choices]
    finally:
        compilers.close()
    assert [o.error for o in found] == ["", reason, "", reason, ""]
    assert [bool(o.code) for o in found] == [True, False, True, False, True]


@pytest.mark.thorough
@pytest.mark.parametrize("core", [False, True])
def test_processes_of_their_own_cores_go_on_after_a_crash(
    planted: Callable[..., None], core: bool
) -> None:
    """With what they were given meanwhile."""
    planted(NULL, 2)
    (task, *_) = tasks_of(compiler.optimize(net()), HOST)
    cores = (min(os.sched_getaffinity(0)),) if core else ()
    compilers = processes.Compilers([task], cores)
    try:
        for choice in [{}, *task.space.neighbours()[:5]]:
            compilers.submit(0, choice)
        found = [compilers.take()[1].error for _ in range(6)]
    finally:
        compilers.close()
    assert found == ["", "", "it crashes: SIGSEGV"] * 2


@pytest.mark.thorough
def test_a_tuner_survives_its_candidates(
    planted: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(NULL, 1)
    last = processes.compiling_cores()[-1:]  # one process, whose every second candidate crashes
    monkeypatch.setattr(tuner, "compiling_cores", lambda: last)
    log = tmp_path / "tune.jsonl"
    done = tune(net(), HOST, 300, 0, log, trials=6)
    reasons: list[Any] = [t.reason for t in done.trials]
    assert len(reasons) == 6 * done.workloads
    assert reasons.count("it crashes: SIGSEGV") == len(reasons) // 2
    assert all(t.ms is not None for t in done.trials if not t.reason)
    assert [t.reason for t in read_trials(log) if t.choice] == reasons
    with compiler.apply_history_best(log):
        x = np.ones((4, 32), np.float32)
        assert compiler.build(net())(x).tobytes() == compiler.build(net())(x).tobytes()
    again = tune(net(), HOST, 300, 0, log, trials=6)
    assert (again.resumed, again.trials) == (len(reasons), ())
