"""Every imported operator, with the attributes exporters use, against onnxruntime."""

from __future__ import annotations

import dataclasses

import pytest
from onnx_cases import every_case
from onnx_models import assert_close, check, run_onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, NotImplemented

from compiler.build import build
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate

CASES = every_case()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    c = CASES[name]
    check(c.model(), c.arrays)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [k for k, c in CASES.items() if c.dynamic and c.arrays])
def test_operator_with_a_symbolic_dimension(name: str) -> None:
    c = CASES[name]
    check(c.model(symbolic=True), c.arrays)


@pytest.mark.sampled(60)
@pytest.mark.parametrize("name", CASES)
def test_compiled_operator(name: str) -> None:
    c = CASES[name]
    proto = c.model(symbolic=c.dynamic and bool(c.arrays))
    assert_close(build(from_onnx(proto))(**c.arrays), run_onnxruntime(proto, c.arrays))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("opset", "least"), [(11, 140), (14, 160), (22, 175)])
def test_operators_in_other_opsets(opset: int, least: int) -> None:
    done = 0
    for c in CASES.values():
        other = dataclasses.replace(c, opset=opset)
        if c.op == "LayerNormalization" and opset < 17:
            continue
        proto = other.model()
        try:
            want = run_onnxruntime(proto, c.arrays)
        except (Fail, InvalidGraph, NotImplemented):
            continue  # this opset writes the operator in another way
        assert_close(evaluate(from_onnx(proto), dict(c.arrays)), want)
        done += 1
    assert done >= least
