"""OpenVINO beside us, where it is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError

Array = NDArray[Any]


def installed() -> bool:
    """Whether the package is there."""
    return find_spec("openvino") is not None


@contextlib.contextmanager
def session(
    model: Path | str, inputs: Mapping[str, Array], threads: int
) -> Iterator[OpenVinoSession]:
    """A compiled model that is gone afterwards, its threads with it."""
    live = OpenVinoSession(model, inputs, threads)
    try:
        yield live
    finally:
        del live.request


class OpenVinoSession:
    """A model compiled for the shapes of `inputs`, on `threads` threads, for latency; float32 stays
    float32 (no bfloat16).

    Raises:
        UnsupportedError: OpenVINO is not installed.
    """

    def __init__(self, model: Path | str, inputs: Mapping[str, Array], threads: int):
        try:
            import openvino
        except ImportError as error:
            raise UnsupportedError(
                "--vs openvino needs that package: pip install openvino"
            ) from error
        core = openvino.Core()
        loaded = core.read_model(str(model))
        loaded.reshape({name: list(x.shape) for name, x in inputs.items()})
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self.request = core.compile_model(loaded, "CPU", options).create_infer_request()

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """Run the model; the first output."""
        self.request.infer(dict(inputs))
        return np.array(self.request.get_output_tensor(0).data)
