"""Exported C, compiled by GCC, Clang and Zig: every operator, in numbers and in formats, and
networks give the bits of LLVM's code for no CPU, and those of the interpreter."""

from __future__ import annotations

import functools
import itertools
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compilers import COMPILERS, STRICT, compiler_words, shared_library

import compiler
import datatypes
from compiler.errors import TypeInferenceError
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.types.dtypes import Array, DType

sys.path.extend(str(Path(__file__).parents[1] / room) for room in ("codegen", "op", "runtime"))

from c_programs import listed, same_bits
from op_case import F32, Case
from op_cases import CASES
from op_harness import contracted, lowered
from test_c_backend import OPERATORS, operator
from test_c_networks import FORMATS, images, network
from test_every_op import label, types_of

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
PARTS = 8
RETYPED = ("posit16_es1", "float8_e4m3fn")
CLOSE = 2e-6
"""Of sums of products in float32, which the interpreter adds in another order."""


def in_formats() -> list[tuple[Case, Any, str]]:
    """Cases in their own dtypes (a format of ""), and those of float32 in formats that the operator
    is defined for."""
    floats = [(c, w) for c in CASES for w in c.dtypes if F32 in c.operand_dtypes(w)]
    out = [(case, which, "") for case, which in OPERATORS]
    for fmt, (case, which) in itertools.product(RETYPED, floats):
        op, there = get_op(case.op), DType.parse(fmt)
        dtypes = tuple(there if d == F32 else d for d in case.operand_dtypes(which))
        try:
            op.infer_type(op.make_attrs(**case.attrs), types_of(case, dtypes))
        except TypeInferenceError:
            continue
        out.append((case, which, fmt))
    return out


ALL = in_formats()


def named(case: Case, which: Any, fmt: str) -> str:
    return f"{label((case, which))} {fmt}".strip()


def chosen(one_in: int) -> list[int]:
    """Some cases, without a pattern."""
    order = sorted(range(len(ALL)), key=lambda k: zlib.crc32(named(*ALL[k]).encode()))
    return order[: len(ALL) // one_in]


@functools.cache
def wanted(k: int) -> tuple[IRModule, list[Array], list[Array]]:
    """A module, its operands, and what LLVM's code for no CPU makes of them, which is what the
    interpreter does."""
    case, which, fmt = ALL[k]
    name, mod, args = operator(case, which)
    mod = datatypes.change_dtype(mod, "float32", fmt) if fmt else mod
    made = listed(compiler.build(mod, target="llvm -mcpu=generic")(*args))
    op, types = get_op(case.op), types_of(case, case.operand_dtypes(which))
    loose = not fmt and contracted(lowered(op, op.make_attrs(**case.attrs), types))
    for a, b in zip(made, map(np.asarray, listed(compiler.evaluate(mod, *args))), strict=True):
        if loose and a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=CLOSE, atol=CLOSE / 2, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, err_msg=f"{name} {fmt}")
    return mod, list(args), made


def check(folder: Path, cc: str, cases: list[int], *flags: str) -> None:
    for k in cases:
        mod, args, want = wanted(k)
        compiler.export(mod, "c", folder / str(k))
        library = shared_library(cc, folder / str(k) / "net.c", flags)
        got = listed(compiler.load(library)(*args))
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True)), named(*ALL[k])


def test_some_operators_by_the_system_s_compiler(tmp_path: Path) -> None:
    check(tmp_path, "gcc", chosen(240), *STRICT)


@pytest.mark.thorough
@pytest.mark.parametrize("cc", COMPILERS)
def test_some_operators(tmp_path: Path, cc: str) -> None:
    compiler_words(cc)
    check(tmp_path, cc, chosen(40), *STRICT)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("cc", COMPILERS)
def test_every_operator(tmp_path: Path, cc: str, part: int) -> None:
    compiler_words(cc)
    check(tmp_path, cc, list(range(part, len(ALL), PARTS)), *STRICT)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_dwsep", "mnist_resnet8", "mnist_vit"])
@pytest.mark.parametrize("cc", COMPILERS)
def test_networks(tmp_path: Path, cc: str, name: str, fmt: str) -> None:
    compiler_words(cc)
    mod, x = network(name, fmt), images(200, 3)
    compiler.export(mod, "c", tmp_path / "x")
    got = compiler.load(shared_library(cc, tmp_path / "x" / "net.c", STRICT))(x)
    assert same_bits(got, compiler.build(mod, target="llvm -mcpu=generic")(x))
    want = np.asarray(compiler.evaluate(mod, x))
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        assert same_bits(got, want)
