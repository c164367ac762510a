"""Weights of 4 bits, activations of 8: what each way to choose the weights' integers gains, and
what 8 bits for the weights of sensitive nodes do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from experiments.accuracy.methods import Method, configured

NETWORKS = ("mnist_mlp", "mnist_resnet8", "mnist_dwsep", "mnist_vit", "efficientnet_lite0")

four = partial(configured, weight_bits=4)
METHODS: Mapping[str, Method] = {
    "nearest, scales of the largest": four(),
    "nearest, scales of least error": four(weight_calibrate="mse"),
    "GPTQ": four(weight_calibrate="mse", weight_rounding="gptq"),
    "AdaRound": four(weight_calibrate="mse", weight_rounding="adaround"),
    "mixed precision, 5 bits": four(weight_calibrate="mse", mean_weight_bits=5.0),
    "mixed precision, GPTQ": four(
        weight_calibrate="mse", weight_rounding="gptq", mean_weight_bits=5.0
    ),
}
