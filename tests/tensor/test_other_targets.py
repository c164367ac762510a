"""Dot products of processors that are not here: their instructions appear in the emitted text, and
the loop semantics that a schedule matches them by are right."""

import llvmlite.binding as llvm
import numpy as np
import pytest
from tensor_support import interpret
from test_schedules import conv

from compiler.codegen.llvm.backend import lower_primfunc
from compiler.scheduling import Schedule
from compiler.target.intrinsics import aarch64, nvptx
from compiler.tensor.intrinsic import Intrinsic
from compiler.tensor.stmt import PrimFunc

SHAPE = (8, 8, 2, 3, 3, 1)


def tensorized(intrinsic: Intrinsic, data: str) -> PrimFunc:
    f = conv(*SHAPE, data, 4)
    lanes = intrinsic.loops["o"]
    s = Schedule(f)
    s.split("y_s.i0", lanes, ("oc", "ocv"))
    s.reorder("oc", "y_s.i1", "y_s.i2", "ocv")
    s.compute_at("mac", "y_s.i2")
    s.split("mac.ic", intrinsic.steps, ("ic", "i"))
    s.split("mac.oc", lanes, ("mb", "mo"))
    s.reorder("ic", "mac.kh", "mac.kw", "mac.y", "mac.x", "mb", "mo", "i")
    s.decompose_reduction("mac", "ic")
    s.pack("mac", f.params[1])
    s.vectorize("ocv", "mo.init")
    s.unroll("mb", "mb.init", "mac.y", "mac.x", "mac.y.init", "mac.x.init")
    s.tensorize("mac", intrinsic)
    return f


def assembly(f: PrimFunc, triple: str, cpu: str, features: str = "") -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=1
    )
    text = []
    for stage in lower_primfunc(f, []):
        module = llvm.parse_assembly(stage.text)
        module.triple, module.data_layout = triple, str(machine.target_data)
        module.verify()
        text.append(machine.emit_assembly(module))
    return "\n".join(text)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("intrinsic", "data", "triple", "cpu", "instruction"),
    [
        (aarch64.SDOT, "int8", "aarch64-linux-gnu", "neoverse-n1", "sdot\t"),
        (aarch64.USDOT, "uint8", "aarch64-linux-gnu", "neoverse-v1", "usdot\t"),
        (aarch64.SMULL, "int8", "aarch64-linux-gnu", "cortex-a53", "sadalp\t"),
        (nvptx.DP4A_SIGNED, "int8", "nvptx64-nvidia-cuda", "sm_61", "dp4a.s32.s32"),
        (nvptx.DP4A_UNSIGNED, "uint8", "nvptx64-nvidia-cuda", "sm_61", "dp4a.u32.s32"),
    ],
    ids=["sdot", "usdot", "smull", "dp4a signed", "dp4a unsigned"],
)
def test_instructions_are_emitted(
    intrinsic: Intrinsic, data: str, triple: str, cpu: str, instruction: str
) -> None:
    f = tensorized(intrinsic, data)
    text = assembly(f, triple, cpu)
    assert instruction in text
    c, o, _, _, k, _ = SHAPE
    rng = np.random.default_rng(0)
    x = rng.integers(0, 128, [int(n.const) for n in f.params[0].shape]).astype(data)
    w = rng.integers(-128, 128, (o, c, k, k)).astype(np.int8)
    arrays = [x, w, np.zeros((o, 2, 3), np.int32)]
    plain = interpret(conv(*SHAPE, data, 4), [a.copy() for a in arrays])
    assert (interpret(f, arrays) == plain).all()
