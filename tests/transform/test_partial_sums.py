"""Which sums a way to accumulate reaches only in part: by name for the nodes that are known to, and
by what the mode changes for all others."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
import datatypes
from compiler.ir.expr import IRModule
from compiler.transform.partial_sums import partial_sums
from experiments.systems import pipeline
from experiments.systems.schemes import parse

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frontend"))

from onnx_models import Case, Const

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def recurrent(op: str, gates: int, **more: object) -> Case:
    peepholes = [Const(numbers(1, 3 * 6))] if more.pop("peepholes", False) else []
    between = [None] * 3 if peepholes else []
    shapes = ((gates * 6, 5), (gates * 6, 6), (2 * gates * 6,))
    weights = [Const(numbers(1, *shape)) for shape in shapes]
    return Case(op, (numbers(2, 3, 5), *weights, *between, *peepholes),
                {"hidden_size": 6, **more}, opset=14)  # fmt: skip


def einsum(equation: str, *shapes: tuple[int, ...]) -> Case:
    return Case("Einsum", tuple(numbers(*s) for s in shapes), {"equation": equation}, opset=12)


CASES: dict[str, tuple[Case, bool]] = {
    "LSTM": (recurrent("LSTM", 4), False),
    "LSTM with peepholes": (recurrent("LSTM", 4, peepholes=True), True),
    "RNN": (recurrent("RNN", 1), False),
    "RNN, reversed": (recurrent("RNN", 1, direction="reverse"), False),
    "GRU": (recurrent("GRU", 3), False),
    "GRU, linear before reset": (recurrent("GRU", 3, linear_before_reset=1), True),
    "einsum of two": (einsum("ij,jk->ik", (3, 4), (4, 5)), False),
    "einsum of three": (einsum("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)), True),
    "matrix product": (Case("MatMul", (numbers(3, 4), Const(numbers(4, 5)))), False),
    "Gemm": (
        Case("Gemm", (numbers(3, 4), Const(numbers(4, 5)), Const(numbers(5)))),
        False,
    ),
    "Conv": (Case("Conv", (numbers(1, 2, 6, 6), Const(numbers(3, 2, 3, 3)))), False),
    "Softmax": (Case("Softmax", (numbers(3, 9),), {"axis": 1}), False),
}


def retyped(case: Case, mode: str) -> IRModule:
    mod = compiler.from_onnx(case.model())
    return datatypes.change_dtype(mod, "float32", "bfloat16", accumulate=mode)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mode", ["sequential", "float32", "exact", "fma"])
def test_nodes_whose_sums_are_reached_in_part_are_named(name: str, mode: str) -> None:
    case, partly = CASES[name]
    found = partial_sums(retyped(case, mode))
    assert bool(found) == (partly and mode != "sequential")
    assert all(origin and values for origin, values in found.items())


@pytest.mark.parametrize(("name", "mode"), [("LSTM with peepholes", "fma"), ("LSTM", "fma"),
                                            ("LSTM with peepholes", "sequential")])  # fmt: skip
def test_a_row_names_the_nodes(name: str, mode: str, tmp_path: Path) -> None:
    case, partly = CASES[name]
    (tmp_path / "m.onnx").write_bytes(case.model().SerializeToString())
    scheme = parse("bfloat16", {"accumulate": mode})
    (x,) = case.arrays.values()
    variant = pipeline.prepare(
        tmp_path / "m.onnx",
        scheme,
        sample_shape=x.shape[1:],
        calibration=x[:0],
        target="llvm",
        threads=1,
    )
    named = "accumulate does not reach all of these sums, whose parts are rounded: the_node"
    assert variant.notes == (named if partly and mode != "sequential" else "")
