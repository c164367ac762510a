"""Quantizing a model to int8 on the command line: --calib, --config and --set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from compiler.errors import ConfigError, DtypelabError
from experiments.feeds import ROWS
from experiments.spec.overrides import value_of
from experiments.systems import number_systems, pipeline
from experiments.zoo import model_batches, model_files

from .common import load_feed, shapes_given

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule
    from quantize import QConfig

F = TypeVar("F", bound=Callable[..., Any])
Batch = dict[str, pipeline.Array]

RANDOM = "random"
"""--calib that stands for the random inputs of a measurement."""


def config_options(function: F) -> F:
    """--config and --set."""
    function = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="A field of quantize.QConfig, for example calibrate=percentile; may be repeated.",
    )(function)
    return click.option(
        "--config", "config_file", metavar="X.toml", help="Fields of quantize.QConfig; --set adds."
    )(function)


def int8_options(function: F) -> F:
    """--calib, which makes the model int8, --config and --set."""
    text = f"Make the model int8, calibrated on these inputs: an .npz file, mnist1k, or {RANDOM}."
    return config_options(click.option("--calib", metavar="X.npz", help=text)(function))


def configured(config_file: str | None, settings: Sequence[str]) -> QConfig:
    """The scheme that --config and --set give; --set replaces fields of the file.

    Raises:
        ConfigError: the file cannot be read, or a field is unknown or does not fit.
    """
    from quantize.config.file import read_toml

    given = read_toml(config_file) if config_file is not None else {}
    return number_systems.qconfig({**given, **dict(map(setting, settings))})


def int8_module(
    model: str,
    module: IRModule,
    arrays: Batch,
    shapes: Sequence[str],
    calib: str | None,
    config_file: str | None,
    settings: Sequence[str],
) -> IRModule:
    """`module`, which is the model with its shapes fixed to those of `arrays`, in int8 as --calib,
    --config and --set say (itself, without --calib).

    Raises:
        ConfigError: --config or --set without --calib, or settings that are none.
        DtypelabError: the inputs do not fit, or the model cannot be quantized.
    """
    if calib is None:
        for option, value in (("--set", settings), ("--config", config_file)):
            if value:
                raise ConfigError(f"{option} is for int8: give --calib as well")
        return module
    import quantize

    config = configured(config_file, settings)
    if calib == RANDOM:
        plan = quantize.calibrate(module, [arrays], config)
    else:  # a plan holds for all shapes (see quantize.plan.fingerprint): that of the model as it is
        whole, parts = for_calibration(model, calib, shapes)
        plan = quantize.calibrate(whole, parts, config)
    return quantize.realize(module, plan)


def for_calibration(model: str, file: str, shapes: Sequence[str]) -> tuple[IRModule, list[Batch]]:
    """The model to calibrate, and the calibration inputs in batches: those that a data set sets
    apart, or else all. What has no row for every example goes into every batch.

    Sizes that are open in the model stay open where it can be imported so.
    """
    path = model_files.model_file(model)
    feed = load_feed(model, file, shapes, calibration=True)
    fixed = model_batches.per_call(path, feed)
    if fixed is not None and len(feed) >= fixed:
        feed = feed[: len(feed) - len(feed) % fixed]
    parts = [part.call() for part in feed.batches(fixed or pipeline.CALIBRATION_BATCH)]
    given = dict(shapes_given(path, shapes))
    for name, kind, _ in feed.sample.parts:
        if kind == ROWS and fixed is None and name in given:
            given[name] = _open(given[name], feed.axis(name))  # of a call to come, not of one here
    try:
        return model_files.load_model(path, tuple(given.items())), parts
    except DtypelabError:  # only the batch stays open then, if it can
        return model_batches.load_for_batch(path, feed.sample, fixed or "N"), parts


def _open(shape: tuple[int | str | None, ...], axis: int) -> tuple[int | str | None, ...]:
    """A shape with one of its sizes left open."""
    return (*shape[:axis], None, *shape[axis + 1 :])


def setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE; VALUE is TOML (a number, true, a list) or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--set {text!r} is not KEY=VALUE")
    parsed = value_of(value)
    return key.strip(), tuple(parsed) if isinstance(parsed, list) else parsed
