"""The shipped networks with sizes that are not known: one build serves all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
import quantize
from compiler.codegen import cache

ZOO = Path(__file__).parents[2] / "experiments" / "zoo"
SHAPES: dict[str, tuple[Any, ...]] = {
    "mlp": ("n", 1, 28, 28),
    "resnet8": ("n", 1, "h", "w"),
    "dwsep": ("n", 1, "h", "w"),
}


def module(name: str) -> compiler.IRModule:
    path = ZOO / f"mnist_{name}.onnx"
    return compiler.from_onnx(path, shapes={"input": SHAPES[name]})


def pictures(name: str, count: int, height: int = 28, width: int = 28) -> np.ndarray:
    size = (28, 28) if name == "mlp" else (height, width)
    rng = np.random.default_rng(count)
    return rng.normal(size=(count, 1, *size)).astype(np.float32)


@pytest.mark.parametrize(
    ("number_system", "name"),
    [
        pytest.param(s, name, marks=[] if (s, name) == ("int8", "mlp") else pytest.mark.thorough)
        for s in ("float32", "int8", "posit8_es1")
        for name in SHAPES
    ],
)
def test_shipped_networks_at_any_batch_and_image_size(name: str, number_system: str) -> None:
    mod = module(name)
    if number_system == "int8":
        batches = [pictures(name, 4), pictures(name, 3, 16, 20)]
        mod = quantize.quantize(mod, batches)
    elif number_system != "float32":
        mod = datatypes.change_dtype(mod, "float32", number_system)
    exe = compiler.build(mod)
    before = cache.statistics()
    for count, *size in ((1, 12, 16), (3, 16, 21)):
        x = pictures(name, count, *size)
        want = compiler.evaluate(mod, x)
        if number_system == "posit8_es1":
            np.testing.assert_array_equal(exe(x), want)
        else:
            np.testing.assert_allclose(exe(x), want, rtol=1e-5, atol=1e-4)
    assert cache.statistics() == before, "code was generated after the build"


def test_one_build_of_an_mlp_serves_batches_of_1_2_and_64() -> None:
    mod = module("mlp")
    assert "Tensor[(n, 1, 28, 28), float32]" in mod.astext()
    exe = compiler.build(mod)
    assert "dims n" in exe.as_text() or "[n]" in exe.as_text()
    before = cache.statistics()
    every = pictures("mlp", 64)
    want = compiler.evaluate(mod, every)
    for n in (1, 2, 64, 1):
        np.testing.assert_allclose(exe(every[:n]), want[:n], rtol=1e-5, atol=1e-5)
    assert cache.statistics() == before, "code was generated after the build"
