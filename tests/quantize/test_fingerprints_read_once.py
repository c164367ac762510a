"""A fingerprint reads all weights of a model: that of a plan which fits is found once."""

from __future__ import annotations

import numpy as np
import pytest

import quantize
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from quantize.plan import fingerprint


def layer(value: float) -> IRModule:
    b = FunctionBuilder()
    weight = np.full((4, 3), value, np.float32)
    return IRModule({"main": b.finish(b.call("nn.dense", b.param("x", (2, 3)), b.const(weight)))})


def test_a_plan_that_fits_has_its_model_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[IRModule] = []
    found = fingerprint._fingerprint

    def counted(module: IRModule, whole: bool = False, sizes: bool = False) -> str:
        read.append(module)
        return found(module, whole, sizes)

    monkeypatch.setattr(fingerprint, "_fingerprint", counted)
    x = np.ones((2, 3), np.float32)
    quantize.quantize(layer(0.5), [x])  # calibrated, simulated for its biases, and realized
    assert len(read) == 1
    plan = quantize.calibrate(layer(0.5), [x])
    quantize.realize(layer(0.5), plan)
    with pytest.raises(ConfigError, match="another model"):
        quantize.realize(layer(0.25), plan)
