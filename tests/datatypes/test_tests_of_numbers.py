"""isnan and isinf of numbers in formats: those of the real numbers that codes stand for, in every
lowering, also where what they ask about is computed in the same kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
from compiler.errors import LoweringError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var

FEW = ("bfloat16", "posit8_es2", "float8_e4m3fn")
MORE = ("float16", "float8_e5m2", "posit16_es1", "posit32_es2", "takum16", "lns16_8", "fixed16_8",
        "nf4")  # fmt: skip
FORMATS = [*FEW, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)]
SPECIAL = (0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45)


def numbers(seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(6, 24)) * 10.0 ** rng.uniform(-30, 30, (6, 24))
    x[:, : len(SPECIAL)] = rng.permuted(np.tile(SPECIAL, (6, 1)), axis=1)
    return x.astype(np.float32)


def retyped(build: Callable[[FunctionBuilder, Var, Var], Var], name: str) -> IRModule:
    b = FunctionBuilder()
    y = build(b, b.param("x", (6, 24)), b.param("y", (6, 24)))
    return datatypes.change_dtype(IRModule({"main": b.finish(y)}), "float32", name)


def same_when_compiled(mod: IRModule, *args: Any) -> Any:
    """What is interpreted, and compiled in every lowering that the format has."""
    want = compiler.evaluate(mod, *args)
    for lowering in (None, "library", "table", "vector"):
        try:
            got = compiler.build(mod, dtype_lowering=lowering)(*args)
        except LoweringError:
            assert lowering is not None
            continue
        np.testing.assert_array_equal(got, want)
    return want


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("op", ["isnan", "isinf"])
def test_codes_are_tested_by_what_they_stand_for(op: str, name: str) -> None:
    x = numbers(0)
    found = same_when_compiled(retyped(lambda b, x, _: b.call(op, x), name), x, x)
    held = datatypes.decode(name, datatypes.encode(name, x))
    np.testing.assert_array_equal(found, getattr(np, op)(held))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMATS)
def test_results_are_tested_where_they_are_made(name: str) -> None:
    """As exporters write a softmax of rows that may read nothing."""

    def build(b: FunctionBuilder, x: Var, y: Var) -> Var:
        shares = b.call("nn.softmax", b.call("multiply", x, y), axis=-1)
        return b.call("where", b.call("isnan", shares), b.const(np.float32(0)), shares)

    found = same_when_compiled(retyped(build, name), numbers(1), numbers(2))
    assert not np.isnan(found).any()
