"""prepare: the simplifications that come before quantization and compilation.

Quantization plans name values of the prepared module, so the passes and their order are versioned:
change PREPARE_VERSION when a change gives values other names.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.expr import IRModule
from compiler.passes.infer_type import InferType
from compiler.passes.manager import Sequential
from compiler.transform.dead_code import DeadCodeElimination
from compiler.transform.fold_batch_norm import FoldBatchNorm
from compiler.transform.fold_constant import FoldConstant
from compiler.transform.recover_layer_norm import RecoverLayerNorm
from compiler.transform.simplify_inference import SimplifyInference

PREPARE_VERSION = 2


def prepare(mod: IRModule) -> IRModule:
    """The simplified module; `attrs["prepared"]` holds PREPARE_VERSION.

    Parameters and results keep their names and types. Every binding keeps its `origins`; one that
    is made of several has those of all. What runs depends on the current PassContext.
    """
    passes = [
        InferType(),
        SimplifyInference(),
        FoldConstant(),
        FoldBatchNorm(),
        FoldConstant(),
        RecoverLayerNorm(),
        DeadCodeElimination(),
    ]
    out = Sequential(passes, name="prepare")(mod)
    return replace(out, attrs={**out.attrs, "prepared": PREPARE_VERSION})
