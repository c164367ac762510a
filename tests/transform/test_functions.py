"""Inline, LambdaLift, BindParams and CombineParallel*: what they leave, and what they refuse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import ConfigError, InputError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule, nested
from compiler.passes.rewrite import call
from compiler.transform import (
    BindParams,
    CombineParallelConv2D,
    FuseOps,
    Inline,
    LambdaLift,
    Pass,
    PassContext,
    Sequential,
    VerifyInstrument,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "compiler"))

from language import PROGRAMS, Program


def run(pass_: Pass, mod: IRModule) -> IRModule:
    with PassContext(opt_level=4, instruments=[VerifyInstrument()]):
        return Sequential([pass_])(mod)


def listed(x: Any) -> list[np.ndarray]:
    return x if isinstance(x, list) else [x]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_programs_of_the_language_compute_the_same(program: Program) -> None:
    mod = compiler.parse(program.source)
    names = list(mod.functions)[1:]
    for pass_ in (Inline(names), LambdaLift()):
        out = run(pass_, mod)
        for n in (1, 3, 4):
            want = listed(program.expected(*program.inputs(n)))
            got = listed(compiler.evaluate(out, *program.inputs(n)))
            for a, b in zip(want, got, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-5)


def test_recursive_functions_and_kernels_are_not_inlined() -> None:
    programs = {p.name: compiler.parse(p.source) for p in PROGRAMS}
    assert run(Inline(["times"]), programs["recursion"]) is programs["recursion"]
    assert run(Inline(["grow"]), programs["match"]) is programs["match"]
    fused = FuseOps()(programs["tuples"])
    text = str(run(Inline(["both"]), fused))
    assert "@both(%p)" not in text
    assert text.count("primitive=True") == str(fused).count("primitive=True") + 1


def test_functions_whose_sizes_are_found_at_run_time_are_not_inlined() -> None:
    mod = compiler.parse("""
def @main(%x: Tensor[(n, 2), float32]) -> Tensor[(m, 2), float32] {
  %y = @found(%x);
  %y
}

def @found(%a: Tensor[(n, 2), float32], inline=True) -> Tensor[(m, 2), float32] {
  %b = match(%a, Tensor[(m, 2), float32]);
  %b
}
""")
    assert run(Inline(), mod) is mod


def test_sizes_in_attributes_are_those_of_the_call() -> None:
    mod = compiler.parse("""
def @main(%x: Tensor[(6, k), float32]) -> Tensor[(3, 2, k), float32] {
  %y = @apart(%x);
  %y
}

def @apart(%a: Tensor[(6, n), float32], inline=True) -> Tensor[(3, 2, n), float32] {
  %b = reshape(%a, newshape=[3, 2, n]);
  %b
}
""")
    out = run(Inline(), mod)
    assert "reshape(%x, newshape=[3, 2, k])" in str(out)
    assert list(out.functions) == ["main"]


def test_an_unknown_function_is_an_error() -> None:
    mod = compiler.parse(PROGRAMS[0].source)
    with pytest.raises(ConfigError, match="did you mean 'main'"):
        Inline(["man"])(mod)


def test_no_closure_has_a_body_after_lifting() -> None:
    (closure,) = (compiler.parse(p.source) for p in PROGRAMS if p.name == "closure")
    out = run(LambdaLift(), closure)
    assert run(LambdaLift(), out) is out

    def closures(f: Function) -> list[Function]:
        inside = [g for b in f.bindings for g in nested(b.value)]
        own = [b.value for b in f.bindings if isinstance(b.value, Function)]
        return own + [c for g in inside for c in closures(g)]

    found = [c for f in out.functions.values() if isinstance(f, Function) for c in closures(f)]
    assert found
    for c in found:
        (binding,) = c.bindings
        assert isinstance(binding.value, Call)
        assert isinstance(binding.value.op, compiler.GlobalVar)


def test_bound_parameters_must_exist_and_fit() -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (2, 3)), b.param("weight", (4, 3))
    mod = IRModule({"main": b.finish(b.call("nn.dense", x, w))})
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    data = np.ones((2, 3), np.float32)
    bound = run(BindParams({"weight": weight}), mod)
    assert [p.name for p in bound.main.params] == ["x"]
    assert np.array_equal(compiler.evaluate(bound, data), compiler.evaluate(mod, data, weight))
    with pytest.raises(InputError, match="did you mean 'weight'"):
        BindParams({"weigth": weight})(mod)
    for wrong in (weight.T, weight.astype(np.float64)):
        with pytest.raises(InputError, match="parameter %weight is Tensor"):
            BindParams({"weight": wrong})(mod)


def test_products_are_combined_from_the_given_number_on() -> None:
    b = FunctionBuilder()
    x, late = b.param("x", (1, 2, 5, 5)), None
    rng = np.random.default_rng(0)
    made = []
    for units in (3, 1, 2):
        w = b.const(rng.standard_normal((units, 2, 3, 3)).astype(np.float32))
        made.append(b.call("nn.conv2d", x, w))
    late = b.call("multiply", b.param("w", (2, 2, 3, 3)), b.const(np.float32(2)))
    made.append(b.call("nn.conv2d", x, late))  # its weights come after the others
    mod = IRModule({"main": b.finish(b.call("concatenate", *made, axis=1))})

    def convolutions(m: IRModule) -> int:
        return str(m).count("nn.conv2d(")

    assert convolutions(run(CombineParallelConv2D(), mod)) == 2
    assert run(CombineParallelConv2D(min_num_branches=4), mod) is mod
    with pytest.raises(ConfigError, match="at least 2"):
        CombineParallelConv2D(min_num_branches=1)
    inputs = [rng.standard_normal(p.type.shape).astype(np.float32) for p in mod.main.params]
    with PassContext(opt_level=4):
        got = compiler.build(mod)(*inputs)
    np.testing.assert_allclose(got, compiler.evaluate(mod, *inputs), rtol=1e-4, atol=1e-5)


def test_a_mutator_visits_constants_of_operands_branches_and_results_once() -> None:
    mod = compiler.parse("""
def @main(%x: Tensor[(2,), float32], %c: Tensor[(), bool])
    -> (Tensor[(2,), float32], Tensor[(), float32]) {
  %y = if (%c) {
    %z = add(%x, 2.0float32);
    %z
  } else {
    %w = multiply(%x, 2.0float32);
    %w
  };
  (%y, 2.0float32)
}
""")  # fmt: skip

    class Negate(compiler.ExprMutator):
        def visit_constant(self, c: compiler.Constant) -> Call:
            return call("negative", c)

    out = Negate().visit(mod)
    compiler.verify(out)
    assert str(out).count("negative(2.0float32)") == 3  # one for each function
    data = np.ones(2, np.float32)
    y, two = compiler.evaluate(out, data, np.asarray(True))
    assert (y.tolist(), two.tolist()) == ([-1, -1], -2)
    assert compiler.ExprMutator().visit(mod) is mod
