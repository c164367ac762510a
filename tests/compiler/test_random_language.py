"""Random programs print and read back, and keep their results through passes and compilation."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_language import inputs, modules
from same_programs import round_trip, same

import compiler
from compiler import transform

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
PASSES = [
    transform.InferType, transform.SimplifyInference, transform.FoldConstant,
    transform.FoldBatchNorm, transform.FoldScaleAxis, transform.DeadCodeElimination,
    transform.EliminateCommonSubexpr, transform.CanonicalizeOps, transform.CombineParallelDense,
    transform.CombineParallelConv2D, transform.CombineParallelBatchMatmul, transform.Inline,
    transform.LambdaLift, transform.FuseOps, transform.AlterOpLayout, transform.LegalizeOps,
]  # fmt: skip
SIZES = ((1, 2, True), (3, 0, False))


@pytest.mark.thorough
@settings(max_examples=500, **QUIET)
@given(modules())
def test_500_programs_print_and_read_back(mod: compiler.IRModule) -> None:
    round_trip(mod)


def through_passes(mod: compiler.IRModule) -> None:
    wants = [(x, compiler.evaluate(mod, *x)) for x in (inputs(*s) for s in SIZES)]
    for pass_ in PASSES:
        with compiler.PassContext(opt_level=3, instruments=[compiler.VerifyInstrument()]):
            out = pass_()(mod)
        round_trip(out)
        for x, want in wants:
            same(compiler.evaluate(out, *x), want)


def through_builds(mod: compiler.IRModule, level: int, threads: int) -> None:
    with compiler.PassContext(opt_level=level, instruments=[compiler.VerifyInstrument()]):
        round_trip(compiler.optimize(mod))
        exe = compiler.build(mod, threads=threads)
    for s in SIZES:
        same(exe(*inputs(*s)), compiler.evaluate(mod, *inputs(*s)))


@pytest.mark.thorough
@settings(max_examples=20, **QUIET)
@given(modules())
def test_programs_pass_through_every_pass(mod: compiler.IRModule) -> None:
    through_passes(mod)


@settings(max_examples=25, **QUIET)
@given(modules(), st.integers(0, 3), st.integers(1, 2))
def test_programs_compile(mod: compiler.IRModule, level: int, threads: int) -> None:
    through_builds(mod, level, threads)


@pytest.mark.slow
@settings(max_examples=500, **QUIET)
@given(modules(), st.integers(0, 3), st.integers(1, 2))
def test_500_programs_pass_and_compile(mod: compiler.IRModule, level: int, threads: int) -> None:
    through_passes(mod)
    through_builds(mod, level, threads)
