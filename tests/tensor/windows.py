"""Convolutions as tasks of a tuner, for tests of how their tiles are walked."""

from __future__ import annotations

from typing import Any

import numpy as np

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering.legalize import legalize
from compiler.runtime.kernels import Kernel, compile_kernel
from compiler.scheduling.choices import Choice
from compiler.target.registry import Target
from compiler.tuning.tasks import Task, tasks_of


def convolution(
    channels: int, outputs: int, size: tuple[int, int] = (7, 7), kernel: int = 3, batch: int = 1,
    target: str = "llvm -mcpu=x86-64-v3", **attrs: Any,
) -> Task:  # fmt: skip
    """AVX2 with fused multiply-adds, if not told otherwise."""
    rng, b = np.random.default_rng(0), FunctionBuilder()
    x = b.param("x", (batch, channels, *size))
    each = channels // attrs.get("groups", 1)
    weight = rng.normal(size=(outputs, each, kernel, kernel)).astype(np.float32)
    attrs = {"padding": (kernel // 2,) * 4} | attrs
    y = b.call("nn.relu", b.call("nn.conv2d", x, b.const(weight), **attrs))
    chosen = Target.anywhere(target)
    found = tasks_of(compiler.optimize(IRModule({"main": b.finish(y)}), chosen), chosen)
    return max(found, key=lambda t: t.work)


def made(task: Task, choice: Choice | None = None) -> Kernel:
    return compile_kernel(legalize(task.function), task.target, choice)
