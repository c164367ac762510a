"""Type inference and every pass take time in proportion to the program: ten times as many bindings
take at most fifteen times as many instructions (see `counting`).

`python -m experiments.benchmarks passes` prints seconds, for 500 and 5000 bindings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from counting import instructions
from growing_programs import PROGRAMS

import compiler
from compiler.engines.engine import Engine, register_engine
from compiler.ir.expr import IRModule
from compiler.passes import manager
from compiler.pattern import CompositePattern, is_op
from compiler.transform import Sequential

MOST = 15.0
NEEDS_ARGUMENTS = {"BindParams", "RepresentCustomDtypes", "PrintIR", "SplitExact"}
"""Passes that are no business of this test: they need arguments, or print."""
SAMPLE = ("network", "ladder", "closures")


def actions() -> dict[str, Callable[[IRModule], object]]:
    """Every pass that needs no argument, by its name, and what else goes through whole programs."""
    manager.load_passes()
    package = {n: p for n, p in manager._passes.items() if p.__module__.startswith("compiler.")}
    made: dict[str, Callable[[IRModule], object]] = {
        name: p() for name, p in package.items() if name and name not in NEEDS_ARGUMENTS
    }
    patterns = [CompositePattern(n, is_op(n)) for n in ("add", "nn.dense", "nn.conv2d", "nn.relu")]
    register_engine(Engine("linear", tuple(patterns), lambda f, name: print), override=True)
    return made | {
        "verify": compiler.verify,
        "print": IRModule.astext,
        "parse": lambda mod: compiler.parse(mod.astext(show_meta_data=True)),
        "structural_equal": lambda mod: compiler.structural_equal(mod, mod),
        "prepare": compiler.transform.prepare,
        "partition": lambda mod: compiler.partition(mod, "linear"),
    }


def check(program: Callable[[int], IRModule], size: int) -> None:
    small, large = program(size), program(10 * size)
    ratios = {}
    for name, act in actions().items():
        act(program(12))  # what is loaded and cached by the first run
        ratios[name] = instructions(partial(act, large)) / instructions(partial(act, small))
    assert len(ratios) > 20
    assert {name: r for name, r in ratios.items() if r > MOST} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLE)
def test_work_grows_as_the_program_does(name: str) -> None:
    check(PROGRAMS[name], 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_work_grows_as_every_program_does(name: str) -> None:
    check(PROGRAMS[name], 50)


def test_a_quadratic_pass_would_be_seen() -> None:
    @compiler.module_pass
    def quadratic(mod: IRModule, ctx: compiler.PassContext) -> IRModule:
        f = mod.main
        assert sum(a is b for a in f.bindings for b in f.bindings) == len(f.bindings)
        return mod

    small, large = (PROGRAMS["network"](n) for n in (30, 300))
    ratio = instructions(lambda: quadratic(large)) / instructions(lambda: quadratic(small))
    assert ratio > MOST


@pytest.mark.thorough
def test_long_chains_of_functions_are_no_recursion() -> None:
    mod = PROGRAMS["calls"](4000)
    out = Sequential([compiler.transform.Inline([f"f{k}" for k in range(100)])])(mod)
    compiler.verify(out)
    assert len(out["f99"].bindings) == 100
