"""Indices of generated code are as wide as addresses are."""

from __future__ import annotations

import re

import numpy as np
import pytest

from compiler.build import compile_program
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant, IRModule
from compiler.symbolic import Var as Dim

WIDE = "llvm -mcpu=x86-64"
NARROW = ("llvm -mtriple=wasm32", "llvm -mtriple=thumbv7em", "llvm -mtriple=thumbv8.1m")


def product(open_size: bool) -> IRModule:
    """A dense layer, of any number of rows or of three, behind a choice of rows at run time."""
    b = FunctionBuilder()
    x = b.param("x", (Dim("n") if open_size else 3, 40))
    at = b.param("at", (5,), "int64")
    dense = b.call("nn.dense", x, Constant.of(np.ones((7, 40), np.float32)))
    return IRModule({"main": b.finish(b.call("take", dense, at, axis=0))})


def text(mod: IRModule, target: str) -> str:
    program = compile_program(mod, target, compiled=False)
    return "\n".join(part.text for part in program.parts)


def counters(code: str) -> set[str]:
    """The types of integers that loops count."""
    return set(re.findall(r"= phi (i\d+) \[", code))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("open_size", [False, True])
def test_loops_count_in_integers_of_an_address(open_size: bool) -> None:
    mod = product(open_size)
    assert counters(text(mod, WIDE)) == {"i64"}
    for target in NARROW:
        assert counters(text(mod, target)) == {"i32"}
        assert "getelementptr inbounds i8, ptr %b0, i64" not in text(mod, target)
