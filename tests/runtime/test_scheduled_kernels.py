"""The printed, scheduled loop nests are the kernels: interpreted, they give the machine code's
bits."""

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_runs import assert_same_bits, interpreted, operands, random

import compiler
import quantize
from compiler.codegen import jit
from compiler.codegen.lower import lower_primfunc
from compiler.dtypes import FLOAT32, Array
from compiler.runtime.kernels import Kernel, aligned_copy
from compiler.tensor.expr import BinOp, FloatImm, IntImm
from compiler.tensor.stmt import SLACK, PrimFunc, Store, innermost_work, walk_stmts

ROOT = Path(__file__).parents[2]
ZOO, DATA = ROOT / "experiments" / "zoo", ROOT.parent / "shared" / "data"
QUICK = 8_000
"""Innermost iterations of a kernel that the scalar interpreter walks in a second or so."""


STATEMENTS = 24
"""Statements (loops included) of a kernel that are changed at most."""


def kernels(net: str, size: int, int8: bool) -> list[Kernel]:
    """The distinct kernels of a network for one image of `size` x `size`."""
    path = next((p for f in (ZOO, DATA) if (p := f / f"mnist_{net}.onnx").exists()), None)
    if path is None:
        pytest.skip(f"mnist_{net}.onnx is not here")
    shape = (1, 1, size, size)
    mod = compiler.from_onnx(path, shapes={"input": shape})
    if int8:
        mod = quantize.quantize(mod, [random(np.random.default_rng(0), shape, FLOAT32)])
    distinct = {str(k.func): k for k in compiler.build(mod).program.kernels}
    return list(distinct.values())


def work(kernel: Kernel) -> int:
    return sum(int(innermost_work(s).const) for s in kernel.func.body)


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize(
    ("net", "size", "most"),
    [
        ("dwsep", 5, QUICK),
        ("resnet8", 6, QUICK),
        ("mlp", 28, QUICK),
        ("vit", 28, QUICK),
        *(
            pytest.param(net, size, 10**9, marks=pytest.mark.slow)
            for net, size in (("dwsep", 12), ("resnet8", 6), ("mlp", 28), ("vit", 28))
        ),
    ],
)
def test_interpreted_equals_machine_code(net: str, size: int, most: int, int8: bool) -> None:
    small = [k for k in kernels(net, size, int8) if work(k) <= most]
    assert small
    for kernel in small:
        assert_same_bits(kernel)


def compiled(func: PrimFunc, arrays: list[Array]) -> list[Array]:
    """Outputs of the machine code of a loop nest without look-up tables."""
    given = [aligned_copy(a) for a in arrays]
    temps = [aligned_copy(np.zeros(int(b.size.const) * 8 + SLACK, np.uint8)) for b in func.temps]
    target = compiler.Target.parse("llvm")
    name = f"m_{jit.digest(str(func))}"
    for s in lower_primfunc(replace(func, name=name), []):
        values: list[Any] = [ctypes.c_void_p(a.ctypes.data) for a in (*given, *temps)]
        if s.extent is not None:
            values += [ctypes.c_int64(0), ctypes.c_int64(int(s.extent.const))]
        address = jit.compile_text(s.text, s.symbol, target)
        ctypes.CFUNCTYPE(None, *map(type, values))(address)(*values)
    return given[len(given) - func.outputs :]


def changed(s: Store) -> None:
    """Make the expression of a statement another one, in place."""
    d = s.value.dtype
    if s.update == "Fma":
        assert isinstance(s.value, BinOp)
        s.value = replace(s.value, a=BinOp("Add", s.value.a, FloatImm(1.0, d), d))
    elif d.is_float:
        s.value = BinOp("Add", s.value, FloatImm(1.0, d), d)
    else:
        s.value = BinOp("Xor", s.value, IntImm(1, d), d)


@pytest.mark.parametrize(
    ("net", "int8"),
    [("dwsep", False), ("dwsep", True), pytest.param("vit", False, marks=pytest.mark.slow)],
)
def test_changing_an_expression_changes_the_result(net: str, int8: bool) -> None:
    """One statement of a small kernel after the other: the machine code follows."""
    tried = seen = 0
    for kernel in kernels(net, 28 if net == "vit" else 5, int8):
        if work(kernel) > QUICK or kernel.tables:
            continue
        arrays = operands(kernel)
        before = interpreted(kernel, arrays)
        for s in [x for x, _, _ in walk_stmts(kernel.func.body)][:STATEMENTS]:
            if not isinstance(s, Store) or s.buffer.dtype.kind == "bool":
                continue
            whole = s.value
            changed(s)
            after, ran = interpreted(kernel, arrays), compiled(kernel.func, arrays)
            seen += any(a.tobytes() != b.tobytes() for a, b in zip(before, after, strict=True))
            assert all(a.tobytes() == b.tobytes() for a, b in zip(after, ran, strict=True)), s.value
            s.value = whole
            tried += 1
    assert tried >= 8
    assert seen >= 0.6 * tried  # clipping and rounding hide the others
