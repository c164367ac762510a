"""A stand-in for `experiments.systems.pipeline` whose networks are one numpy matrix product.

It keeps tests of the sweep's own machinery quick and independent of the compiler: schemes are
really applied (the weights are really rounded), only crudely.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import ConfigError, UnsupportedError, unknown
from experiments.measure.layer_errors import LayerError
from experiments.systems import number_systems, pipeline
from experiments.systems.schemes import Scheme

FORMATS = ["bfloat16", "posit16_es1", "posit8_es0"]
LOWERINGS = ["library", "vector"]
CALIBRATORS = ["kl", "minmax", "percentile"]


def install(setattr_: Any = setattr, *, pause_s: float = 0.0) -> None:
    """Replace the functions of `experiments.systems.pipeline` and of `number_systems` that sweeps
    call; `pause_s` slows every preparation down."""
    for function in (format_names, format_bits, check_lowering, check_qconfig, check_target):
        setattr_(number_systems, function.__name__, function)

    def slowed(*arguments: Any, **options: Any) -> pipeline.Variant:
        time.sleep(pause_s)
        return prepare(*arguments, **options)

    setattr_(pipeline, "prepare", slowed)


def format_names() -> list[str]:
    return FORMATS


def format_bits(name: str) -> int:
    if name not in FORMATS:
        raise ConfigError(unknown("format", name, FORMATS))
    return 8 if "8" in name else 16


def check_lowering(name: str) -> None:
    if name not in LOWERINGS:
        raise ConfigError(unknown("lowering", name, LOWERINGS))


def check_qconfig(options: Any) -> None:
    for key, value in options.items():
        if key not in {"calibrate", "weight_granularity", "percentile", "accumulate"}:
            raise ConfigError(unknown("option", key, ["calibrate", "percentile"]))
        if key == "calibrate" and value not in CALIBRATORS:
            raise ConfigError(unknown("calibrator", value, CALIBRATORS))


def check_target(text: str) -> None:
    if not text.startswith("llvm"):
        raise ConfigError(unknown("target", text, ["llvm"]))


def prepare(
    path: Path,
    scheme: Scheme,
    *,
    sample_shape: tuple[int, ...],
    calibration: Any,
    target: str,
    threads: int,
) -> pipeline.Variant:
    if path.stem == "mnist_dwsep":
        raise UnsupportedError("operator Frobnicate is not supported\nfor this model")
    if scheme.dtype == "posit8_es0":
        raise ZeroDivisionError("division by zero")
    size = int(np.prod(sample_shape))
    weights = np.random.default_rng(len(path.stem)).normal(size=(size, 10))
    steps = {"float32": 0, "int8": 16 + len(calibration), "bfloat16": 8, "posit16_es1": 64}
    if steps[scheme.dtype]:
        weights = np.round(weights * steps[scheme.dtype]) / steps[scheme.dtype]
    is_int8 = scheme.kind == "int8"

    def compile_for(batch: int) -> pipeline.Compiled:
        def call(x: Any) -> Any:
            assert x.shape == (batch, *sample_shape)
            return x.reshape(batch, -1).astype(np.float64) @ weights

        return pipeline.Compiled(call, batch)  # type: ignore[arg-type]

    return pipeline.Variant(
        isa="numpy",
        opset=18,
        macs=size * 10,
        size_bytes=size * 10 * (1 if is_int8 else 4),
        bit_operations=size * 10 * (64 if is_int8 else 1024),
        activation_bytes=size * (1 if is_int8 else 4),
        traffic_bytes=size * 12 * (1 if is_int8 else 4),
        macs_by_dtypes={f"{scheme.dtype} x {scheme.dtype}": size * 10},
        elements={f"nn.dense {scheme.dtype}": 10},
        portable_bits="yes" if is_int8 else "no",
        lowering="",
        accumulate="sequential" if scheme.kind == "format" else "",
        weight_bits=8 if is_int8 else 32,
        activation_bits=8 if is_int8 else 32,
        granularity=str(scheme.option("weight_granularity") or ""),
        symmetry="weight symmetric, activation asymmetric" if is_int8 else "",
        calibrator=str(scheme.option("calibrate") or "") if is_int8 else "",
        skipped="",
        fixed_batch=None,
        compile=compile_for,
        layers=lambda x, events: [
            LayerError("v", "nn.dense", ("product",), (len(x), 10), 40.0, 1.0, 0.125)
        ],
    )
