"""The kernels of the test networks for images so small that the scalar interpreter can walk
them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kernel_runs import random

import compiler
import quantize
from compiler.runtime.kernels import Kernel
from compiler.tensor.stmt import innermost_work
from compiler.types.dtypes import FLOAT32

ROOT = Path(__file__).parents[2]
ZOO, DATA = ROOT / "experiments" / "zoo", ROOT.parent / "shared" / "data"


def kernels(net: str, size: int, int8: bool) -> list[Kernel]:
    """The distinct kernels of a network for one image of `size` x `size`."""
    path = next((p for f in (ZOO, DATA) if (p := f / f"mnist_{net}.onnx").exists()), None)
    if path is None:
        pytest.skip(f"mnist_{net}.onnx is not here")
    shape = (1, 1, size, size)
    mod = compiler.from_onnx(path, shapes={"input": shape})
    if int8:
        mod = quantize.quantize(mod, [random(np.random.default_rng(0), shape, FLOAT32)])
    distinct = {str(k.func): k for k in compiler.build(mod).program.kernels}
    return list(distinct.values())


def work(kernel: Kernel) -> int:
    """Innermost iterations; the scalar interpreter walks some ten thousand a second."""
    return sum(int(innermost_work(s).const) for s in kernel.func.body)
