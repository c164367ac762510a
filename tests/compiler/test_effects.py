"""Calls that have effects are made once each, in program order, whatever passes do around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

import compiler
from compiler.boundary.external import register_func, remove_func
from compiler.ir.expr import IRModule
from compiler.passes.manager import _passes, find_pass, load_passes
from compiler.pattern import CompositePattern, is_op
from compiler.pattern.tables import register_pattern_table
from compiler.transform import (
    AlterOpLayout,
    AnnotateTarget,
    BindParams,
    MergeCompilerRegions,
    PartitionGraph,
    Pass,
    PassContext,
    Sequential,
    VerifyInstrument,
)
from compiler.transform.represent_custom_dtypes import RepresentCustomDtypes
from compiler.types.dtypes import Array

ROW = "Tensor[(2,), float32]"
STRAIGHT = f"""
primfunc @twice(X: float32[2]) -> (Y: float32[2]) {{
  for i in 2:
    Y: Y[i] = (X[i] * float32(2.0))
}}

def @main(%x: {ROW}) {{
  %a = call_packed("test.next", (%x,), {ROW});
  %dead = add(%a, %a);
  %b = call_packed("test.next", (%x,), {ROW});
  %c = call_packed("test.next", (1.0float32,), Tensor[(), float32]);
  %unused = call_packed("test.next", (%b,), {ROW});
  %0 = call_packed("test.note", (2.0float32,), ());
  %1 = call_packed("test.note", (2.0float32,), ());
  %d = call_tir(@twice, (%a,), {ROW});
  %e = call_dps_packed("test.double", (%b,), {ROW});
  %2 = call_packed("test.note", (%e,), ());
  %f = add(%d, %e);
  %g = nn.relu(%f);
  %3 = call_packed("test.note", (%g,), ());
  %h = multiply(%g, %c);
  (%h, %a)
}}
"""
CONTROL = f"""
def @helper(%p: {ROW}) -> {ROW} {{
  %0 = call_packed("test.note", (%p,), ());
  %q = call_packed("test.next", (%p,), {ROW});
  %r = add(%p, %p);
  %r
}}

def @main(%x: {ROW}, %flag: Tensor[(), bool]) {{
  %a = call_packed("test.next", (%x,), {ROW});
  %b = if (%flag) {{
    %1 = call_packed("test.note", (%a,), ());
    %2 = add(%a, %a);
    %2
  }} else {{
    %3 = call_packed("test.next", (%a,), {ROW});
    %a
  }};
  %c = @helper(%b);
  %dead = @helper(%c);
  %d = @helper(%b);
  %unused = if (%flag) {{
    %4 = call_packed("test.note", (%d,), ());
    %d
  }} else {{
    %d
  }};
  %e = add(%c, %d);
  %e
}}
"""
Log = list[tuple[str, tuple[float, ...]]]


@pytest.fixture
def log() -> Iterator[Log]:
    """What was called with which values; `test.next` adds how many calls there were before."""
    calls: Log = []

    def note(x: Array) -> None:
        calls.append(("note", tuple(x.ravel().tolist())))

    def following(x: Array, y: Array) -> None:
        y[...] = x + len(calls)
        calls.append(("next", tuple(x.ravel().tolist())))

    register_func("test.note", note)
    register_func("test.next", following)
    register_func("test.double", lambda x, y: np.multiply(x, 2, out=y))
    yield calls
    for name in ("test.note", "test.next", "test.double"):
        remove_func(name)


register_pattern_table(
    "effects", [CompositePattern(name, is_op(name)) for name in ("add", "nn.relu", "multiply")]
)


def regions() -> list[Pass]:
    """What hands `add`, `nn.relu` and `multiply` to an engine."""
    return [AnnotateTarget("effects"), MergeCompilerRegions()]


SPECIAL: dict[str, Callable[[], Pass]] = {
    "AlterOpLayout": AlterOpLayout,
    "AnnotateTarget": lambda: AnnotateTarget("effects"),
    "MergeCompilerRegions": lambda: Sequential(regions()),
    "PartitionGraph": lambda: Sequential([*regions(), PartitionGraph()]),
    "BindParams": lambda: BindParams({}),
    "RepresentCustomDtypes": lambda: RepresentCustomDtypes({}),
}


def passes() -> dict[str, Callable[[], Pass]]:
    """Every pass of the compiler, with what it needs."""
    load_passes()
    own = [n for n, p in _passes.items() if p.__module__.startswith("compiler.")]
    return {n: SPECIAL.get(n, partial(find_pass, n)) for n in own}


def observed(run: Callable[..., object], log: Log, *args: Array) -> tuple[Log, list[Array]]:
    """What a run called, and its results."""
    log.clear()
    out = run(*args)
    return list(log), list(out) if isinstance(out, list) else [np.asarray(out)]


def check(mod: IRModule, changed: IRModule, log: Log, *args: Array) -> None:
    """Both modules make the same calls and give the same results."""
    calls, want = observed(lambda *a: compiler.evaluate(mod, *a), log, *args)
    assert len(calls) >= 4
    again, got = observed(lambda *a: compiler.evaluate(changed, *a), log, *args)
    assert again == calls
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


X = np.array([1.0, -2.0], np.float32)
YES, NO = np.array(True), np.array(False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", range(5))
def test_every_pass_keeps_every_call_with_effects(level: int, log: Log) -> None:
    straight, control = compiler.parse(STRAIGHT), compiler.parse(CONTROL)
    every = passes()
    assert len(every) > 10
    for name, make in every.items():
        with PassContext(opt_level=level, instruments=[VerifyInstrument()]):
            try:
                once, other = make()(straight), make()(control)
            except Exception as e:
                raise AssertionError(f"{name}: {e}") from e
        check(straight, once, log, X)
        for flag in (YES, NO):
            check(control, other, log, X, flag)


@pytest.mark.parametrize("level", range(5))
def test_builds_make_every_call_at_every_level(level: int, log: Log) -> None:
    straight, control = compiler.parse(STRAIGHT), compiler.parse(CONTROL)
    calls, want = observed(lambda *a: compiler.evaluate(straight, *a), log, X)
    with PassContext(opt_level=level):
        exe = compiler.build(straight)
        machine = compiler.create_executor("vm", control).evaluate()
    for _ in range(2):
        again, got = observed(exe, log, X)
        assert again == calls
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)
    for flag in (YES, NO):
        calls, want = observed(lambda *a: compiler.evaluate(control, *a), log, X, flag)
        again, got = observed(machine, log, X, flag)
        assert again == calls
        np.testing.assert_array_equal(got[0], want[0])


def test_pure_calls_may_be_dropped_and_merged(log: Log) -> None:
    mod = compiler.parse(
        f"def @main(%x: {ROW}) {{\n"
        f'  %a = call_dps_packed("test.double", (%x,), {ROW});\n'
        f'  %b = call_dps_packed("test.double", (%x,), {ROW});\n'
        f'  %c = call_dps_packed("test.double", (%b,), {ROW});\n'
        "  %d = add(%a, %b);\n  %d\n}\n"
    )
    merged = compiler.transform.EliminateCommonSubexpr()(mod)
    kept = compiler.transform.DeadCodeElimination()(merged)
    assert kept.astext().count("call_dps_packed") == 1
    np.testing.assert_array_equal(compiler.build(kept)(X), 4 * X)
