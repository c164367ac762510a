"""What models say of the pictures they take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments import zoo
from experiments.zoo import model_files
from experiments.zoo.digits import MNIST_MEAN, MNIST_STD

if TYPE_CHECKING:
    from compiler import Pictures

_RANGES = {
    "NominalRange_0_255": (1.0, 0.0, 1.0),
    "Normalized_0_1": (255.0, 0.0, 1.0),
    "Normalized_1_1": (255.0, 0.5, 0.5),
    "NominalRange_16_235": (255.0, -16 / 219, 1 / 219),
}
"""`Image.NominalPixelRange` in the metadata of ONNX models (onnx/docs/MetadataProps.md) -> divide,
mean and std of pixels of 0 to 255."""


def pixels_of(path: Path) -> Pictures:
    """How pixels become the inputs of the model at `path`: as its metadata say; for the shipped
    networks of digits, as these were trained; else from 0 to 1.

    Raises:
        DtypelabError: the file is no model.
    """
    from compiler import Pictures

    if path.parent == zoo.FOLDER and path.stem.startswith("mnist_"):
        return Pictures(mean=(MNIST_MEAN,), std=(MNIST_STD,))
    said = model_files.metadata(path)
    divide, mean, std = _RANGES.get(
        said.get("Image.NominalPixelRange", ""), _RANGES["Normalized_0_1"]
    )
    order = "bgr" if said.get("Image.BitmapPixelFormat", "").startswith("Bgr") else "rgb"
    return Pictures(divide, (mean,), (std,), order)
