"""The onnx package's light models, with generated weights, and pictures for them.

Their answers mean nothing: what counts is how far a number system moves them, and how long that
takes.
"""

from __future__ import annotations

import getpass
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError
from compiler.files.private_folder import problem
from experiments.files import atomic_path
from experiments.user_code import temporary

Array = NDArray[Any]

FOLDER_VARIABLE = "DTYPELAB_BENCH_DIR"
"""Names the folder that may hold NAME.onnx files; models made here are kept in it as well."""
SHAPE = (1, 3, 224, 224)
EVALUATION, CALIBRATION = 64, 16
_RECIPE = 3  # change it when the weights or the inputs that models are made with change


def folder() -> Path:
    """Where generated models are kept: $DTYPELAB_BENCH_DIR, or a folder of this user among the
    temporary files; made if need be.

    Raises:
        ConfigError: somebody else has made, or can write to, the latter.
    """
    if chosen := os.environ.get(FOLDER_VARIABLE):
        Path(chosen).mkdir(parents=True, exist_ok=True)
        return Path(chosen)
    path = temporary.outer() / f"dtypelab-benchmarks-{getpass.getuser()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Anybody can make a folder of this name among the temporary files.
    if found := problem(path):
        raise ConfigError(f"{path}, for generated models, {found}: set {FOLDER_VARIABLE}")
    return path


def picture(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Coloured noise of many scales, larger scales stronger, as photographs have: mean and standard
    deviation differ from picture to picture. Values have 320 levels, as pixels have few: what a
    mathematical library rounds in its own way is lost in that."""
    *lead, height, width = shape
    out = np.zeros(shape)
    for cells in (4, 8, 16, 32, 64):
        grid = rng.standard_normal((*lead, cells, cells)) * cells**-0.2
        rows, columns = np.arange(height) * cells // height, np.arange(width) * cells // width
        out += grid[..., rows, :][..., columns]
    out = rng.uniform(0.8, 1.2) * out + rng.standard_normal((*lead, 1, 1)) * 0.2
    return (np.rint(np.clip(out, -2.5, 2.5) * 64) / 64).astype(np.float32)


def pictures() -> Mapping[str, Any]:
    """`EVALUATION` pictures [n, 3, 224, 224] without labels, and others to calibrate with, for
    networks that tell classes apart."""
    rng = np.random.default_rng(3)
    x = np.concatenate([picture(SHAPE, rng) for _ in range(EVALUATION + CALIBRATION)])
    return {"x": x[:EVALUATION], "x_calib": x[EVALUATION:], "metric": "top1"}


def model(name: str, source: Path) -> Path:
    """The light model at `source` with weights, made once and kept in `folder`."""
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    target = folder() / f"{name}-{key}-{_RECIPE}.onnx"
    if not target.is_file():
        from .materialize import materialize

        rng = np.random.default_rng(0)
        content = materialize(source, [picture(SHAPE, rng) for _ in range(4)])
        with atomic_path(target) as path:
            path.write_bytes(content)
    return target
