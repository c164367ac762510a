"""Random programs with algebraic data types print and read back, and keep their results through
passes and compilation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_data import inputs, modules
from same_programs import round_trip, same

import compiler
from compiler.passes.pipeline import pipeline

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
SIZES = ((1, 2, True), (3, 0, False))


def passes() -> list[Any]:
    """All passes of the pipeline, and those on request, that need to be told nothing."""
    steps = [*(s for _, s in pipeline().steps()), *pipeline().on_request]
    named = {s.name: s.load() for s in steps if s.optional}
    made = []
    for name, pass_ in named.items():
        if name == "BindParams":
            continue  # needs parameters
        if name in ("PackWeights", "AlterOpLayout"):
            made.append(pass_(compiler.Target.parse("llvm")))
        elif name == "SplitExact":
            made.append(pass_(True, True))
        elif name == "RepresentCustomDtypes":
            made.append(pass_({}))
        elif name != "PrintIR":
            made.append(pass_())
    return made


def through_passes(mod: compiler.IRModule) -> None:
    round_trip(mod)
    wants = [(x, compiler.evaluate(mod, *x)) for x in (inputs(*s) for s in SIZES)]
    for pass_ in passes():
        with compiler.PassContext(opt_level=3, instruments=[compiler.VerifyInstrument()]):
            out = pass_(mod)
        if out is not mod:
            round_trip(out)
            for x, want in wants:
                same(compiler.evaluate(out, *x), want)


def through_builds(mod: compiler.IRModule, level: int) -> None:
    with compiler.PassContext(opt_level=level, instruments=[compiler.VerifyInstrument()]):
        round_trip(compiler.optimize(mod))
        exe = compiler.build(mod)
    for s in SIZES:
        same(exe(*inputs(*s)), compiler.evaluate(mod, *inputs(*s)))


@settings(max_examples=4, derandomize=True, **QUIET)
@given(modules())
def test_programs_pass_through_every_pass(mod: compiler.IRModule) -> None:
    through_passes(mod)


@settings(max_examples=3, derandomize=True, **QUIET)
@given(modules(), st.integers(0, 3))
def test_programs_compile(mod: compiler.IRModule, level: int) -> None:
    through_builds(mod, level)


@pytest.mark.thorough
@settings(max_examples=40, **QUIET)
@given(modules(), st.integers(0, 3))
def test_40_programs_pass_and_compile(mod: compiler.IRModule, level: int) -> None:
    through_passes(mod)
    through_builds(mod, level)


@pytest.mark.slow
@settings(max_examples=400, **QUIET)
@given(modules(), st.integers(0, 3))
def test_400_programs_pass_and_compile(mod: compiler.IRModule, level: int) -> None:
    through_passes(mod)
    through_builds(mod, level)
