"""LLVM works beside the thread that writes the code: errors name their node, nothing stays."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.codegen import cache
from compiler.codegen.llvm import jit
from compiler.errors import LoweringError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime import kernels


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(kernels, "_known", {})


def layers() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (2, 7))
    for k in range(3):
        x = b.call("nn.relu", b.call("nn.dense", x, b.const(np.full((7, 7), k, np.float32))))
    return IRModule({"main": b.finish(x)})


def test_threads_end_and_the_interval_is_as_before() -> None:
    interval, count = sys.getswitchinterval(), threading.active_count()
    compiled = cache.statistics()["compiled"]
    exe = compiler.build(layers())
    assert cache.statistics()["compiled"] > compiled
    assert (sys.getswitchinterval(), threading.active_count()) == (interval, count)
    x = np.ones((2, 7), np.float32)
    assert exe(x).tobytes() == compiler.evaluate(layers(), x).tobytes()


def test_what_llvm_rejects_names_the_node_and_is_built_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interval, count = sys.getswitchinterval(), threading.active_count()

    def rejected(*_: object) -> bytes:
        raise LoweringError("LLVM rejects the code")

    with monkeypatch.context() as patched:
        patched.setattr(jit, "object_code", rejected)
        with pytest.raises(LoweringError, match=r"nn\.dense, nn\.relu \(.*\): LLVM rejects"):
            compiler.build(layers())
    assert (sys.getswitchinterval(), threading.active_count()) == (interval, count)
    compiler.build(layers())


def test_builds_at_the_same_time() -> None:
    interval = sys.getswitchinterval()
    x, found = np.ones((2, 7), np.float32), []
    threads = [
        threading.Thread(target=lambda: found.append(compiler.build(layers())(x))) for _ in range(3)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({y.tobytes() for y in found}) == 1
    assert len(found) == 3
    assert sys.getswitchinterval() == interval


def test_large_constants_are_in_place_when_a_build_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever copies them: here all constants are large, and the copies slow."""
    count, filled = threading.active_count(), []
    pack, x = kernels.pack_into, np.ones((2, 7), np.float32)

    def slow(*given: Any) -> None:
        time.sleep(0.01)
        filled.append(threading.current_thread())
        pack(*given)

    monkeypatch.setattr(kernels, "LARGE", 0)
    monkeypatch.setattr(kernels, "pack_into", slow)
    exe = compiler.build(layers())
    assert filled
    assert threading.current_thread() not in filled
    assert exe(x).tobytes() == compiler.evaluate(layers(), x).tobytes()
    assert threading.active_count() == count


def test_a_constant_that_cannot_be_copied_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    interval, count = sys.getswitchinterval(), threading.active_count()

    def full(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(kernels, "LARGE", 0)
    monkeypatch.setattr(kernels, "pack_into", full)
    with pytest.raises(MemoryError, match="no room"):
        compiler.build(layers())
    assert (sys.getswitchinterval(), threading.active_count()) == (interval, count)
