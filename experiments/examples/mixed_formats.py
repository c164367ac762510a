"""Eight bits where they suffice, sixteen where it hurts: formats chosen by measuring the layers.

    python -m experiments.examples.mixed_formats

First every layer with weights is narrow alone: the signal that is left over the error of the
outputs says how sensitive the layer is. Then the most sensitive layers are wide, more and more of
them, and the others narrow. What has no weights (sums, activations, the mean) is always wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import compiler
import datatypes
from compiler.transform.preparation import prepare
from experiments import zoo
from experiments.data import datasets
from experiments.measure import metrics

NARROW, WIDE = "posit8_es0", "bfloat16"
CALIBRATION, IMAGES = 50, 500

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Trade:
    """What a choice of formats costs and gives: the mean width of the weights, and the outputs."""

    wide: tuple[str, ...]
    bits: float
    sqnr_db: float
    top1: float


def layers(network: compiler.IRModule) -> dict[str, int]:
    """Numbers of weights of the layers that have any, by the names that `change_dtype` knows."""
    found = {}
    for b in prepare(network).main.bindings:
        weights = [a for a in getattr(b.value, "args", ()) if isinstance(a, compiler.Constant)]
        if weights and weights[0].data.ndim > 1:
            found[b.var.name] = int(weights[0].data.size)
    return found


def outputs(network: compiler.IRModule, wide: tuple[str, ...], x: Array) -> Array:
    """The outputs where layers with weights compute in NARROW, but for those in `wide`."""
    choice = {name: NARROW for name in layers(network) if name not in wide} | {"*": WIDE}
    logits: Array = compiler.build(datatypes.change_dtype(network, choice))(x)
    return logits


def sensitivity(network: compiler.IRModule, x: Array) -> dict[str, float]:
    """SQNR of the outputs in dB when one layer alone is narrow, the most sensitive layer first."""
    reference = compiler.build(network)(x)
    found = {}
    for name in layers(network):
        alone = datatypes.change_dtype(network, {name: NARROW, "*": "float32"})
        found[name] = metrics.sqnr_db(compiler.build(alone)(x), reference)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def main() -> list[Trade]:
    """Print and return what more and more wide layers cost and give."""
    digits = datasets.load("mnist1k")
    network = compiler.from_onnx(zoo.FOLDER / "mnist_resnet8.onnx")
    sizes, order = layers(network), sensitivity(network, digits.calibration[:CALIBRATION])
    for name, db in order.items():
        print(f"{name:12} alone in {NARROW}: {db:5.1f} dB, {sizes[name]} weights")

    x, labels = digits.x[:IMAGES], digits.y[:IMAGES]
    reference, found = compiler.build(network)(x), []
    print(f"layers in {WIDE}  bits  SQNR dB  top-1")
    for count in range(0, len(order) + 1, 3):
        wide = tuple(order)[:count]
        logits = outputs(network, wide, x)
        bits = 8 + 8 * sum(sizes[name] for name in wide) / sum(sizes.values())
        trade = Trade(wide, bits, metrics.sqnr_db(logits, reference), metrics.top1(logits, labels))
        print(f"{count:>18}  {bits:4.1f}  {trade.sqnr_db:7.1f}  {trade.top1:.1%}")
        found.append(trade)
    return found


if __name__ == "__main__":
    main()
