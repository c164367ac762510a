"""Stochastic rounding in a network: what it does for short formats.

    python -m experiments.examples.stochastic_rounding

Random bits are a hash of the format's seed, the value's name, the position in it and the number of
roundings before, so that a seed gives the same bits for any number of threads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import compiler
import datatypes
from experiments import zoo
from experiments.data import datasets

IMAGES = 100
FORMATS = ("bfloat16", "posit8_es0", "float8_e4m3fn", "fixed8_4")
SEEDS = (0, 1)


def main() -> None:
    """Print accuracies of the MNIST MLP, nearest against stochastic rounding."""
    net = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    data = datasets.load("mnist1k")
    x, labels = data.x[:IMAGES], data.y[:IMAGES]

    def accuracy(logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
        return float((logits.argmax(axis=1) == labels).mean())

    print(f"top-1 of {IMAGES} images, float32: {accuracy(compiler.build(net)(x)):.3f}")
    for name in FORMATS:
        nearest = compiler.build(datatypes.change_dtype(net, "float32", name))(x)
        figures = []
        for seed in SEEDS:
            random = replace(
                datatypes.get(name), name=f"{name}_random{seed}", rounding="stochastic", seed=seed
            )
            module = datatypes.change_dtype(net, "float32", random)
            figures.append(accuracy(compiler.build(module, threads=2)(x)))
        stochastic = ", ".join(f"{figure:.3f}" for figure in figures)
        print(f"{name:14} nearest {accuracy(nearest):.3f}   stochastic, by seed: {stochastic}")


if __name__ == "__main__":
    main()
