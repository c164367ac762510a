"""Tensors without elements: every operator, interpreted and compiled, for a batch of 0 inputs; and
what is computed of nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_case import Case, values
from op_cases import CASES
from op_harness import known
from test_every_op import label, types_of

import compiler
from compiler.errors import InputError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.symbolic import Var
from compiler.types.tensor_types import TensorType

N = Var("n")
SYMBOLIC = [c for c in CASES if any("n" in shape for shape in c.shapes)]
FIRST = list({c.op: (c, c.dtypes[0]) for c in reversed(SYMBOLIC)}.values())
ALL = [(c, d) for c in SYMBOLIC for d in c.dtypes]


def module(case: Case, which: Any) -> tuple[IRModule, list[TensorType]]:
    """A module of the one call."""
    types = types_of(case, case.operand_dtypes(which))
    b = FunctionBuilder()
    params = [b.param(f"x{k}", t.shape, t.dtype) for k, t in enumerate(types)]
    result = b.call(case.op, *params, **case.attrs)
    return IRModule({"main": b.finish(result)}), types


def both_on_nothing(run: tuple[Case, Any]) -> None:
    case, which = run
    mod, types = module(case, which)
    rng, dims = np.random.default_rng(0), {N: 0}
    args = [values(rng, TensorType.of(known(t, dims), t.dtype), case.low, case.high) for t in types]
    made = get_op(case.op).infer_type(get_op(case.op).make_attrs(**case.attrs), types)
    fields = getattr(made, "fields", (made,))
    with np.errstate(all="ignore"):
        want, refused = outcome(lambda: compiler.evaluate(mod, *args))
    got, why = outcome(lambda: compiler.build(mod)(*args))
    assert why == refused  # the same sentence
    if refused:
        assert any(s in refused for s in ("without elements", "too small", "does not fit"))
        return
    for g, w, t in zip(_fields(got), _fields(want), fields, strict=True):
        assert g.shape == w.shape == known(t, dims)
        assert g.dtype == w.dtype == t.dtype.storage
        np.testing.assert_array_equal(g, w)


def outcome(run: Callable[[], Any]) -> tuple[Any, str]:
    """The result; or none, and why there is none."""
    try:
        return run(), ""
    except InputError as e:
        return None, str(e)


def _fields(x: Any) -> tuple[Any, ...]:
    if isinstance(x, list) and len(x) == 1:
        (x,) = x
    return tuple(x) if isinstance(x, list | tuple) else (x,)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("run", FIRST, ids=label)
def test_every_operator_runs_on_a_batch_of_nothing(run: tuple[Case, Any]) -> None:
    both_on_nothing(run)


@pytest.mark.slow
@pytest.mark.parametrize("run", ALL, ids=label)
def test_every_case_runs_on_a_batch_of_nothing(run: tuple[Case, Any]) -> None:
    both_on_nothing(run)


X, Y = compiler.var("x", ("n", 4)), compiler.var("y", ("m", 4))
NONE, TWO = np.zeros((0, 4), np.float32), np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])
WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)
call = compiler.call
OF_NOTHING: dict[str, tuple[Any, list[float]]] = {
    "sum": (call("sum", X, axis=0), [0] * 4),
    "mean": (call("mean", X, axis=0), [np.nan] * 4),
    "prod": (call("prod", X, axis=0), [1] * 4),
    "matmul": (call("nn.matmul", call("transpose", X, axes=(1, 0)), X), [0] * 16),
    "dense": (call("nn.dense", call("sum", X, axis=0, keepdims=True) + 1, WEIGHTS), [6, 22, 38]),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_sums_of_nothing(name: str) -> None:
    result, want = OF_NOTHING[name]
    mod = IRModule({"main": compiler.function([X], result)})
    exe = compiler.build(mod)
    for run in (lambda x: compiler.evaluate(mod, x), exe):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(np.ravel(run(NONE)), np.float32(want))
        assert np.isfinite(run(TWO)).all()  # other sizes run as before
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(np.ravel(run(NONE)), np.float32(want))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["float32", "int8", "posit8_es1"])
def test_networks_run_on_a_batch_of_nothing(kind: str) -> None:
    import datatypes
    import quantize
    from experiments import zoo
    from experiments.data import datasets

    digits = datasets.load("mnist1k")
    mod = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    if kind == "int8":
        mod = quantize.quantize(mod, [digits.calibration[:32]])
    elif kind != "float32":
        mod = datatypes.change_dtype(mod, "float32", kind)
    exe = compiler.build(mod, threads=2)
    for run in (exe, lambda x: compiler.evaluate(mod, x)):
        assert run(digits.x[:0]).shape == (0, 10)
    assert exe(digits.x[:3]).shape == (3, 10)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("static", [False, True])
def test_parts_without_elements(static: bool, threads: int) -> None:
    x = compiler.var("x", (0, 4)) if static else X
    joined = call("nn.dense", call("nn.relu", call("concatenate", x, Y, x, axis=0)), WEIGHTS)
    mod = IRModule({"main": compiler.function([x, Y], joined)})
    exe = compiler.build(mod, threads=threads)
    for y in (TWO, TWO[:1], NONE):
        np.testing.assert_array_equal(exe(NONE, y), y @ WEIGHTS.T)
        np.testing.assert_array_equal(compiler.evaluate(mod, NONE, y), y @ WEIGHTS.T)


def test_the_largest_of_nothing_is_refused() -> None:
    mod = IRModule({"main": compiler.function([X], call("max", X, axis=0))})
    exe = compiler.build(mod)
    for run in (exe, lambda x: compiler.evaluate(mod, x)):
        with pytest.raises(InputError, match="max has no value for an operand without elements"):
            run(NONE)
        assert (run(TWO) == TWO[1]).all()


def test_slices_that_take_nothing_are_empty() -> None:
    cut = call("strided_slice", X, begin=(0,), end=(-2,), axes=(0,))
    mod = IRModule({"main": compiler.function([X], call("nn.relu", cut))})
    runs: list[Callable[..., Any]] = [compiler.build(mod), lambda x: compiler.evaluate(mod, x)]
    for run in runs:
        for given in (NONE, TWO[:1], TWO):
            assert run(given).shape == (0, 4)
        np.testing.assert_array_equal(run(np.concatenate([TWO, TWO])), TWO)


def test_a_saved_executable_says_what_it_lacks(tmp_path: Path) -> None:
    relu = IRModule({"main": compiler.function([X], call("nn.relu", X))})
    compiler.build(relu).save(tmp_path / "relu.exe")
    assert compiler.load(tmp_path / "relu.exe")(NONE).shape == (0, 4)
    total = IRModule({"main": compiler.function([X], call("sum", X, axis=0))})
    compiler.build(total).save(tmp_path / "sum.exe")
    loaded = compiler.load(tmp_path / "sum.exe")
    np.testing.assert_array_equal(loaded(TWO), TWO.sum(0))
    with pytest.raises(InputError, match="n = 0 makes a tensor without elements"):
        loaded(NONE)
