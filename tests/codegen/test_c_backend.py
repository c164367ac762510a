"""The C backend gives the bits of the LLVM backend: scalars at the ends of their types, every
operator, kernels as the interpreter walks their loops."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_programs import Run, check_same, listed, needs_compiler, run_kernel, same_bits, together

import compiler
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.target.registry import Target
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType, TupleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "op"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))

from kernel_runs import interpreted, operands
from op_case import Case, values
from op_harness import N, known
from test_every_op import RUNS, label, others, types_of

pytestmark = needs_compiler
FLOATS = ("float16", "float32", "float64")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def edges(dtype: DType) -> Array:
    """Numbers at which conversions and operations are decided."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        ends = np.iinfo(dtype.storage)
        near = {0, 1, 2, 3, 7, 100, ends.max // 2, ends.max - 1, ends.max, ends.min, ends.min + 1}
        signed = {x for n in near for x in (n, -n) if ends.min <= x <= ends.max}
        return np.array(sorted(signed), dtype.storage)
    found = {0.0, 0.4, 0.5, 1.5, 2.5, 1e-40, 6e-8, 3e-8, 6.1e-5, 1e-5, 65504.0, 65519.9, 65520.0}
    found |= {1e300, 3.4028235e38, np.inf, np.pi, 1 + 2**-11, 1 + 2**-11 + 2**-40, 2049.0}
    found |= {2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1.0, -0.5, 0.0, 1.0)}
    with np.errstate(over="ignore"):
        every = np.array([x for n in sorted(found) for x in (n, -n)], dtype.storage)
    return np.append(every, dtype.storage.type(np.nan))


def unary(op: str, of: str, **attrs: Any) -> Run:
    """An operator of one operand, on the edges of its dtype."""
    x = edges(DType.parse(of))
    p = compiler.var("x", x.shape, of)
    f = compiler.function([p], compiler.call(op, p, **attrs))
    return (f"{op} {of} {attrs}", IRModule({"main": f}), [x])


def binary(op: str, dtype: str) -> Run:
    """An operator of two operands, on all pairs of the edges of their dtype."""
    x = edges(DType.parse(dtype))
    a, b = (np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(x, x))
    p, q = (compiler.var(n, a.shape, dtype) for n in ("p", "q"))
    f = compiler.function([p, q], compiler.call(op, p, q))
    return (f"{op} {dtype}", IRModule({"main": f}), [a, b])


def chosen(runs: Sequence[Run], part: int) -> Sequence[Run]:
    """One in so many, from a place in the middle."""
    return runs[part // 2 :: part]


CASTS = [
    unary("cast", a, dtype=b)
    for a, b in itertools.product((*FLOATS, *INTEGERS, "bool"), repeat=2)
    if a != b
]
ARITHMETIC = [
    binary(op, dtype)
    for op in ("add", "subtract", "multiply", "maximum", "minimum", "less", "equal", "divide")
    for dtype in (*FLOATS, *INTEGERS)
]
FUNCTIONS = [
    unary(op, dtype)
    for dtype in FLOATS
    for op in (
        "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "erf", "floor", "ceil", "round", "sin",
        "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "negative",
        "abs", "sign", "isnan", "isinf",
    )
]  # fmt: skip
MORE = [
    *(binary(op, dtype) for op in ("power", "fmod", "mod") for dtype in FLOATS),
    *(binary(op, dtype) for op in ("mod", "bitwise_xor") for dtype in INTEGERS),
    *(unary("abs", dtype) for dtype in INTEGERS if dtype[0] == "i"),
]
SCALARS = [*CASTS, *ARITHMETIC, *FUNCTIONS, *MORE]


def test_some_scalars_at_the_ends_of_their_types() -> None:
    check_same(chosen(SCALARS, 32))


@pytest.mark.thorough
@pytest.mark.parametrize("runs", [CASTS, ARITHMETIC, FUNCTIONS, MORE])
def test_scalars_at_the_ends_of_their_types(runs: Sequence[Run]) -> None:
    check_same(runs)


def every_half() -> Run:
    """All float16 there are, to the other floats and through arithmetic."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    b = FunctionBuilder()
    p = b.param("x", x.shape, "float16")
    outs = []
    for dtype in ("float32", "float64"):
        wide = b.call("cast", p, dtype=dtype)
        near = b.call("multiply", wide, b.const(np.array(1.0001, dtype)))
        outs += [wide, b.call("cast", near, dtype="float16")]
    return ("float16", IRModule({"main": b.finish(*outs)}), [x])


def test_every_float16() -> None:
    check_same([every_half()])


def operator(case: Case, which: Any) -> Run:
    """A case of an operator as a module with a symbolic batch dimension."""
    types = types_of(case, case.operand_dtypes(which))
    rng = np.random.default_rng(0)
    dims = {N: 2}
    args = [values(rng, TensorType.of(known(t, dims), t.dtype), case.low, case.high) for t in types]
    b = FunctionBuilder()
    params = [b.param(f"p{k}", t.shape, t.dtype) for k, t in enumerate(types)]
    y = b.call(case.op, *params, **case.attrs)
    fields = len(y.type.fields) if isinstance(y.type, TupleType) else 0
    outputs = [b.get(y, k) for k in range(fields)] or [y]
    return (label((case, which)), IRModule({"main": b.finish(*outputs)}), args)


OPERATORS = [*RUNS, *others()]


def test_some_operators() -> None:
    check_same([operator(*run) for run in OPERATORS[::80]])


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(6))
def test_every_operator(part: int) -> None:
    check_same([operator(*run) for run in OPERATORS[part::6]])


def check_any(runs: Sequence[Run]) -> None:
    """Build modules as C for any compiler: they give the bits of LLVM's code for such a CPU, and,
    but for sums of floats, those of the interpreter."""
    with together() as made:
        target = Target.parse("parts -mcpu=generic")
        built = [compiler.build(m, target=target) for _, m, _ in runs]
        made.compile()
        for (name, mod, args), exe in zip(runs, built, strict=True):
            got = listed(made.compiled(exe)(*args))
            llvm = listed(compiler.build(mod, target="llvm -mcpu=generic")(*args))
            assert all(same_bits(a, b) for a, b in zip(got, llvm, strict=True)), name
            for a, b in zip(got, map(np.asarray, listed(evaluate(mod, *args))), strict=True):
                assert a.dtype.kind == "f" or same_bits(a, b), name


@pytest.mark.thorough
def test_some_operators_for_any_compiler() -> None:
    check_any([operator(*run) for run in OPERATORS[5::80]])


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(6))
def test_every_operator_for_any_compiler(part: int) -> None:
    check_any([operator(*run) for run in OPERATORS[part::6]])


@pytest.mark.parametrize("parts", [3])
def test_a_kernel_is_what_the_interpreter_says_of_its_loops(parts: int) -> None:
    """The scheduled loops of a convolution, with parallel loops in parts."""
    b = FunctionBuilder()
    x, w = (
        b.param("x", (1, 2, 4, 6), "float32"),
        b.const(np.random.default_rng(0).normal(size=(6, 2, 3, 3)).astype("f4")),
    )
    y = b.call("nn.relu", b.call("nn.conv2d", x, w, padding=(1, 1, 1, 1)))
    exe = compiler.build(IRModule({"main": b.finish(y)}), target="c")
    (kernel,) = (k for k in exe.kernels if "conv" in k.func.name)
    arrays = operands(kernel)
    want = interpreted(kernel, arrays)
    run_kernel(kernel.func, arrays, parts=parts)
    assert all(map(same_bits, arrays[len(kernel.arguments) :], want))
