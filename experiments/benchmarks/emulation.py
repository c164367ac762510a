"""Emulated formats: cost per multiply-accumulate of a dense layer, against native float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from experiments import pipeline, schemes
from experiments.benchmarks.report import Group

FORMATS = ("float32", "bfloat16", "posit8_es0", "posit16_es1", "posit32_es2")
M, N, K = 16, 64, 256


def groups() -> list[Group]:
    """One group: a dense layer of 16 x 64 x 256 in each format."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (M, K))
    w = b.const(rng.normal(size=(N, K)).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.dense", x, w))})
    data = rng.normal(size=(M, K)).astype(np.float32)
    cases: dict[str, Callable[[], object]] = {}
    for name in FORMATS:
        scheme = schemes.parse(name)
        cases[name] = _call(pipeline.build(pipeline.retype(mod, scheme), scheme), data)
    per = dict.fromkeys(FORMATS, M * N * K * 1e-6)
    title = f"emulation, dense {M}x{N}x{K}"
    return [Group(title, "float32", cases, per, "ns/MAC")]


def _call(executable: Any, data: Any) -> Callable[[], object]:
    return lambda: executable(data)
