"""Whole shipped networks, float32 and int8, against onnxruntime where it is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.benchmarks.report import Group
from experiments.data import datasets
from experiments.systems import pipeline, schemes
from experiments.zoo import model_batches, model_files

MODELS = ("mnist_mlp", "mnist_resnet8", "mnist_dwsep")


def groups() -> list[Group]:
    """One group per network and batch size (1 and 64)."""
    return [_group(model, batch) for model in MODELS for batch in (1, 64)]


def _group(model: str, batch: int) -> Group:
    import quantize

    data = datasets.load("mnist1k")
    x = data.x[:batch]
    module = model_batches.load_for_batch(model_files.model_file(model), x.shape[1:], batch)
    float32 = pipeline.build(module, schemes.parse("float32"))
    plan = quantize.calibrate(module, _batches(data.calibration, batch))
    int8 = pipeline.build(quantize.realize(module, plan), schemes.parse("int8"))
    cases: dict[str, Callable[[], object]] = {
        "float32": lambda: float32(x),
        "int8": lambda: int8(x),
    }
    baseline = "float32"
    try:
        import onnxruntime
    except ImportError:
        pass
    else:
        sessions = {"onnxruntime float32": str(model_files.model_file(model))}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "q.onnx"
            quantize.export_onnx(module, plan, path)
            sessions["onnxruntime int8 (QDQ)"] = str(path)
            for name, file in sessions.items():
                cases[name] = _session(onnxruntime, file, x)
        baseline = "onnxruntime float32"
    return Group(f"{model}, batch {batch}, 1 thread", baseline, cases)


def _batches(x: Any, batch: int) -> list[Any]:
    """Calibration inputs in whole batches of the size the module was imported with."""
    return [x[k : k + batch] for k in range(0, len(x) - batch + 1, batch)]


def _session(onnxruntime: Any, file: str, x: Any) -> Callable[[], object]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: x})
