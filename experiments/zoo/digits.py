"""How the shipped digit classifiers take digits: in training as in evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081


def normalise_mnist(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """uint8 digits [n, 28, 28] or [n, 1, 28, 28] -> ((x / 255) - mean) / std as float32 NCHW."""
    scaled = pixels.reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
    return (scaled - np.float32(MNIST_MEAN)) / np.float32(MNIST_STD)
