"""What every pass makes of a small program, as text that people have read: `golden/PASS.txt` holds
the program, and below the line of equal signs what becomes of it (types, which are comments, left
out). UPDATE_GOLDEN=1 writes what becomes of them now; read the difference."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.pattern import CompositePattern, constant, is_op, wildcard
from compiler.pattern.tables import register_pattern_table
from compiler.symbolic import Index
from compiler.transform import (
    AnnotateTarget,
    BindParams,
    CanonicalizeOps,
    CombineParallelBatchMatmul,
    CombineParallelConv2D,
    CombineParallelDense,
    CombineSlices,
    DeadCodeElimination,
    EliminateCommonSubexpr,
    FoldBatchNorm,
    FoldConstant,
    FoldScaleAxis,
    FuseAttention,
    FuseOps,
    InferType,
    Inline,
    LambdaLift,
    MergeCompilerRegions,
    PartitionGraph,
    Pass,
    PassContext,
    PlanDevices,
    Sequential,
    SimplifyInference,
    ToANormalForm,
    ToGraphNormalForm,
    VerifyInstrument,
)
from compiler.types.tensor_types import TensorType

FOLDER = Path(__file__).parent / "golden"
LINE = "\n// ==== after ====\n\n"
BOUND = np.asarray(2, np.float32)
DENSE = is_op("nn.dense")(wildcard(), constant())
register_pattern_table(
    "golden",
    [
        CompositePattern("dense_relu", is_op("nn.relu")(DENSE)),
        CompositePattern("dense", DENSE),
        CompositePattern("add", is_op("add")(wildcard(), wildcard())),
    ],
)
PASSES: dict[str, Callable[[], Pass]] = {
    "AnnotateTarget": lambda: AnnotateTarget("golden"),
    "BindParams": lambda: BindParams({"k": BOUND}),
    "CanonicalizeOps": CanonicalizeOps,
    "CombineParallelBatchMatmul": lambda: CombineParallelBatchMatmul(2),
    "CombineParallelConv2D": CombineParallelConv2D,
    "CombineParallelDense": lambda: CombineParallelDense(min_num_branches=2),
    "CombineSlices": CombineSlices,
    "DeadCodeElimination": DeadCodeElimination,
    "EliminateCommonSubexpr": EliminateCommonSubexpr,
    "FoldBatchNorm": FoldBatchNorm,
    "FoldConstant": FoldConstant,
    "FoldScaleAxis": FoldScaleAxis,
    "FuseAttention": FuseAttention,
    "FuseOps": FuseOps,
    "FuseOps_apart": lambda: FuseOps(fuse_opt_level=0),
    "InferType": InferType,
    "Inline": Inline,
    "LambdaLift": LambdaLift,
    "MergeCompilerRegions": MergeCompilerRegions,
    "PartitionGraph": PartitionGraph,
    "PlanDevices": lambda: PlanDevices({"gpu": lambda call: "", "npu": lambda call: ""}),
    "SimplifyInference": SimplifyInference,
    "ToANormalForm": ToANormalForm,
    "ToGraphNormalForm": ToGraphNormalForm,
}


def text(mod: compiler.IRModule) -> str:
    return re.sub(r" /\* ty=.*? \*/", "", mod.astext()).strip() + "\n"


def test_every_file_has_a_pass() -> None:
    assert {p.stem for p in FOLDER.glob("*.txt")} == PASSES.keys()


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_makes_the_program_that_was_read(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    source, _, expected = path.read_text().partition(LINE)
    mod = compiler.parse(source)
    with PassContext(opt_level=4, instruments=[VerifyInstrument()]):
        out = Sequential([PASSES[name]()])(mod)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(source + LINE + text(out))
    else:
        assert text(out) == expected
    for flag in (True, False):
        given = {p.name: array(p.type, flag, k) for k, p in enumerate(mod.main.params)}
        want = compiler.evaluate(mod, **given)
        left = {p.name for p in out.main.params}
        got = compiler.evaluate(out, **{k: v for k, v in given.items() if k in left})
        for a, b in zip(np.atleast_1d(want), np.atleast_1d(got), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5)


def array(t: object, flag: bool, seed: int) -> np.ndarray:
    """Values of a type, whose sizes that are not known are 3; scalars are those that are bound."""
    assert isinstance(t, TensorType)
    if t.rank == 0:
        return np.asarray(flag) if str(t.dtype) == "bool" else BOUND
    shape = [3 if isinstance(d, Index) else d for d in t.shape]
    return np.random.default_rng(seed).standard_normal(shape).astype(t.dtype.storage)
