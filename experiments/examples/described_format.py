"""A number format from its description: where 7 bits behind the sign serve a network best.

    python -m experiments.examples.described_format

Each format is a float of 8 bits, from 2 exponent bits (fine steps, a small range) to 6; codes that
would be NaN or infinities are numbers, and what is too large becomes the largest one.
"""

from __future__ import annotations

import numpy as np

import compiler
import datatypes
from experiments import zoo
from experiments.data import datasets

IMAGES = 200


def define() -> list[str]:
    """Define the formats and return their names."""
    names = {f"split{e}_{7 - e}": e for e in range(2, 7)}
    for name, e in names.items():
        datatypes.define(name, exponent=e, mantissa=7 - e, nan=False, overflow="saturate")
    return list(names)


def accuracy(name: str) -> float:
    """Share of digits that the perceptron names correctly when it computes in the format."""
    data = datasets.load("mnist1k")
    network = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    executable = compiler.build(datatypes.change_dtype(network, "float32", name))
    logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = executable(data.x[:IMAGES])
    return float((logits.argmax(axis=1) == data.y[:IMAGES]).mean())


if __name__ == "__main__":
    for name in define():
        largest = np.nanmax(datatypes.decode(name, np.arange(256, dtype=np.uint8)))
        print(f"{name}: largest value {largest:g}, top-1 {accuracy(name):.3f}")
