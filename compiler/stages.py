"""The pipeline from import to machine code, as one table; and what passes are told of a build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.arithmetic.stochastic import random_dtype
from compiler.lowering.choose import DtypeLowering, forms_of
from compiler.passes.pipeline import Pipeline, Stage, Step, register
from compiler.target.intrinsics import for_target
from compiler.target.registry import Target
from compiler.tensor.intrinsic import Intrinsic
from compiler.types.dtypes import INT8, INT16, UINT8, DType


@dataclass(frozen=True)
class Job:
    """What passes are told of a build: what it is for, and how custom datatypes are computed."""

    target: Target
    lowerings: tuple[DtypeLowering, ...]

    @property
    def deterministic(self) -> bool:
        """Whether no rounding is stochastic: these go by positions in unblocked results."""
        return not any(random_dtype(choice.dtype) for choice in self.lowerings)

    @property
    def pairs(self) -> bool:
        """Whether the target multiplies pairs of int16."""
        every = for_target(self.target)
        return any(i.steps and i.operand_dtypes == [INT16, INT16] for i in every)

    @property
    def bytes(self) -> DType:
        """The bytes that the target's best dot product multiplies by int8."""
        return self._of_bytes.operand_dtypes[0]

    @property
    def widens(self) -> bool:
        """Whether that widens both, and the target multiplies int16 data by int8, too, by
        instructions."""
        every = [i for i in for_target(self.target) if i.steps and i.emitter(self.target.kind)]
        wide = any(i.operand_dtypes == [INT16, INT8] for i in every)
        return wide and self._of_bytes.widens

    @property
    def data_bits(self) -> int:
        """Bits of data that a dot product of the target multiplies more quickly; 0: none does."""
        every = for_target(self.target)
        return next((i.data_bits for i in every if i.steps and i.data_bits), 0)

    @property
    def _of_bytes(self) -> Intrinsic:
        every = (i for i in for_target(self.target) if i.steps and not i.data_bits)
        return next(i for i in every if {*i.operand_dtypes} <= {UINT8, INT8})


def pass_(name: str, **how: Any) -> Step:
    """A pass of `compiler.transform`."""
    return Step(name, f"compiler.transform:{name}", is_pass=True, **how)


def passes(*names: str) -> tuple[Step, ...]:
    """Passes that need to be told nothing."""
    return tuple(map(pass_, names))


# Everything that happens to a program, from import to machine code, in order; nothing else orders
# passes. Plans name the values that "prepare" leaves (see PREPARE_VERSION): quantize, retype and
# build begin with it. Each step is a pass of compiler.transform, or a function with its place.
PIPELINE = register(
    Pipeline(
        (
            Stage("import", "a module that from_onnx has read, if it is quantized",
                  passes("UseIntegers")),
            Stage("weights", "a module that is built, before its constants are folded",
                  (pass_("PackWeights", given=lambda job: (job.target,)),)),
            Stage("prepare", "a module", passes(
                  "InferType", "SimplifyInference", "FoldConstant", "FoldBatchNorm", "FoldConstant",
                  "RecoverLayerNorm", "RecoverRmsNorm", "RecoverRotary",
                  "DeadCodeElimination")),
            Stage("bytecode", "a module with control flow; its regions go through what follows",
                  (Step("lower", "compiler.vm.build:bytecode"),)),
            Stage("emptiness", "a module without control flow, or a region",
                  (Step("without_empty", "compiler.transform.fold_empty:without_empty"),)),
            Stage("heads", "the same",
                  (pass_("GroupQueries", when=lambda job: job.deterministic,
                         note="unless roundings are stochastic"),)),
            Stage("written-out steps", "the same", passes("CombineSlices")),
            Stage("stronger", "the same", passes(
                  "CanonicalizeOps", "FoldScaleAxis", "EliminateCommonSubexpr",
                  "CombineParallelConv2D", "CombineParallelDense", "CombineParallelBatchMatmul"),
                  level=3),
            Stage("transposed convolutions", "the same",
                  (pass_("SplitTransposed", when=lambda job: job.deterministic,
                         note="unless roundings are stochastic"),)),
            Stage("exact sums", "the same",
                  (pass_("SplitExact",
                         given=lambda job: (job.target.exception_flags, job.pairs)),)),
            Stage("custom datatypes", "the same",
                  (pass_("RepresentCustomDtypes", given=lambda job: (forms_of(job.lowerings),)),)),
            Stage("byte signs", "the same",
                  (pass_("SignBytes", given=lambda job: (job.bytes,)),)),
            Stage("layouts", "the same", (
                  pass_("KnownBits", given=lambda job: (job.data_bits,)),
                  pass_("WidenBytes", given=lambda job: (job.widens,)),
                  pass_("FoldZeroPoint", given=lambda job: (job.bytes,)),
                  pass_("AlterOpLayout", given=lambda job: (job.target,),
                        when=lambda job: job.deterministic, note="unless roundings are stochastic"),
                  pass_("FoldConstant",
                        when=lambda job: job.deterministic, note="unless roundings are stochastic"),
            )),
            Stage("fusion", "the same",
                  (Step("FuseOps", "compiler.transform.fuse_ops:fused", is_pass=True,
                        note="disabled, it makes a kernel of each operator"),)),
            Stage("attention", "the same", passes("FuseAttention")),
            Stage("draws", "the same", passes("PassDraws")),
            Stage("loops", "the function of a kernel",
                  (Step("legalize", "compiler.lowering.legalize:legalize"),)),
            Stage("schedule", "its loop nest, unless that was compiled before", (
                  Step("check_independent", "compiler.runtime.nests:checked",
                       when=lambda nest: nest.arranged, note="of loops that somebody scheduled"),
                  Step("start_reductions", "compiler.runtime.nests:started",
                       when=lambda nest: nest.arranged, note="of loops that somebody scheduled"),
                  Step("schedule_default", "compiler.runtime.nests:scheduled",
                       when=lambda nest: nest.by_rules,
                       note="of others: inline, simplify, tile, vectorize, share out"),
            )),
            Stage("custom datatypes in loops", "the same",
                  (Step("lower_custom_dtypes", "compiler.runtime.nests:on_builtin_dtypes"),)),
            Stage("code", "the same", (Step("kernel", "compiler.runtime.nests:code"),)),
            Stage("machine code", "the code of a kernel, beside those that are still to come", (
                  Step("object", "compiler.codegen.backend:Backend.object", outside=True),
                  Step("link", "compiler.runtime.loader:Loader.link", outside=True),
            )),
            Stage("program", "all kernels", (
                  Step("entry", "compiler.codegen.backend:Backend.entry", outside=True),
                  Step("load", "compiler.runtime.loader:Loader.load", outside=True),
            )),
        ),
        on_request=passes(
            "AnnotateTarget", "BindParams", "Inline", "LambdaLift", "LegalizeOps",
            "MergeCompilerRegions", "PartitionGraph", "PlanDevices", "PrintIR", "ToANormalForm",
            "ToGraphNormalForm",
        ),
    )
)  # fmt: skip
