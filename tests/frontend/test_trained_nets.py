"""Trained networks, when they lie beside the project, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_models import assert_close, run_onnxruntime

from compiler.build import build
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate
from compiler.ir.expr import IRModule, tensor_type
from compiler.ir.verifier import verify
from compiler.passes.instruments import VerifyInstrument
from compiler.passes.manager import PassContext
from compiler.transform.analysis import cost
from compiler.transform.preparation import prepare

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
NETS = {
    "mnist_mlp": (101_770, 101_632),
    "mnist_resnet8": (77_418, 9_345_920),
    "mnist_dwsep": (36_138, 922_336),
    "mnist_vit": (60_646, 3_439_104),
}


def path_of(net: str) -> Path:
    path = DATA / f"{net}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside the project")
    return path


@pytest.mark.sampled(5)
@pytest.mark.parametrize("net", [*NETS, "efficientnet_lite0_bn_clean"])
def test_evaluate_matches_onnxruntime(net: str) -> None:
    import onnx

    path = path_of(net)
    mod = from_onnx(path)
    verify(mod)
    with PassContext(instruments=[VerifyInstrument()]):
        prepared = prepare(mod)
    proto = onnx.load(path)
    (param,) = mod.main.params
    _, *rest = tensor_type(param).shape
    # the large network is a check of import and folding, on one image
    for batch in (1, 7) if net in NETS else (1,):
        x = np.random.default_rng(batch).standard_normal((batch, *rest)).astype(np.float32)
        want = run_onnxruntime(proto, {param.name: x})
        assert_close(evaluate(mod, x), want)
        assert_close(evaluate(prepared, x), want)
    keeps_interface(mod, prepared)
    assert not any("batch_norm" in op for op in cost(prepared).operators)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("net", NETS)
def test_compiled_nets_match_onnxruntime(net: str) -> None:
    import onnx

    path = path_of(net)
    run = build(from_onnx(path))
    proto = onnx.load(path)
    for batch in (1, 7):
        x = np.random.default_rng(batch).standard_normal((batch, 1, 28, 28)).astype(np.float32)
        assert_close(run(x), run_onnxruntime(proto, {"input": x}))


def keeps_interface(before: IRModule, after: IRModule) -> None:
    """Parameters, result names and types, and every origin are still there."""
    assert [(p.name, p.type) for p in before.main.params] == [
        (p.name, p.type) for p in after.main.params
    ]
    assert [str(r) for r in before.main.results] == [str(r) for r in after.main.results]
    assert [r.type for r in before.main.results] == [r.type for r in after.main.results]
    assert all(b.origins for b in after.main.bindings)


@pytest.mark.parametrize("net", NETS)
def test_cost(net: str) -> None:
    parameters, macs = NETS[net]
    found = cost(prepare(from_onnx(path_of(net))))
    assert found.macs == macs
    assert found.parameters == parameters
    assert found.parameter_bytes == 4 * parameters


@pytest.mark.sampled(2)
@pytest.mark.parametrize("net", NETS)
def test_fixed_shape(net: str) -> None:
    path = path_of(net)
    fixed = from_onnx(path, shapes={"input": (2, 1, 28, 28)})
    x = np.random.default_rng(2).standard_normal((2, 1, 28, 28)).astype(np.float32)
    np.testing.assert_array_equal(evaluate(fixed, x), evaluate(from_onnx(path), x))
    assert all(isinstance(d, int) for b in fixed.main.bindings for d in _shape(b.var))


def _shape(var: object) -> tuple[object, ...]:
    shape: tuple[object, ...] = getattr(getattr(var, "type", None), "shape", ())
    return shape
