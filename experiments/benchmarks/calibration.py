"""Calibration: observers against running the float network alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments import datasets, pipeline, schemes
from experiments.benchmarks.report import Group


def groups() -> list[Group]:
    """One group: every calibrator on 200 images of the residual network."""
    import quantize

    data = datasets.load("mnist1k")
    x = data.calibration[:200]
    module = pipeline.load_for_batch(pipeline.model_file("mnist_resnet8"), x.shape[1:], "N")
    network = pipeline.build(module, schemes.parse("float32"))
    cases: dict[str, Callable[[], object]] = {"inference alone": lambda: network(x)}
    for name in ("minmax", "percentile", "kl"):
        config = quantize.QConfig(calibrate=name)
        cases[name] = _calibrate(quantize, module, x, config)
    return [Group("calibration on 200 images, mnist_resnet8", "inference alone", cases)]


def _calibrate(quantize: Any, module: Any, x: Any, config: Any) -> Callable[[], object]:
    return lambda: quantize.calibrate(module, [x[:100], x[100:]], config)
