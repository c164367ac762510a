"""Whole networks in emulated formats: one image, one core, against the same network in float32."""

from __future__ import annotations

from collections.abc import Callable

import click

from compiler import build, from_onnx
from compiler.ir.expr import IRModule
from compiler.transform.analysis import cost
from compiler.transform.preparation import prepare
from compiler.types.dtypes import Array
from datatypes import change_dtype
from experiments import zoo
from experiments.benchmarks import models
from experiments.benchmarks.report import Row
from experiments.benchmarks.turns import Effort, always, medians
from experiments.data import datasets
from experiments.examples import approximate_multiplier
from experiments.measure.disturbance import pinned
from experiments.zoo import model_batches, model_files

NATIVE = "float32"
LARGE = ("resnet50", "posit16_es1", 1.0, 25.0)
"""Network, format, and the most it may take: seconds an image, and times float32."""
DIGITS = "mnist1k"
SHIPPED = ("bfloat16", "posit16_es1", "posit8_es0")
TABULATED = ("mnist_dwsep", 0.6)
"""Network of an approximate multiplier, and the most nanoseconds a product of its may take."""


def rows(effort: Effort) -> list[Row]:
    """The figures of every network."""
    with pinned(1):
        return [*shipped(effort), *tabulated(effort), *large(effort)]


def shipped(effort: Effort) -> list[Row]:
    """The shipped networks in the quickstart's formats."""
    out = []
    for name in (name for name in zoo.model_names() if zoo.sources()[name].dataset == DIGITS):
        mod, x = _digits(name)
        ms = _times(mod, x, SHIPPED, effort)
        out += [Row(f"{name}, {fmt} / float32", ms[fmt] / ms[NATIVE], "x") for fmt in SHIPPED]
    return out


def tabulated(effort: Effort) -> list[Row]:
    """A depthwise network whose every product is looked up in the table of a multiplier."""
    name, most = TABULATED
    mod, x = _digits(name)
    fmt = approximate_multiplier.define()[0]
    ns = _times(mod, x, (fmt,), effort)[fmt] * 1e6
    return [Row(f"{name}, products by table", ns / cost(prepare(mod)).macs, "ns", most=most)]


def large(effort: Effort) -> list[Row]:
    """A network of four billion multiply-adds."""
    name, fmt, seconds, ratio = LARGE
    model = models.MODELS[name]
    path = models.locate(name, {})
    if path is None:
        click.echo(f"  {name} is not here: {model.hint}")
        return []
    ms = _times(from_onnx(path, shapes={}), model.inputs(1, seed=2)[0], (fmt,), effort)
    return [
        Row(f"{name}, {fmt}, one image", ms[fmt] / 1e3, "s", most=seconds),
        Row(f"{name}, {fmt} / float32", ms[fmt] / ms[NATIVE], "x", most=ratio),
    ]


def _digits(name: str) -> tuple[IRModule, Array]:
    """A shipped network for one image, and the image."""
    x = datasets.load("mnist1k").x[:1]
    return model_batches.load_for_batch(model_files.model_file(name), x.shape[1:], 1), x


def _times(mod: IRModule, x: Array, formats: tuple[str, ...], effort: Effort) -> dict[str, float]:
    """Median milliseconds of the network in float32 and in the formats, which take turns."""

    def runs(module: IRModule) -> Callable[[], object]:
        exe = build(module)
        return lambda: exe(x)

    calls = {NATIVE: runs(mod)}
    calls |= {fmt: runs(change_dtype(mod, NATIVE, fmt)) for fmt in formats}
    return medians({name: always(call) for name, call in calls.items()}, effort)
