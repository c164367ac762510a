"""The thread pool: what a fork and join costs, and a shipped network on one thread and on two."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from compiler.codegen.llvm import jit
from compiler.ir.expr import IRModule
from compiler.runtime import pool
from compiler.target.registry import Target
from experiments.benchmarks.report import Group
from experiments.data import datasets
from experiments.systems import pipeline, schemes
from experiments.zoo import model_batches, model_files

REPEATS = 1000
NOTHING = f"""
declare void @{pool.SYMBOL}(ptr, ptr, i64, i64)
define internal void @nothing(ptr %block, i64 %begin, i64 %end) nounwind {{
  call void asm sideeffect "", ""()
  ret void
}}
define void @benchmark_fork_join(i64 %repeats, i64 %threads) nounwind {{
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%k1, %loop]
  call void @{pool.SYMBOL}(ptr @nothing, ptr null, i64 %threads, i64 %threads)
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %repeats
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


def groups() -> list[Group]:
    """Fork-join of an empty kernel with one iteration per thread; then the residual network."""
    return [_fork_join(), *(_network(batch) for batch in (1, 64))]


def _fork_join() -> Group:
    pool.start()
    address = jit.compile_text(NOTHING, "benchmark_fork_join", Target.parse("llvm"))
    run = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(address)
    cases = {f"{n} threads": _forks(run, n) for n in (2, 3, 8)}
    per = dict.fromkeys(cases, REPEATS * 1e-3)
    return Group("fork and join, empty kernel", "2 threads", cases, per, "us")


def _forks(run: Callable[[int, int], object], threads: int) -> Callable[[], object]:
    return lambda: run(REPEATS, threads)


def _network(batch: int) -> Group:
    x = datasets.load("mnist1k").x[:batch]
    module = model_batches.load_for_batch(
        model_files.model_file("mnist_resnet8"), x.shape[1:], batch
    )
    cases = {f"{n} thread(s)": _inference(module, n, x) for n in (1, 2)}
    return Group(f"mnist_resnet8 float32, batch {batch}", "1 thread(s)", cases)


def _inference(module: IRModule, threads: int, x: pipeline.Array) -> Callable[[], object]:
    executable = pipeline.build(module, schemes.parse("float32"), threads=threads)
    return lambda: executable(x)
