"""Files of networks of users' sizes."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

import compiler
import quantize
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array
from experiments.benchmarks import models

FILES = {"efficientnet_lite0": "efficientnet_lite0_bn_clean.onnx"}
"""What files are called in the folder of data."""
BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
"""Data beside the checkout, if there is any."""


def file_of(name: str) -> Path:
    """A network's file; the test is skipped without it."""
    found = models.locate(name, {})
    folder = Path(os.environ.get("DTYPELAB_DATA") or BESIDE)
    if found is None and (path := folder / FILES.get(name, "none")).is_file():
        return path
    if found is None:
        pytest.skip(f"{name}: {models.MODELS[name].hint}, or name its folder by DTYPELAB_DATA")
    return found


@functools.lru_cache(3)
def integers(name: str) -> tuple[IRModule, list[Array], list[Array]]:
    """A network in int8, two inputs, and what it gives for them here."""
    model, path = models.MODELS[name], file_of(name)
    mod = compiler.from_onnx(path, shapes={models.input_name(path): model.shape})
    made = quantize.quantize(mod, model.calibration())
    inputs, exe = model.evaluation()[:2], compiler.build(made)
    return made, inputs, [exe(x) for x in inputs]
