"""Every pass on random programs: valid, of the same interface, and with the same results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import PLANS, Plan, inputs, outputs, program

from compiler.build import build
from compiler.ir.equal import structural_equal
from compiler.ir.parser import parse
from compiler.ir.verifier import verify
from compiler.pattern import CompositePattern, is_op
from compiler.pattern.tables import register_pattern_table
from compiler.transform import (
    AlterOpLayout,
    AnnotateTarget,
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
    SplitTransposed,
    ToANormalForm,
    ToGraphNormalForm,
    VerifyInstrument,
)

register_pattern_table(
    "every_pass",
    [
        CompositePattern("conv_relu", is_op("nn.relu")(is_op("nn.conv2d"))),
        CompositePattern("add", is_op("add")),
    ],
)
EXACT: dict[str, Callable[[], Pass]] = {
    "InferType": InferType,
    "FoldConstant": FoldConstant,
    "EliminateCommonSubexpr": EliminateCommonSubexpr,
    "DeadCodeElimination": DeadCodeElimination,
    "FuseOps": FuseOps,
    "FuseOps, FuseAttention": lambda: Sequential([FuseOps(), FuseAttention()]),
    "FuseOps, apart": lambda: FuseOps(fuse_opt_level=0),
    "CanonicalizeOps": CanonicalizeOps,
    "CombineParallelConv2D": CombineParallelConv2D,
    "CombineParallelDense": CombineParallelDense,
    "CombineParallelBatchMatmul": lambda: CombineParallelBatchMatmul(min_num_branches=2),
    "CombineSlices": CombineSlices,
    "Inline": Inline,
    "Inline, named": lambda: Inline(["helped"]),
    "LambdaLift": LambdaLift,
    "AnnotateTarget": lambda: AnnotateTarget("every_pass"),
    "MergeCompilerRegions": MergeCompilerRegions,
    "PartitionGraph": lambda: Sequential([AnnotateTarget("every_pass"), PartitionGraph()]),
    "PlanDevices": lambda: PlanDevices({"dev": lambda call: ""}),
    "ToGraphNormalForm": ToGraphNormalForm,
    "ToANormalForm": ToANormalForm,
    "AlterOpLayout": AlterOpLayout,
    "SplitTransposed": SplitTransposed,
}
ROUNDING: dict[str, Callable[[], Pass]] = {
    "SimplifyInference": SimplifyInference,
    "FoldBatchNorm": FoldBatchNorm,
    "FoldScaleAxis": FoldScaleAxis,
}


def check(passes: list[Pass], plan: Plan, extra: int, tolerance: float) -> None:
    mod = program(plan, extra)
    with PassContext(opt_level=4, instruments=[VerifyInstrument()]):
        out = Sequential(passes)(mod)
        again = Sequential(passes)(out)
    assert [str(p) for p in out.main.params] == ["%x", "%flag"]
    assert [str(r) for r in out.main.results] == [str(r) for r in mod.main.results]
    assert [r.type for r in out.main.results] == [r.type for r in mod.main.results]
    verify(again)
    for n, flag in ((1, True), (2, False)):
        for want, got in zip(outputs(mod, n, flag), outputs(out, n, flag), strict=True):
            assert got.dtype == want.dtype
            assert np.abs(got - want).max() <= tolerance * max(1, np.abs(want).max())


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=25, deadline=None)
@given(plan=PLANS, extra=st.integers(0, 9))
def test_a_pass_keeps_every_bit(name: str, plan: Plan, extra: int) -> None:
    check([EXACT[name]()], plan, extra, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ROUNDING)
@settings(max_examples=25, deadline=None)
@given(plan=PLANS, extra=st.integers(0, 9))
def test_a_pass_that_folds_weights_keeps_results_but_for_rounding(
    name: str, plan: Plan, extra: int
) -> None:
    check([ROUNDING[name]()], plan, extra, 1e-4)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(plan=PLANS, extra=st.integers(0, 9), order=st.permutations([*EXACT, *ROUNDING]))
def test_passes_in_any_order_keep_results(plan: Plan, extra: int, order: list[str]) -> None:
    every = {**EXACT, **ROUNDING}
    check([every[name]() for name in order if not name.startswith("FuseOps")], plan, extra, 1e-4)


@settings(max_examples=8, deadline=None)
@given(plan=PLANS, level=st.integers(0, 4))
def test_builds_of_every_level_give_the_interpreters_results(plan: Plan, level: int) -> None:
    mod = program(plan[:5])
    with PassContext(opt_level=level, instruments=[VerifyInstrument()]):
        exe = build(mod)
    for n, flag in ((1, True), (2, False)):
        (want,), got = outputs(mod, n, flag), exe(*inputs(n, flag))
        assert np.abs(got - want).max() <= 1e-4 * max(1, np.abs(want).max())


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(plan=PLANS, extra=st.integers(0, 9))
def test_normal_forms_read_back_and_lead_to_each_other(plan: Plan, extra: int) -> None:
    mod = program(plan, extra)
    graph = ToGraphNormalForm()(mod)
    for m in (mod, graph, ToANormalForm()(graph)):
        text = m.astext(show_meta_data=True)
        assert structural_equal(parse(text), m)
        assert parse(text).astext(show_meta_data=True) == text
    again = ToGraphNormalForm()(ToANormalForm()(graph))
    assert structural_equal(again, graph)
    assert "form=" not in str(ToANormalForm()(graph))
