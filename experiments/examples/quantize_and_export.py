"""A trained network to int8 and out again: what we compute is what another runtime computes.

    python -m experiments.examples.quantize_and_export

Writes quantized.onnx (QuantizeLinear and DequantizeLinear around every node) and plan.json beside
it; where onnxruntime is installed, it runs the file, and its answers are compared with ours.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import compiler
import quantize
from experiments import zoo
from experiments.data import datasets
from experiments.measure import metrics

Logits = NDArray[np.float32]


def elsewhere(path: Path, x: NDArray[np.float32]) -> Logits:
    """The outputs of an ONNX file for the input `x`, by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # On x86 without VNNI, sums of products of bytes saturate otherwise.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs: Logits = session.run(None, {session.get_inputs()[0].name: x})[0]
    return outputs


def main(folder: Path) -> dict[str, float]:
    """Quantize and export into `folder`; print and return top-1 by who computed it."""
    digits = datasets.load("mnist1k")
    network = compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx")
    plan = quantize.calibrate(network, [digits.calibration[:100]])
    plan.to_json(folder / "plan.json")
    quantize.export_onnx(network, plan, folder / "quantized.onnx")

    ours = compiler.build(quantize.realize(network, plan))(digits.x)
    logits = {"float32": compiler.build(network)(digits.x), "int8": ours}
    if importlib.util.find_spec("onnxruntime"):
        logits["int8 in onnxruntime"] = elsewhere(folder / "quantized.onnx", digits.x)

    top1 = {name: metrics.top1(values, digits.y) for name, values in logits.items()}
    for name, values in logits.items():
        same = metrics.top1_agreement(values, ours)
        print(f"{name:20} top-1 {top1[name]:.1%}, answers like ours in int8: {same:.1%}")
    return top1


if __name__ == "__main__":
    main(Path())
