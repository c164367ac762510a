"""onnxruntime beside us: its best 8-bit form of a model, and sessions that live one at a time.

The threads of a session spin while they wait, which slows whatever runs next to them; so a session
is made, warmed up, timed and dropped before anything else is measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import UnsupportedError
from experiments import files
from experiments.benchmarks import models
from experiments.benchmarks.turns import Contender

Array = NDArray[Any]
_RECIPE = 1  # change it when the options of `quantize_static` below change


def onnxruntime() -> Any:
    """The package.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        import onnxruntime as package
    except ImportError as error:
        raise UnsupportedError(
            "these benchmarks measure against onnxruntime: pip install onnxruntime"
        ) from error
    return package


def installed() -> bool:
    """Whether onnxruntime can be imported."""
    return importlib.util.find_spec("onnxruntime") is not None


def quantized(
    model: Path, calibration: Sequence[Array], folder: Path, method: str = "MinMax"
) -> Path:
    """The model in u8s8: QDQ, activations uint8, weights int8 per channel, ranges as `method` says.
    Kept in `folder` under a name that tells model, inputs, method and version apart.

    Raises:
        UnsupportedError: onnxruntime is not installed.
    """
    package = onnxruntime()
    key = hashlib.sha256(model.read_bytes() + package.__version__.encode())
    for x in calibration:
        key.update(repr(x.shape).encode() + x.tobytes())
    kind = "u8s8" if method == "MinMax" else f"u8s8-{method}"
    target = folder / f"{model.stem}-{kind}-{key.hexdigest()[:12]}-{_RECIPE}.onnx"
    if not target.is_file():
        with preprocessed(model, calibration[0].shape) as file, files.atomic_path(target) as path:
            quantize(file, path, calibration, method)
    return target


def quantized_both(
    model: bytes, calibration: Sequence[Mapping[str, Array]], folder: Path, name: str
) -> dict[str, Path]:
    """A model with any number of inputs of known shapes in the two 8-bit forms that onnxruntime
    has: "static" (u8s8, as `quantized`) and "dynamic" (scales of activations found at run time;
    weights int8 per channel). Kept in `folder` as `quantized` does.

    Raises:
        UnsupportedError: onnxruntime is not installed.
    """
    key = hashlib.sha256(model + onnxruntime().__version__.encode())
    for feed in calibration:
        for n, x in feed.items():
            key.update(n.encode() + repr(x.shape).encode() + x.tobytes())
    stem = f"{name}-{key.hexdigest()[:12]}-{_RECIPE}"
    made = {kind: folder / f"{stem}-{kind}.onnx" for kind in ("static", "dynamic")}
    if all(p.is_file() for p in made.values()):
        return made
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as work:
        plain, prepared = Path(work) / "plain.onnx", Path(work) / "prepared.onnx"
        plain.write_bytes(model)
        with _silent():
            quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        with files.atomic_path(made["static"]) as path:
            quantize(prepared, path, calibration)
        with _silent(), files.atomic_path(made["dynamic"]) as path:
            quantize_dynamic(prepared, path, per_channel=True, weight_type=QuantType.QInt8)
    return made


@contextlib.contextmanager
def preprocessed(model: Path, shape: Sequence[int]) -> Iterator[Path]:
    """A file of the model as onnxruntime wants it before quantization: with inputs of this shape,
    optimized, the shapes of all values known."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as work:
        static, prepared = Path(work) / "static.onnx", Path(work) / "prepared.onnx"
        with _silent():
            _with_static_input(model, models.input_name(model), shape, static)
            quant_pre_process(static, prepared, skip_symbolic_shape=True)
        yield prepared


def quantize(
    prepared: Path,
    target: Path,
    calibration: Sequence[Array | Mapping[str, Array]],
    method: str = "MinMax",
) -> None:
    """Write the model in u8s8 (see `quantized`); `method` is one of onnxruntime's. Arrays are for
    the only input."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    feeds = [
        dict(x) if isinstance(x, Mapping) else {models.input_name(prepared): x} for x in calibration
    ]

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rest = iter(feeds)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.rest, None)

    with _silent():
        quantize_static(
            prepared,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=getattr(CalibrationMethod, method),
        )


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without onnxruntime's progress, and its warnings that it calls deprecated parts of onnx."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)


def _with_static_input(model: Path, name: str, shape: Sequence[int], target: Path) -> None:
    """Write the model with the shape of its input fixed."""
    import onnx
    from onnx import version_converter

    loaded = onnx.load(model)
    if loaded.opset_import[0].version < 13:  # the first with one scale a channel
        loaded = version_converter.convert_version(loaded, 13)
    (entry,) = [i for i in loaded.graph.input if i.name == name]
    for dimension, size in zip(entry.type.tensor_type.shape.dim, shape, strict=True):
        dimension.dim_value = size
    del loaded.graph.value_info[:]
    onnx.save(loaded, target)


class Session:
    """One live onnxruntime session, called with the array of its first input, or with arrays by
    name; the first output comes back."""

    def __init__(self, model: Path | bytes, threads: int):
        package = onnxruntime()
        options = package.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        source = str(model) if isinstance(model, Path) else model
        self.session = package.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.name = self.session.get_inputs()[0].name

    def __call__(self, x: Array | Mapping[str, Array]) -> Array:
        """Run the model."""
        feed = dict(x) if isinstance(x, Mapping) else {self.name: x}
        return np.asarray(self.session.run(None, feed)[0])


@contextlib.contextmanager
def session(model: Path | bytes, threads: int) -> Iterator[Session]:
    """A session that is gone afterwards, its threads with it."""
    live = Session(model, threads)
    try:
        yield live
    finally:
        del live.session


def contender(source: Path | bytes, threads: int, feed: Mapping[str, Array]) -> Contender:
    """A session for one slice of time, called with `feed`."""

    @contextlib.contextmanager
    def opened() -> Iterator[Callable[[], object]]:
        with session(source, threads) as live:
            yield lambda: live(feed)

    return opened
