"""Scalar functions: every record says what those who compute functions ask of it, what it says is
true, and nothing else lists functions by name."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from compiler.arithmetic.arrays import arithmetic
from compiler.arithmetic.scalar_function import ScalarFunction
from compiler.arithmetic.scalar_functions import FUNCTIONS, UNARY
from compiler.frontend import library  # noqa: F401
from compiler.frontend.node import CONVERTERS
from compiler.op.library import get_op
from compiler.types.dtypes import FLOAT32, FLOAT64, Array, DType

ROOT = Path(__file__).parents[2]
FLOATS = (DType("float", 16), FLOAT32, FLOAT64)
ENCLOSED = [f.name for f in UNARY.values() if f.enclose is not None]
EXCEPTIONS = {
    "compiler/frontend/converters_recurrent.py": "activations that ONNX gives recurrent layers",
    "compiler/runtime/machines/ptx/floats.py": "instructions of GPUs, that have the same names",
}


def operands(f: ScalarFunction, count: int = 400) -> Array:
    """Numbers inside the domain, of every size, in order."""
    rng = np.random.default_rng(5)
    sizes = 2.0 ** rng.uniform(-12, 6, count)
    x = np.concatenate([sizes, -sizes, rng.uniform(-2, 2, count)])
    low, high = f.domain
    near = [end + k / 64 for end in (low, high) if math.isfinite(end) for k in (-1, 1, 40)]
    x = np.concatenate([x, near])
    return np.sort(x[f.inside(x)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_record_is_complete(name: str) -> None:
    f = FUNCTIONS[name]
    assert f.name == name
    assert name.isalnum()  # backends take names apart at "_"
    assert f.operator == (name in UNARY)
    assert f.arity == 1 or not f.operator
    for dtype in FLOATS:  # what runs: a body, an operation of LLVM, or C's function in float64
        assert f.body(dtype) or f.llvm or f.c, dtype
    assert f.c or (f.single and f.double)
    if f.c is not None and not f.exact:
        assert callable(getattr(math, f.c))
    assert f.single is not None or not f.half
    assert f.exact or not f.integral
    assert f.llvm is None or f.exact
    assert f.trend in (-1, 0, 1)
    assert f.symmetry in ("", "odd", "even")
    assert f.domain[0] < f.domain[1]
    if f.operator:
        get_op(name)
    if f.onnx is not None:
        assert f.onnx in CONVERTERS


@pytest.mark.parametrize("name", [n for n, f in FUNCTIONS.items() if f.arity == 1])
def test_what_a_record_says_is_so(name: str) -> None:
    f = FUNCTIONS[name]
    x = operands(f)
    with np.errstate(all="ignore"):
        y = f.numpy(x)
        assert np.isfinite(y).all()
        slack = 8 * np.spacing(np.abs(y).max())
        if f.trend:
            assert (np.diff(y) * f.trend >= -slack).all()
        if f.symmetry:
            want = -y if f.symmetry == "odd" else y
            np.testing.assert_allclose(f.numpy(-x), want, rtol=1e-15)
        low, high = f.domain
        outside = [x for x in (low - 0.5, high + 0.5) if math.isfinite(x)]
        assert np.isnan(f.numpy(np.array(outside))).all()
        if f.power is not None:
            np.testing.assert_allclose(y, x**f.power, rtol=1e-14)
        if f.in_formats and not f.integral:
            np.testing.assert_array_equal(f.numpy(np.array([-np.inf, np.inf])), f.limits)
        for dtype in FLOATS:
            got = arithmetic(dtype).call(name, x.astype(dtype.storage)).astype(np.float64)
            again = f.numpy(x.astype(dtype.storage).astype(np.float64))
            eps = 8 * float(np.finfo(dtype.storage).eps)
            kept = np.isfinite(got) & np.isfinite(again)
            scale = np.maximum(np.abs(again), 1.0 if f.single else 1e-30)
            assert (np.abs(got - again) <= eps * scale + np.finfo(dtype.storage).tiny)[kept].all()


@pytest.mark.parametrize("name", ENCLOSED)
def test_bounds_are_tight_and_hold_what_float64_says(name: str) -> None:
    f = UNARY[name]
    assert f.enclose is not None
    x = operands(f)[::29]
    for number, estimate in zip(x.tolist(), f.numpy(f.near(x)).tolist(), strict=True):
        low, high = f.enclose(Fraction(number), 30)
        assert low <= high
        assert high - low <= abs(high) * Fraction(1, 10**25)
        assert abs(Fraction(estimate) - low) <= abs(low) * Fraction(1, 2**45)


# ---- nothing else lists functions ----------------------------------------------------------------
def listings(path: Path) -> Iterator[int]:
    """Lines where a collection of strings holds two functions or more: as a tuple, a list, a set,
    keys of a dictionary, arguments, or patterns. Ways to round alone are none: modes of resizing
    have the same names."""
    names = {f.name for f in UNARY.values()} | {f.onnx for f in UNARY.values()}
    text = path.read_text()
    if len(names & set(re.findall(r'"(\w+)"', text))) < 2:
        return
    rounding = {n for f in UNARY.values() if f.integral for n in (f.name, f.onnx)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts: list[ast.expr | None] = list(node.elts)
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        elif isinstance(node, ast.Call):
            parts = list(node.args)
        elif isinstance(node, ast.MatchOr):
            parts = [p.value for p in node.patterns if isinstance(p, ast.MatchValue)]
        else:
            continue
        held = {p.value for p in parts if isinstance(p, ast.Constant)} & names
        if len(held) > 1 and held - rounding:
            yield node.lineno


def test_nothing_but_the_records_lists_functions() -> None:
    found = {}
    for package in ("compiler", "datatypes", "quantize", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            if lines := list(listings(path)):
                found[str(path.relative_to(ROOT))] = lines
    assert found.keys() <= EXCEPTIONS.keys(), found
