"""Sums of two tensors on the simulated accelerator: the same bits as here, cycles that are counted,
and what stays here, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_accelerator_pooling import BYTES, DESIGNS, data

import compiler
from compiler.codegen.accel.instructions import ACC, INPUT, Load, Save, Sum, decoded
from compiler.engines.accelerator import cost, designed
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.target.accelerator import Design
from compiler.transform import AnnotateTarget, InferType
from compiler.types.dtypes import format_dtype

Shape = tuple[Any, ...]


def sum_of(
    first: tuple[Shape, str], second: tuple[Shape, str], op: str = "qnn.add", **how: Any
) -> IRModule:
    """Of two tensors of shapes and types."""
    b = FunctionBuilder()
    x, y = b.param("x", *first), b.param("y", *second)
    return IRModule({"main": b.finish(b.call(op, x, y, **how))})


def network(shape: Shape, dtypes: tuple[str, str] = ("uint8", "uint8"), **how: Any) -> IRModule:
    """The sum of two tensors of one shape."""
    return sum_of((shape, dtypes[0]), (shape, dtypes[1]), **how)


def check(mod: IRModule, design: str, *xs: np.ndarray) -> compiler.Executable:
    exe = compiler.build(mod, target=design)
    got, want = exe(*xs), compiler.evaluate(mod, *xs)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    return exe


@st.composite
def cases(draw: st.DrawFn) -> tuple[IRModule, str, list[np.ndarray]]:
    dtypes = draw(st.sampled_from(list(BYTES))), draw(st.sampled_from(list(BYTES)))
    out = draw(st.sampled_from(list(BYTES)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=0, max_size=3))
    sizes = [*sizes, draw(st.integers(1, 19))] if len(sizes) != 2 else [19, *sizes]
    scales = st.floats(-3, 3, width=32)
    zeros = [draw(st.integers(*BYTES[t])) for t in (*dtypes, out)]
    low, high = BYTES[out]
    how = {
        "a_scale": draw(scales), "b_scale": draw(scales), "a_zero_point": zeros[0],
        "b_zero_point": zeros[1], "output_zero_point": zeros[2], "out_dtype": out,
        "qmin": draw(st.integers(low, zeros[2])), "qmax": high,
    }  # fmt: skip
    batch = draw(st.sampled_from([2, Var("N")]))
    seed = draw(st.integers(0, 99))
    xs = [data((2, *sizes), t, seed + k) for k, t in enumerate(dtypes)]
    return network((batch, *sizes), dtypes, **how), draw(st.sampled_from(DESIGNS)), xs


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(cases())
def test_bits_are_those_of_the_interpreter(case: tuple[IRModule, str, list[np.ndarray]]) -> None:
    check(case[0], case[1], *case[2])


@pytest.mark.parametrize(
    "code",
    ["posit8_es0", *(pytest.param(c, marks=pytest.mark.thorough) for c in (
        "posit6_es1", "float8_e4m3fn", "float8_e3m4", "float6_e3m2fn", "fixed8_4"
    ))],
)  # fmt: skip
def test_every_sum_of_two_numbers_of_a_format(code: str) -> None:
    """What is no number included."""
    dtype = format_dtype(code)
    count = 1 << dtype.bits
    x, y = np.divmod(np.arange(count * count), count)
    xs = [v.reshape(count, count).astype(dtype.storage) for v in (x, y)]
    mod = sum_of(((count, count), str(dtype)), ((count, count), str(dtype)), "add")
    exe = compiler.build(mod, target=f"accel -format={code}")
    got, want = exe(*xs), compiler.build(mod)(*xs)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))
    assert cost(exe) is not None


def test_a_sum_takes_two_cycles_of_the_alu_a_vector() -> None:
    """And each vector of data is loaded once, each of results stored once."""
    shape = (1, 20, 9, 9)
    mod = network(shape, ("int8", "uint8"), a_scale=0.6, b_scale=-0.3, a_zero_point=4)
    found = cost(check(mod, "accel", data(shape, "int8"), data(shape, "uint8")))
    assert found is not None
    (layer,) = found.layers
    vectors = 2 * 9 * 9
    assert (layer.macs, layer.report.gemm, layer.report.alu) == (0, 0, 2 * vectors)
    assert layer.report.stored == vectors * 16
    stream = decoded(layer.stream)
    assert {type(i) for i in stream} == {Load, Sum, Save}
    assert {i.buffer for i in stream if isinstance(i, Load)} == {INPUT, ACC}
    read = [i.entries for i in stream if isinstance(i, Load) and i.buffer == INPUT]
    assert sum(read) == 2 * vectors
    assert sum(i.steps for i in stream if isinstance(i, Sum)) == vectors
    assert found.cycles > 3 * vectors  # of the bus


def test_a_tensor_may_be_added_to_itself() -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 5, 3, 3), "uint8")
    mod = IRModule({"main": b.finish(b.call("qnn.add", x, x, a_scale=0.5, b_scale=0.25))})
    check(mod, "accel", data((2, 5, 3, 3), "uint8"))


def test_what_a_sum_rounds_is_saved(tmp_path: Path) -> None:
    mod, x = network((2, 7), a_scale=0.5, b_scale=0.5), data((2, 7), "uint8")
    exe = check(mod, "accel -block=4", x, x[::-1].copy())
    exe.save(tmp_path / "sum.dtl")
    again = compiler.load(tmp_path / "sum.dtl")
    np.testing.assert_array_equal(again(x, x[::-1].copy()), exe(x, x[::-1].copy()))


def added(constant: np.ndarray) -> IRModule:
    b = FunctionBuilder()
    x = b.param("x", (1, 3), "uint8")
    return IRModule({"main": b.finish(b.call("qnn.add", x, b.const(constant)))})


POSIT = ((1, 3), "custom[posit8_es1]8")
POSITS = sum_of(POSIT, POSIT, "add")
REFUSED: dict[str, tuple[IRModule, str, str]] = {
    "constants": (added(np.ones((1, 3), np.uint8)), "accel", "one of both is a constant"),
    "shapes": (
        sum_of(((2, 3, 4, 4), "uint8"), ((3, 1, 1), "uint8")), "accel", "of different shapes",
    ),
    "channels": (network((1, Var("C"), 4, 4)), "accel", "number of channels is open"),
    "vectors": (network((5,)), "accel", "a vector has no channels"),
    "halves": (network((1, 3), ("int16", "uint8")), "accel", "bytes, not int16 and uint8"),
    "results": (network((1, 3), out_dtype="int16", qmin=-99, qmax=999), "accel", "not int16 by"),
    "rounding": (network((1, 3), rounding="shift"), "accel", "by shift"),
    "offsets": (network((1, 3), b_zero_point=40_000), "accel", "more than 16 bits"),
    "small": (network((1, 3)), "accel -input=16", "does not hold a vector of each"),
    "formats": (network((1, 3)), "accel -format=posit8_es0", "the ALU adds posit8_es0, not uint8"),
    "numbers": (POSITS, "accel -format=float8_e4m3fn", "the ALU adds float8_e4m3fn, not custom"),
    "integers": (POSITS, "accel", "the ALU adds bytes, not custom"),
    "steps": (
        POSITS, "accel -format=posit8_es1 -accumulator=float32", "those of the core float32",
    ),
    "range": (
        sum_of(((1, 3), "custom[takum8]8"), ((1, 3), "custom[takum8]8"), "add"),
        "accel -format=takum8 -accumulator=exact", "exact",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_here_has_a_reason(name: str) -> None:
    mod, design, said = REFUSED[name]
    with designed(Design.parse(design)):
        reasons = [str(r) for r in AnnotateTarget(["accel"]).explain(InferType()(mod))]
    assert any(said in r for r in reasons), reasons
