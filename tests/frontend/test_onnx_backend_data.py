"""The model files of the onnx package: its networks, and the layers that PyTorch once exported."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, version_converter

from compiler.build import build
from compiler.frontend.model_file import OLDEST_OPSET
from compiler.frontend.onnx_importer import from_onnx
from compiler.interpret.graph import evaluate

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
KINDS = ("pytorch-converted", "pytorch-operator")
LAYERS = sorted(p for kind in KINDS for p in (DATA / kind).iterdir())
NETWORKS = sorted((DATA / "light").glob("*.onnx"))
SMALL = {"light_squeezenet"}


def tensor(path: Path) -> Any:
    return numpy_helper.to_array(onnx.load_tensor(path))


def read(path: Path) -> onnx.ModelProto:
    """The model, converted by onnx if its opset is older than those that are imported."""
    proto = onnx.load(path)
    if proto.opset_import[0].version >= OLDEST_OPSET:
        return proto
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return version_converter.convert_version(proto, OLDEST_OPSET)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("folder", LAYERS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_layers_that_pytorch_exported(folder: Path) -> None:
    mod = from_onnx(read(folder / "model.onnx"))
    executable = build(mod)
    for data in sorted(folder.glob("test_data_set_*")):
        given = [tensor(p) for p in sorted(data.glob("input_*.pb"))]
        wanted = [tensor(p) for p in sorted(data.glob("output_*.pb"))]
        for made in (evaluate(mod, *given), executable(*given)):
            outputs = made if isinstance(made, list) else [made]
            for got, want in zip(outputs, wanted, strict=True):
                assert (got.shape, got.dtype) == (want.shape, want.dtype)
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.stem in SMALL else pytest.mark.slow) for p in NETWORKS],
    ids=lambda p: p.stem,
)
def test_networks_of_the_package(path: Path) -> None:
    mod = from_onnx(path)
    (t,) = [p.type for p in mod.main.params]
    shape = t.static_shape
    x = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
    want = tensor(path.with_name(f"{path.stem}_output_0.pb"))
    np.testing.assert_allclose(build(mod)(x), want, rtol=1e-3, atol=1e-5)
