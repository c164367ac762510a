"""LegalizeOps in programs with branches, closures and calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from random_programs import PLANS, Plan, inputs, outputs, program

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.op.opdef import OpDef
from compiler.passes.nested import through_nested
from compiler.transform import LegalizeOps


@pytest.mark.thorough
@settings(max_examples=6, deadline=None)
@given(plan=PLANS)
def test_random_programs_legalized_printed_and_read_back_compute_the_same(plan: Plan) -> None:
    mod = program(plan)
    made = LegalizeOps()(mod)
    text = made.astext(show_meta_data=True)
    again = compiler.parse(text)
    assert compiler.structural_equal(made, again)
    compiler.verify(again)
    left: set[str] = set()

    def look(f: compiler.Function) -> compiler.Function:
        ops = [b.value.op for b in f.bindings if isinstance(b.value, compiler.Call)]
        left.update(op.name for op in ops if isinstance(op, OpDef) and not op.view)
        return f

    for f in again.functions.values():
        if isinstance(f, compiler.Function):
            through_nested(f, look)
    assert left <= {"call_tir"}
    run = compiler.build(again)
    for n, flag in ((1, True), (2, False)):
        got = run(*inputs(n, flag))
        for g, want in zip(
            got if isinstance(got, list) else [got], outputs(mod, n, flag), strict=True
        ):
            np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-4 * max(1, np.abs(want).max()))


def test_programs_called_on_constants_are_not_folded() -> None:
    b, c = FunctionBuilder(), np.float32([[1.0, -2.0]])
    y = b.call("add", b.param("x", (3, 2)), b.call("exp", b.const(c)))
    mod = compiler.IRModule({"main": b.finish(y)})
    x = np.ones((3, 2), np.float32)
    want = compiler.evaluate(mod, x)
    assert np.array_equal(compiler.build(LegalizeOps()(mod))(x), compiler.build(mod)(x))
    np.testing.assert_allclose(want, x + np.exp(c), rtol=1e-6)
