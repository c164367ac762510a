"""Random ONNX graphs: every node as onnxruntime computes it, and compiled as interpreted.

`RANDOM_GRAPHS=random` draws anew, `RANDOM_GRAPHS=SEED` from a seed on. A failure names its seed,
and where the smallest failing graph is saved with its inputs.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from compiler.frontend.function_body import has_body
from compiler.frontend.onnx_importer import supported_ops
from random_graphs.drawing import MAKERS, OPSETS
from random_graphs.running import (
    Outcome,
    compare_formats,
    compare_nodes,
    compare_quantized,
    first_seed,
)

NOT_DRAWN = {
    "Bernoulli": "its results are random",
    "OptionalGetElement": "of tensors alone, which onnxruntime takes for no optional values",
    "OptionalHasElement": "of tensors alone, which onnxruntime takes for no optional values",
    "SequenceMap": "sequences are not imported",
    "TensorScatter": "of an opset that onnxruntime does not have",
    **{
        f"{domain}.{op}": "of a dialect that onnxruntime does not have; see test_qonnx_import"
        for domain in ("onnx.brevitas", "qonnx.custom_op.general")
        for op in ("BipolarQuant", "FloatQuant", "IntQuant", "Quant")
    },
}


def judge(outcome: Outcome, least: int) -> None:
    print(outcome)
    assert not outcome.faults, str(outcome)
    assert outcome.nodes >= least


def test_every_operator_is_drawn() -> None:
    default = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
    known = {op for op in default for v in OPSETS if has_body(op, v)} | set(supported_ops())
    missing = known - set(MAKERS) - set(NOT_DRAWN)
    assert not missing, f"draw {sorted(missing)} in a makers_*.py file"
    assert set(NOT_DRAWN) <= known


@pytest.mark.thorough
def test_nodes_against_onnxruntime(tmp_path: Path) -> None:
    start = first_seed(0)
    judge(compare_nodes(range(start, start + 40), 25, tmp_path, build=False), 900)


@pytest.mark.thorough
def test_compiled_nodes(tmp_path: Path) -> None:
    start = first_seed(1000)
    judge(compare_nodes(range(start, start + 3), 15, tmp_path), 30)


@pytest.mark.thorough
def test_graphs_in_formats(tmp_path: Path) -> None:
    start = first_seed(0)
    judge(compare_formats(range(start, start + 4), 7, tmp_path), 15)


@pytest.mark.slow
def test_20000_nodes(tmp_path: Path) -> None:
    start = first_seed(10_000)
    judge(compare_nodes(range(start, start + 860), 25, tmp_path, build=False, runs=2), 20_000)


@pytest.mark.slow
def test_many_compiled_nodes(tmp_path: Path) -> None:
    start = first_seed(10_000)
    judge(compare_nodes(range(start, start + 200), 25, tmp_path, runs=2), 4500)


@pytest.mark.slow
def test_many_graphs_in_formats(tmp_path: Path) -> None:
    start = first_seed(20_000)
    judge(compare_formats(range(start, start + 400), 12, tmp_path), 3000)


def test_quantized_graphs(tmp_path: Path) -> None:
    start = first_seed(100)
    judge(compare_quantized(range(start, start + 4), 8, tmp_path), 20)


@pytest.mark.slow
def test_many_quantized_graphs(tmp_path: Path) -> None:
    start = first_seed(30_000)
    judge(compare_quantized(range(start, start + 200), 12, tmp_path), 1500)
