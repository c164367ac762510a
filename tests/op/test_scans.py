"""Running sums and products: what they cost."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import FLOAT32


@pytest.mark.parametrize("attrs", [{}, {"reverse": True}, {"exclusive": True}])
@pytest.mark.parametrize(("op", "axis"), [("cumsum", 0), ("cumsum", 1), ("cumprod", 2)])
def test_the_work_grows_as_the_data(op: str, axis: int, attrs: dict[str, bool]) -> None:
    """One step for each element, whichever thread takes it; equal bits."""
    b = FunctionBuilder()
    x = b.param("x", (30, 20, 40), FLOAT32)
    mod = IRModule({"main": b.finish(b.call(op, x, axis=axis, **attrs))})
    exe = compiler.build(mod, threads=3)
    assert sum(int(s.work.value({})) for s in exe.program.steps) == 30 * 20 * 40
    data = np.random.default_rng(0).normal(size=(30, 20, 40)).astype(np.float32)
    data[:, 0, :3] = -0.0
    assert exe(data).tobytes() == np.asarray(compiler.evaluate(mod, data)).tobytes()
