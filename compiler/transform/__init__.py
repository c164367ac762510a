"""Passes over modules: one file each; see `compiler.passes.manager` for how they are run."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.passes.manager": [
            "FunctionPass", "ModulePass", "Pass", "PassContext", "PassInfo", "PassInstrument",
            "Sequential",
        ],
        "compiler.passes.decorators": ["function_pass", "module_pass"],
        "compiler.passes.instruments": ["PrintIR", "TimingInstrument", "VerifyInstrument"],
        "compiler.transform.alter_op_layout": ["AlterOpLayout"],
        "compiler.transform.bind_params": ["BindParams"],
        "compiler.transform.canonicalize_ops": ["CanonicalizeOps"],
        "compiler.transform.combine_parallel": [
            "CombineParallelBatchMatmul", "CombineParallelConv2D", "CombineParallelDense",
        ],
        "compiler.transform.combine_slices": ["CombineSlices"],
        "compiler.transform.dead_code": ["DeadCodeElimination"],
        "compiler.transform.eliminate_common": ["EliminateCommonSubexpr"],
        "compiler.transform.fold_batch_norm": ["FoldBatchNorm"],
        "compiler.transform.fold_constant": ["FoldConstant"],
        "compiler.transform.fold_scale_axis": ["FoldScaleAxis"],
        "compiler.transform.fold_zero_point": ["FoldZeroPoint"],
        "compiler.transform.known_bits": ["KnownBits"],
        "compiler.transform.widen_bytes": ["WidenBytes"],
        "compiler.transform.fuse_attention": ["FuseAttention"],
        "compiler.transform.fuse_ops": ["FuseOps"],
        "compiler.passes.infer_type": ["InferType"],
        "compiler.transform.group_queries": ["GroupQueries"],
        "compiler.transform.inline": ["Inline"],
        "compiler.transform.lambda_lift": ["LambdaLift"],
        "compiler.transform.legalize_ops": ["LegalizeOps"],
        "compiler.transform.normal_forms": ["ToANormalForm", "ToGraphNormalForm"],
        "compiler.transform.pack_weights": ["PackWeights"],
        "compiler.transform.pass_draws": ["PassDraws"],
        "compiler.transform.preparation": ["prepare"],
        "compiler.transform.recover_layer_norm": ["RecoverLayerNorm"],
        "compiler.transform.recover_rms_norm": ["RecoverRmsNorm"],
        "compiler.transform.recover_rotary": ["RecoverRotary"],
        "compiler.transform.represent_custom_dtypes": ["RepresentCustomDtypes"],
        "compiler.transform.sign_bytes": ["SignBytes"],
        "compiler.transform.simplify_inference": ["SimplifyInference"],
        "compiler.transform.split_exact": ["SplitExact"],
        "compiler.transform.use_integers": ["UseIntegers"],
    },
)  # fmt: skip
