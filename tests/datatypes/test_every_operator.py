"""Every operator in every built-in format: compiled code gives the interpreter's bits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType
from datatypes.formats import Format, decode, get

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "op"))

from op_case import Case
from op_cases import CASES
from op_harness import N, known
from toy_dtype import TOY

COMMON = ["posit16_es1", "posit8_es0", "posit32_es2", "bfloat16", "float8_e4m3fn"]
OTHERS = [
    name for name in datatypes.list_formats() if name not in COMMON and not get(name).storage_only
]
RUNS = [
    (case, dtypes) for case in CASES for dtypes in case.dtypes if TOY in case.operand_dtypes(dtypes)
]


def dtype_of(fmt: Format) -> DType:
    return DType.parse(f"custom[{fmt.name}]{fmt.nbits}")


def operand(rng: np.random.Generator, t: TensorType, fmt: Format, case: Case) -> Array:
    """Values in the case's range; for the format, every tenth is any code at all."""
    shape = known(t, {N: 2})
    if t.dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if t.dtype.is_integer:
        low = 0 if t.dtype.kind == "uint" else int(case.low)
        return rng.integers(low, int(case.high) + 1, shape).astype(t.dtype.storage)
    values = rng.uniform(case.low, case.high, shape)
    if not t.dtype.is_custom:
        return values.astype(t.dtype.storage)
    anything = rng.integers(0, fmt.mask + 1, shape)
    codes = np.where(rng.random(shape) < 0.1, anything, datatypes.encode(fmt, values))
    return codes.astype(t.dtype.storage)


def one_nan(fmt: Format, result: Array) -> Array:
    """Codes with one code of NaN: lanes do not keep payloads, which the oracle moves along."""
    if not fmt.has_nan or result.dtype != fmt.storage or not np.all(result <= fmt.mask):
        return result
    return np.where(np.isnan(decode(fmt, result)), fmt.nan_code, result)


def check(fmt: Format, case: Case, which: Any, seed: int) -> None:
    """One operator alone in a module, compiled and interpreted."""
    ours = dtype_of(fmt)
    given_dtypes = [ours if d == TOY else d for d in case.operand_dtypes(which)]
    attrs = {k: str(ours) if v == str(TOY) else v for k, v in case.attrs.items()}
    b = FunctionBuilder()
    types = [
        TensorType.of([N if d == "n" else d for d in shape], dtype)
        for shape, dtype in zip(case.shapes, given_dtypes, strict=True)
    ]
    y = b.call(case.op, *(b.add_param(var) for var in parameters(types)), **attrs)
    fields = len(getattr(y.type, "fields", ()))
    mod = IRModule({"main": b.finish(*([b.get(y, k) for k in range(fields)] or [y]))})
    rng = np.random.default_rng(seed)
    args = [operand(rng, t, fmt, case) for t in types]
    got, want = compiler.build(mod)(*args), compiler.evaluate(mod, *args)
    many = isinstance(want, list)
    for g, w in zip(got if many else [got], want if many else [want], strict=True):
        np.testing.assert_array_equal(one_nan(fmt, g), one_nan(fmt, w))


def parameters(types: list[TensorType]) -> list[Any]:
    return [compiler.Var(f"p{k}", t) for k, t in enumerate(types)]


def label(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0].op}-{'x'.join(map(str, value[0].shapes))}".replace(" ", "")
    return str(value)


@pytest.mark.sampled(27)
@pytest.mark.parametrize("run", RUNS, ids=label)
@pytest.mark.parametrize("name", COMMON[:1])
def test_every_operator(name: str, run: tuple[Case, Any]) -> None:
    check(get(name), *run, seed=0)


@pytest.mark.thorough
@given(st.sampled_from([*COMMON, *OTHERS]), st.sampled_from(RUNS), st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_any_operator_in_any_format(name: str, run: tuple[Case, Any], seed: int) -> None:
    check(get(name), *run, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=label)
@pytest.mark.parametrize("name", [*COMMON[1:], *OTHERS])
def test_every_operator_in_every_format(name: str, run: tuple[Case, Any]) -> None:
    check(get(name), *run, seed=1)
