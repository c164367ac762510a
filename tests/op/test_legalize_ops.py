"""LegalizeOps: programs that print, read back, and run as the operators do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_case import Case, values
from op_harness import N, known
from test_every_op import RUNS, label, types_of

import compiler
import datatypes
import quantize
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule, Var
from compiler.ir.function_calls import CALL_TIR
from compiler.op.library import get_op
from compiler.transform import LegalizeOps
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType, TupleType
from experiments import zoo
from experiments.data import datasets


def one_operator(case: Case, types: list[TensorType], args: list[Array], held: bool) -> IRModule:
    """A module of one call; with `held`, operands but the first are constants."""
    b = FunctionBuilder()
    atoms: list[Var | Constant] = []
    for k, (t, a) in enumerate(zip(types, args, strict=True)):
        constant = held and k > 0 and all(isinstance(d, int) for d in t.shape)
        atoms.append(Constant(a, t.dtype) if constant else b.add_param(Var(f"x{k}", t)))
    out = b.call(case.op, *atoms, name="out", **case.attrs)
    fields = out.type.fields if isinstance(out.type, TupleType) else ()
    return IRModule({"main": b.finish(*([b.get(out, k) for k in range(len(fields))] or [out]))})


def legal(mod: IRModule) -> IRModule:
    """Legalized, printed, and read back."""
    made = LegalizeOps()(mod)
    text = made.astext(show_meta_data=True)
    again = compiler.parse(text)
    assert again.astext(show_meta_data=True) == text
    assert compiler.structural_equal(made, again)
    compiler.verify(again)
    return again


def assert_same_bits(got: Any, want: Any) -> None:
    for g, w in zip(*(x if isinstance(x, list) else [x] for x in (got, want)), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_array_equal(g, w)
        assert g.tobytes() == w.tobytes()


def sampled() -> list[Any]:
    """One case of every operator; the others are marked slow."""
    seen: set[str] = set()
    out = []
    for run in RUNS:
        marks = [pytest.mark.slow] if run[0].op in seen else []
        seen.add(run[0].op)
        out.append(pytest.param(run, marks=marks, id=label(run)))
    return out


@pytest.mark.sampled(21)
@pytest.mark.parametrize("run", sampled())
def test_every_operator_legalized_printed_and_read_back_gives_the_same_bits(run: Any) -> None:
    case, which = run
    types = types_of(case, case.operand_dtypes(which))
    rng = np.random.default_rng(0)
    shapes = [TensorType.of(known(t, {N: 2}), t.dtype) for t in types]
    args = [values(rng, t, case.low, case.high) for t in shapes]
    for held in (False, True):
        mod = one_operator(case, types, args, held)
        names = [p.name for p in mod.main.params]
        given = {f"x{k}": a for k, a in enumerate(args) if f"x{k}" in names}
        made = legal(mod)
        op = get_op(case.op)
        if not op.view and not op.rounds:
            assert made.main.bindings[0].value.op is CALL_TIR
        with compiler.PassContext(opt_level=0, disabled_pass=["SimplifyInference"]):
            assert_same_bits(compiler.build(made)(given), compiler.build(mod)(given))
        if held:  # constants are folded, laid out in blocks
            made = legal(compiler.optimize(mod))
            assert_same_bits(compiler.build(made)(given), compiler.build(mod)(given))


def network(name: str, scheme: str) -> IRModule:
    mod = compiler.from_onnx(zoo.FOLDER / f"{name}.onnx")
    if scheme == "int8":
        return quantize.quantize(mod, [datasets.load("mnist1k").x[:32]])
    return mod if scheme == "float32" else datatypes.change_dtype(mod, "float32", scheme)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("mnist_resnet8", "float32"),
        ("mnist_mlp", "posit16_es1"),
        ("mnist_resnet8", "int8"),
        pytest.param("mnist_dwsep", "int8", marks=pytest.mark.slow),
        pytest.param("mnist_resnet8", "posit16_es1", marks=pytest.mark.slow),
        pytest.param("mnist_dwsep", "float32", marks=pytest.mark.slow),
    ],
)
def test_an_optimized_network_legalized_runs_the_same_kernels(name: str, scheme: str) -> None:
    mod, x = network(name, scheme), datasets.load("mnist1k").x[:7]
    direct, made = compiler.build(mod), compiler.build(legal(compiler.optimize(mod)))
    assert_same_bits(made(x), direct(x))
    texts = [[str(k.func).split("{", 1)[1] for k in e.program.kernels] for e in (made, direct)]
    assert texts[0] == texts[1]


def dense_relu() -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (5, 24))
    w = b.const(np.random.default_rng(0).normal(size=(8, 24)).astype(np.float32))
    return IRModule({"main": b.finish(b.call("nn.relu", b.call("nn.dense", x, w), name="y"))})


def test_a_legalized_program_is_edited_as_text() -> None:
    mod = LegalizeOps()(dense_relu())
    text = mod.astext(show_meta_data=True)
    assert text.count("max(") == 1
    negated = compiler.parse(text.replace("max(", "min("))
    x = np.random.default_rng(1).normal(size=(5, 24)).astype(np.float32)
    plain = compiler.build(mod)(x)
    assert (compiler.build(negated)(x) <= 0).all()
    assert (plain >= 0).all()
    np.testing.assert_array_equal(compiler.build(negated)(-x), -plain)


def test_a_schedule_applies_to_a_program_of_the_module() -> None:
    mod = LegalizeOps()(dense_relu())
    (name,) = [n for n in mod.functions if "dense" in n]
    s = compiler.schedule(mod, name)
    stage = s.stages()[0]
    i, j, k = s.loops(stage)
    outer, inner = s.split(j, 4)
    s.reorder(i, outer, k, inner)
    s.vectorize(inner)
    changed = mod.with_function(name, s.func)
    assert str(mod.functions[name]) != str(changed.functions[name])
    again = compiler.parse(changed.astext(show_meta_data=True))
    x = np.random.default_rng(1).normal(size=(5, 24)).astype(np.float32)
    exe = compiler.build(again)
    assert f"vector for {inner} in 4" in exe.as_text()
    assert_same_bits(exe(x), compiler.evaluate(mod, x))
    np.testing.assert_allclose(exe(x), compiler.build(mod)(x), rtol=1e-5, atol=1e-6)
