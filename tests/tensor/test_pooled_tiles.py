"""Sums that are no products, of windows and means: which stand side by side, and that each is what
it is alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import Legalized, legalize
from compiler.runtime.kernels import compile_kernel
from compiler.scheduling.tile_config import TileChoice
from compiler.target.registry import Target
from compiler.tuning.kernel_run import KernelRun
from compiler.tuning.space import space_of
from datatypes import change_dtype

Widths = tuple[tuple[int, int], ...]
AVX2, AVX512 = "llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512"
SSE, ARM = "llvm -mcpu=x86-64-v2", "llvm -mtriple=aarch64-linux"


def pooled(kind: str, blocks: int, size: int, dtype: str = "float32") -> IRModule:
    """Windows of 3x3, or the mean, of images in blocks of eight channels."""
    b = FunctionBuilder()
    x = b.param("x", (1, blocks, size, size, 8), dtype)
    if kind == "mean":
        return IRModule({"main": b.finish(b.call("mean", x, axis=[2, 3], keepdims=True))})
    attrs = {"pool_size": [3, 3], "strides": [1, 1], "padding": [1, 1, 1, 1]}
    return IRModule({"main": b.finish(b.call(f"nn.{kind}_pool2d", x, **attrs))})


def rule_of(mod: IRModule, target: Target) -> tuple[Legalized, str, TileChoice]:
    """The loops of a network of one, the stage that adds, and what the rules choose for it."""
    called = [
        b.value.op
        for b in compiler.optimize(mod, target).main.bindings
        if isinstance(b.value, Call)
    ]
    (function,) = (
        f for f in called if isinstance(f, Function) and ("pool" in str(f) or "mean" in str(f))
    )
    legal = legalize(function)
    space = space_of(legal.func, target, ())
    assert space is not None
    ((stage, rule),) = ((n, s.rule) for n, s in space.stages.items() if hasattr(s, "rule"))
    return legal, stage, rule


@pytest.mark.parametrize(
    ("kind", "blocks", "size", "dtype", "target", "widths"),
    [
        ("max", 24, 7, "float32", AVX2, ((3, 7),)),
        ("max", 24, 14, "float32", AVX2, ((3, 7),)),
        ("avg", 24, 28, "float32", AVX2, ((3, 7),)),
        ("max", 24, 28, "uint8", AVX2, ((1, 2), (3, 7))),
        ("avg", 24, 7, "uint8", AVX2, ((1, 2), (3, 7))),
        ("max", 1, 28, "uint8", AVX2, ((3, 7),)),
        ("max", 24, 3, "float32", AVX2, ((3, 3),)),
        ("max", 24, 2, "float32", AVX2, ((2, 2), (3, 2))),  # of rows
        ("mean", 24, 7, "float32", "wasm32", ((1, 4),)),
        ("mean", 24, 7, "float32", AVX2, ((1, 4),)),
        ("mean", 24, 7, "float32", AVX512, ((1, 4),)),
        ("mean", 24, 7, "float32", SSE, ((1, 4),)),
        ("mean", 24, 7, "float32", ARM, ((1, 4),)),
        ("mean", 1, 7, "float32", AVX2, ()),
        ("max", 24, 28, "float32", AVX512, ((3, 14),)),
        ("max", 24, 28, "uint8", AVX512, ((3, 14),)),
        ("max", 24, 28, "float32", SSE, ((3, 6),)),
    ],
)
def test_sums_stand_side_by_side(
    kind: str, blocks: int, size: int, dtype: str, target: str, widths: Widths
) -> None:
    """One sum alone waits for its own last addition: those of other channels do not."""
    _, _, rule = rule_of(pooled(kind, blocks, size, dtype), Target.anywhere(target))
    assert rule.widths == widths


def test_sums_of_formats_do_too() -> None:
    mod = change_dtype(pooled("mean", 16, 4), "float32", "posit16_es1")
    assert rule_of(mod, Target.anywhere(AVX2))[2].widths == ((1, 4),)


@pytest.mark.sampled(4)
@settings(max_examples=20)
@given(
    st.sampled_from(
        [(kind, dtype) for kind in ("max", "avg", "mean") for dtype in ("float32", "float64")]
        + [("max", "uint8"), ("avg", "uint8")]
    ),
    st.integers(1, 17),
    st.integers(1, 17),
)
def test_they_are_what_they_are_alone(what: tuple[str, str], blocks: int, size: int) -> None:
    """The same bits as one at a time, whatever is left over, and near to the reference."""
    kind, dtype = what
    mod = pooled(kind, blocks, size, dtype)
    x = np.random.default_rng(blocks * size).integers(0, 200, (1, blocks, size, size, 8))
    x = x.astype(dtype)
    got = compiler.build(mod)(x)
    np.testing.assert_allclose(got, compiler.evaluate(mod, x), rtol=1e-5)
    target = Target.parse("llvm")
    legal, stage, rule = rule_of(mod, target)
    alone = {stage: replace(rule, widths=())}
    run = compile_kernel(legal, target, alone)
    assert got.tobytes() == KernelRun(run, target, [x]).result()
