"""Whole shipped networks, float32 and int8, against onnxruntime where it is installed; and products
of matrices of bytes, by tiles against dot products, on CPUs that have both."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compiler.target.intrinsics import matrix_steps
from compiler.target.registry import Target
from compiler.tensor.packed_arrays import aligned_copy
from experiments.benchmarks.report import Group
from experiments.data import datasets
from experiments.systems import pipeline, schemes
from experiments.zoo import model_batches, model_files

MODELS = ("mnist_mlp", "mnist_resnet8", "mnist_dwsep")
PRODUCTS = ((512, 512, 512), (128, 768, 768), (128, 3072, 768), (128, 768, 3072))
"""Rows, units and inputs: a square, and the layers of BERT-base for 128 tokens."""
WITHOUT = "llvm -mattr=-amx-int8"


def groups() -> list[Group]:
    """One group per network and batch size (1 and 64), and one per product of matrices."""
    return [*products(), *(_group(model, batch) for model in MODELS for batch in (1, 64))]


def products() -> list[Group]:
    """One group per product of matrices of bytes; none on CPUs without tiles."""
    if not matrix_steps(Target.parse("llvm")):
        return []
    return [_product(*sizes) for sizes in PRODUCTS]


def _product(rows: int, units: int, inputs: int) -> Group:
    import compiler
    from compiler.ir.builder import FunctionBuilder
    from compiler.ir.expr import IRModule

    rng, b = np.random.default_rng(0), FunctionBuilder()
    weights = b.const(rng.integers(-128, 128, (units, inputs)).astype(np.int8))
    y = b.call("nn.dense", b.param("x", (rows, inputs), "uint8"), weights, out_dtype="int32")
    scale = b.const(rng.uniform(1e-4, 3e-3, units).astype(np.float32))
    module = IRModule({"main": b.finish(b.call("qnn.requantize", y, scale, axis=1))})
    x = aligned_copy(rng.integers(0, 256, (rows, inputs)).astype(np.uint8))
    tiles = compiler.build(module)
    without = compiler.build(module, target=WITHOUT)
    cases: dict[str, Callable[[], object]] = {
        WITHOUT: lambda: without(x),
        "tiles": lambda: tiles(x),
    }
    return Group(f"bytes, {rows} x {inputs} by {inputs} x {units}, 1 thread", WITHOUT, cases)


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
