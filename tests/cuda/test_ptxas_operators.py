"""NVIDIA's assembler takes the code of every operator and of the networks, for every chip."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from compiler.build import compile_program
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.tensor_types import TupleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "elsewhere"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "op"))

from op_runs import RUNS, Case, label
from test_c_networks import FORMATS, network
from test_every_op import types_of

CHIPS = ("sm_75", "sm_80", "sm_90", "sm_90a")
NETWORKS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")
pytestmark = pytest.mark.skipif(not assembler(), reason="ptxas is not installed")


def check(mod: IRModule, chip: str) -> None:
    """Every kernel is taken, by its name, and needs no more registers than a thread may have."""
    program = compile_program(mod, f"cuda -arch={chip}")
    for kernel in program.kernels:
        found, cubin = assemble(kernel.code, chip)
        assert {a.kernel for a in found} == {s.symbol for s in kernel.stages}
        assert all(0 < a.registers <= 255 for a in found)
        assert cubin.startswith(b"\x7fELF")


def operator(run: tuple[Case, Any]) -> IRModule:
    """A module of one operator."""
    case, which = run
    b = FunctionBuilder()
    types = types_of(case, case.operand_dtypes(which))
    params = [b.param(f"p{k}", t.shape, t.dtype) for k, t in enumerate(types)]
    y = b.call(case.op, *params, **case.attrs)
    fields = len(y.type.fields) if isinstance(y.type, TupleType) else 0
    outputs = [b.get(y, k) for k in range(fields)] or [y]
    return IRModule({"main": b.finish(*outputs)})


@pytest.mark.sampled(200)
@pytest.mark.parametrize("k", range(len(RUNS)), ids=lambda k: label(RUNS[k]))
def test_operators_by_turns(k: int) -> None:
    """Each for one chip."""
    check(operator(RUNS[k]), CHIPS[k % len(CHIPS)])


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("run", RUNS, ids=label)
def test_operators(run: tuple[Case, Any], chip: str) -> None:
    check(operator(run), chip)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.thorough if n == "mnist_mlp" else pytest.mark.slow)
        for n in NETWORKS
    ],
)
def test_networks(name: str, fmt: str, chip: str) -> None:
    check(network(name, fmt), chip)
