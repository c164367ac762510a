"""The networks and data that ship with dtypelab, by name; README.md states their sources."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def model_names() -> list[str]:
    """Names of the shipped networks, for example "mnist_mlp"."""
    return sorted(path.stem for path in FOLDER.glob("*.onnx"))


def model_path(name: str) -> Path | None:
    """Path of the shipped network called `name`, or None."""
    return FOLDER / f"{name}.onnx" if name in model_names() else None
