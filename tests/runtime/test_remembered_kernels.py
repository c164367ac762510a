"""Kernels of custom datatypes in networks that are much the same: scheduled once."""

from pathlib import Path

import numpy as np
import pytest

import compiler
import datatypes
from compiler.codegen import cache
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.runtime import kernels, nests
from compiler.runtime.kernels import remembering

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(2, 6)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(kernels, "_known", {})


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the nests that are scheduled."""
    real, names = nests.schedule_for, list[str]()

    def counting(target):
        def schedule(f, *rest):
            names.append(f.name)
            real(target)(f, *rest)

        return schedule

    monkeypatch.setattr(nests, "schedule_for", counting)
    return names


def network(fmt: str, accumulate: str = "sequential", scale: float = 0.25) -> IRModule:
    b = FunctionBuilder()
    w = np.full((4, 6), scale, np.float32)
    y = b.call("nn.dense", b.param("x", (2, 6)), b.const(w))
    mod = IRModule({"main": b.finish(b.call("nn.relu", y))})
    return datatypes.change_dtype(mod, "float32", fmt, accumulate=accumulate)


@pytest.mark.parametrize("fmt", ["posit8_es1", "bfloat16"])
def test_a_nest_that_was_built_is_scheduled_once(fmt: str, scheduled: list[str]) -> None:
    plain = compiler.build(network(fmt))
    once = len(scheduled)
    compiler.build(network(fmt))
    assert once > 0
    assert len(scheduled) == 2 * once
    with remembering():
        compiler.build(network(fmt))
        assert len(scheduled) == 3 * once
        again = compiler.build(network(fmt, scale=0.5))  # other constants, the same loops
        assert len(scheduled) == 3 * once
    np.testing.assert_array_equal(again(X), compiler.build(network(fmt, scale=0.5))(X))
    assert [k.code for k in again.kernels] == [k.code for k in plain.kernels]
    assert again.as_text() == plain.as_text()  # scheduled when that is asked for


@pytest.mark.sampled(3)
@pytest.mark.parametrize("lowering", ["vector", "table", "library"])
def test_formats_sums_and_lowerings_are_told_apart(lowering: str) -> None:
    cases = [("posit8_es1", "sequential"), ("posit8_es1", "float32"), ("posit8_es2", "sequential"),
             ("takum8", "sequential"), ("float8_e5m2", "sequential")]  # fmt: skip
    plain = [compiler.build(network(*c), dtype_lowering=lowering)(X) for c in cases]
    with remembering():
        found = [compiler.build(network(*c), dtype_lowering=lowering)(X) for c in cases * 2]
    for ours, own in zip(found, plain * 2, strict=True):
        np.testing.assert_array_equal(ours, own)


def test_what_rounds_by_position_is_scheduled_every_time(scheduled: list[str]) -> None:
    with remembering():
        compiler.build(network("bfloat16_stochastic"))
        once = len(scheduled)
        compiler.build(network("bfloat16_stochastic"))
    assert len(scheduled) == 2 * once > 0
