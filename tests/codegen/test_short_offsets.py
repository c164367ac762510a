"""Where instructions add long offsets only upwards, pointers stay behind all that is read."""

from __future__ import annotations

import re

import pytest

from compiler.codegen.llvm.backend import lower_primfunc
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function
from compiler.lowering.legalize import legalize
from compiler.scheduling.default import schedule_default
from compiler.target.registry import Target


def text_for(target: Target) -> str:
    """A convolution that skips padding, in blocks of 16 channels."""
    b = FunctionBuilder()
    x, w = b.param("x", (1, 1, 32, 32, 16), "uint8"), b.param("w", (16, 16, 3, 3), "int8")
    y = b.call(
        "nn.conv2d", x, w, padding=(1, 1, 1, 1), data_layout="NCHW16c", out_layout="NCHW16c",
        out_dtype="int32",
    )  # fmt: skip
    f = b.finish(y)
    func = legalize(Function(f.params, f.bindings, f.results, {"primitive": True})).func
    schedule_default(func, target, {func.params[1]})
    return "\n".join(stage.text for stage in lower_primfunc(func, [], target))


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m7", "x86-64-v4"])
def test_offsets_go_upwards(cpu: str) -> None:
    """A tap in the row above is 528 bytes before the output's place."""
    text = text_for(Target.anywhere(f"llvm -mcpu={cpu}"))
    at_once = re.findall(r"getelementptr inbounds i8, ptr %\w+, i(?:32|64) (-\d+)", text)
    assert (not at_once) == cpu.startswith("cortex")
    if not at_once:
        assert "-528" in text  # one pointer is moved
