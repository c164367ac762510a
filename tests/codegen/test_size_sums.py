"""Joining many tensors of open sizes: offsets are sums of all the sizes before."""

from __future__ import annotations

import re

import numpy as np

import compiler
from compiler.codegen.llvm.addresses import MANY
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var
from compiler.types.dtypes import FLOAT32

COUNT = 2 * MANY


def joined() -> IRModule:
    """COUNT tensors, each of a size of its own, one after the other."""
    b = FunctionBuilder()
    parts = [b.param(f"x{k}", (Var(f"n{k}"), 3), FLOAT32) for k in range(COUNT)]
    return IRModule({"main": b.finish(b.call("concatenate", *parts, axis=0))})


def test_no_loop_adds_up_all_the_sizes() -> None:
    """LLVM takes the cube of a sum's length for it: minutes for a hundred parts."""
    exe = compiler.build(joined())
    functions = exe.llvm_text().split("define ")
    kernels = [f for f in functions if f.startswith("void @concatenate")]
    assert len(kernels) == COUNT
    for f in kernels:
        _, *loops = re.split(r"^loop\d+:", f, flags=re.MULTILINE)
        assert all(len(set(re.findall(r"%d\d+\b", loop))) <= MANY for loop in loops)


def test_the_parts_are_where_they_belong() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)).astype(np.float32) for n in rng.integers(1, 5, COUNT)]
    for threads in (1, 3):
        got = compiler.build(joined(), threads=threads)(*parts)
        np.testing.assert_array_equal(got, np.concatenate(parts))
