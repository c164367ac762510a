"""`accumulate` reaches every operator that adds up: its reference against fractions, its compiled
code against the reference. Operators are found in the registry: a new one is covered, or fails."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_oracle import SUMS, Oracle, Sum, dtype_of

import compiler
import datatypes
from compiler.errors import TypeInferenceError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.accumulate import MODES
from compiler.op.attribute_types import declared
from compiler.op.library import all_ops, get_op
from compiler.tensor.stmt import stores
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType
from datatypes.formats import Format, get

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "op"))

from op_cases import CASES
from op_harness import N, lowered

FORMATS = ["bfloat16", "posit16_es1", "posit8_es0", "float8_e4m3fn", "float16"]
EVERY = [(s, f, m) for s in SUMS for f in FORMATS for m in MODES]


def summing() -> set[str]:
    """The operators that say that they add up more than two numbers that are no integers."""
    return {name for name, op in all_ops().items() if op.terms is not None}


def module(s: Sum, fmt: Format, mode: str) -> IRModule:
    """One call, of operands in a format."""
    b = FunctionBuilder()
    args: list[Any] = [b.param(f"p{k}", n, dtype_of(fmt)) for k, n in enumerate(s.shapes)]
    if s.indices is not None:
        args.insert(1, b.const(s.indices, "int64"))
    return IRModule({"main": b.finish(b.call(s.op, *args, accumulate=mode, **s.attrs))})


def operands(s: Sum, fmt: Format, seed: int) -> list[Array]:
    """Codes of numbers whose sums do not overflow; some are far smaller than others."""
    rng = np.random.default_rng(seed)
    return [
        datatypes.encode(fmt, rng.uniform(-2, 2, n) * 2.0 ** rng.choice([0, 0, 0, -6, -12], n))
        for n in s.shapes
    ]


def exact_values(fmt: Format, codes: Array) -> Any:
    return np.vectorize(fmt.decode_exact, otypes=[object])(codes.astype(object))


def check_oracle(s: Sum, name: str, mode: str, seed: int = 0) -> None:
    """The reference against fractions."""
    fmt = get(name)
    args = operands(s, fmt, seed)
    got = np.asarray(compiler.evaluate(module(s, fmt, mode), *args))
    want = s.oracle(Oracle(fmt, mode), *(exact_values(fmt, a) for a in args))
    wanted = np.asarray(np.asarray(want, object), float)
    np.testing.assert_array_equal(datatypes.decode(fmt, got), wanted)


def check_compiled(s: Sum, name: str, mode: str, lowering: str | None = None) -> None:
    """Compiled code against the reference."""
    fmt = get(name)
    mod, args = module(s, fmt, mode), operands(s, fmt, 1)
    got = np.asarray(compiler.build(mod, dtype_lowering=lowering)(*args))
    np.testing.assert_array_equal(got, np.asarray(compiler.evaluate(mod, *args)))


# ---- the registry --------------------------------------------------------------------------------
def test_every_operator_that_adds_up_is_in_these_tests() -> None:
    assert summing() == {s.op for s in SUMS}, "add calls and oracles to sum_oracle.py"


def test_whoever_takes_an_accumulation_counts_its_terms() -> None:
    takes = {n for n, op in all_ops().items() if "accumulate" in declared(op.attrs)}
    assert {n for n in takes if not n.startswith("qnn.")} == summing()


def test_no_loop_nest_adds_up_floats_or_formats_without_an_accumulation() -> None:
    """The loop nests tell, whatever the definitions say."""
    found = set()
    for case in CASES:
        for which in case.dtypes:
            types = [
                TensorType.of([N if d == "n" else d for d in shape], dtype)
                for shape, dtype in zip(case.shapes, case.operand_dtypes(which), strict=True)
            ]
            definition = get_op(case.op)
            if case.op == "match_shape":
                continue
            func = lowered(definition, definition.make_attrs(**case.attrs), types)
            if any(
                s.update.startswith(("Add", "Fma")) and not s.buffer.dtype.is_integer
                for s in stores(func.body)
            ):
                found.add(case.op)
    assert found
    assert found <= summing()


@pytest.mark.parametrize("s", SUMS, ids=str)
def test_modes_of_formats_are_not_for_floats_and_unknown_ones_are_errors(s: Sum) -> None:
    definition = get_op(s.op)
    for mode, dtype, text in (
        ("float64", DType("float", 32), "custom datatypes; float32 takes 'sequential'"),
        ("quire", dtype_of(get("bfloat16")), "unknown accumulation 'quire'"),
        ("int16_wrap", dtype_of(get("bfloat16")), "is for products of 8-bit integers"),
    ):
        types = [TensorType.of(n, dtype) for n in s.shapes]
        if s.indices is not None:
            types.insert(1, TensorType.of(s.indices.shape, DType("int", 64)))
        with pytest.raises(TypeInferenceError, match=text):
            definition.infer_type(definition.make_attrs(accumulate=mode, **s.attrs), types)


# ---- values --------------------------------------------------------------------------------------
@pytest.mark.sampled(12)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("s", SUMS, ids=str)
def test_the_reference_is_that_of_fractions(s: Sum, mode: str) -> None:
    for name in FORMATS:
        check_oracle(s, name, mode)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVERY), st.integers(0, 2**32 - 1))
def test_any_reference_is_that_of_fractions(run: tuple[Sum, str, str], seed: int) -> None:
    check_oracle(*run, seed)


@pytest.mark.sampled(72)
@pytest.mark.parametrize(("s", "name", "mode"), EVERY, ids=str)
def test_compiled_code_gives_the_bits_of_the_reference(s: Sum, name: str, mode: str) -> None:
    check_compiled(s, name, mode)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("lowering", ["library", "table", "vector"])
@pytest.mark.parametrize("s", SUMS, ids=str)
def test_every_lowering_gives_the_bits_of_the_reference(s: Sum, lowering: str) -> None:
    k = SUMS.index(s) + len(lowering)
    mode = MODES[1 + k % (len(MODES) - 1)]
    if mode == "fma" and lowering == "table":
        mode = "float32"  # fused multiply-adds have no tables
    check_compiled(s, "posit8_es0", mode, lowering)


# ---- what users see ------------------------------------------------------------------------------
def changed(op: str, data: Array, name: str, mode: str, *constants: Array) -> Array:
    """One operator in a format, interpreted; compiled code gives the same."""
    b = FunctionBuilder()
    y = b.call(op, b.param("x", data.shape), *map(b.const, constants))
    mod = IRModule({"main": b.finish(y)})
    retyped = datatypes.change_dtype(mod, "float32", name, accumulate=mode)
    assert ("accumulate" in retyped.astext()) == (mode != "sequential")
    want = np.asarray(compiler.evaluate(retyped, data))
    if mode != "exact":  # whose many parts take seconds to compile; others test them
        np.testing.assert_array_equal(compiler.build(retyped)(data), want)
    return want


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", MODES)
def test_equal_logits_share_one(mode: str) -> None:
    got = changed("nn.softmax", np.zeros((1, 1000), np.float32), "bfloat16", mode)
    # Of 8 bits, a sum of ones ends at 256: 256 + 1 is a tie.
    wanted = Fraction(1, 256) if mode in ("sequential", "fma") else Fraction(1, 1000)
    fmt = get("bfloat16")
    assert set(got.ravel().tolist()) == {float(fmt.decode_exact(fmt.encode_exact(wanted)))}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES)
def test_a_normalized_row_has_mean_zero(mode: str) -> None:
    data = np.random.default_rng(0).normal(1, 1, (1, 1000)).astype(np.float32)
    got = changed("nn.layer_norm", data, "bfloat16", mode, np.ones(1000, np.float32))
    error = abs(float(got.astype(np.float64).mean()))
    assert error > 0.1 if mode in ("sequential", "fma") else error < 0.01


@pytest.mark.parametrize("s", SUMS, ids=str)
def test_accumulations_are_printed_and_parsed(s: Sum) -> None:
    mod = module(s, get("bfloat16"), "float32")
    assert 'accumulate="float32"' in mod.astext()
    again = compiler.parse(mod.astext(show_meta_data=True))
    assert again.astext() == mod.astext()
