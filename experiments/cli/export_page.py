"""dtypelab export --page."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from compiler.errors import ConfigError, InputError
from compiler.files.reading import read_text
from experiments.data.archives import array_of
from experiments.feeds import ROWS, Feed, filled
from experiments.files import check_outputs
from experiments.zoo import model_batches, model_files
from experiments.zoo.pixels import pixels_of

from .common import load_feed, print_json, random_inputs, say, shapes_given, shapes_of

if TYPE_CHECKING:
    from compiler import Pictures
    from compiler.ir.expr import IRModule
    from experiments.zoo.model_files import Shapes

EXAMPLES = 8
"""That a page has at most."""
F = TypeVar("F", bound=Callable[..., Any])


def page_options(function: F) -> F:
    """--page, and what is for pages only."""
    kind = click.Path(path_type=Path)
    for option in (
        click.option("--std", metavar="X[,Y,Z]", help="Pages: of pixels."),
        click.option("--mean", metavar="X[,Y,Z]", help="Pages: of pixels."),
        click.option(
            "--divide",
            metavar="X",
            help="Pages: a picture's numbers are (pixel / divide - mean) / std.",
        ),
        click.option(
            "--labels", type=kind, metavar="FILE", help="Pages: names of classes, a line each."
        ),
        click.option(
            "--input",
            "examples",
            metavar="X.npz",
            help=f"Pages: examples, {EXAMPLES} at most; arrays by input name, X.npy, or mnist1k.",
        ),
        click.option(
            "--page",
            is_flag=True,
            help="Write one HTML file that runs the model in a browser (--target wasm32).",
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class PageOptions:
    """What is said of a page, as given."""

    examples: str | None
    labels: Path | None
    divide: str | None
    mean: str | None
    std: str | None

    def given(self) -> list[str]:
        """The options that are."""
        named = {"--input": self.examples, "--labels": self.labels, "--divide": self.divide}
        named |= {"--mean": self.mean, "--std": self.std}
        return [name for name, value in named.items() if value is not None]


def write_page(
    model: str,
    options: PageOptions,
    shapes: Sequence[str],
    output: Path,
    force: bool,
    target: str,
    changed: tuple[Callable[[IRModule], IRModule], str | None, str],
    as_json: bool,
) -> None:
    """Write the page of a model, and say so.

    Args:
        changed: what makes another program of the model, how that computes custom datatypes, and
            its name; "float32": it is the model.

    Raises:
        DtypelabError: see `compiler.export_page`; or what is given does not fit the model.
    """
    import compiler

    retyped, lowering, name = changed
    path = model_files.model_file(model)
    check_outputs([output], [*model_files.files_of(model), options.examples, options.labels])
    if os.path.lexists(output) and not force:
        raise ConfigError(f"{output} is there already: give --force to write over it")
    pixels, labels = _pixels(path, options), _labels(options.labels)
    fixed, examples = _sizes(model, options.examples, shapes)
    plain = model_files.load_model(path, fixed)
    programs = {"float32": plain}
    if name != "float32":
        programs = {name: retyped(plain), **programs}
    written = compiler.export_page(
        programs, output, title=Path(model).stem if path.suffix == ".onnx" else model,
        target=target, examples=examples, labels=labels, pictures=pixels, dtype_lowering=lowering,
        force=force,
    )  # fmt: skip
    if as_json:
        sizes = [
            {"name": p.name, "code_bytes": p.code_bytes, "weights_bytes": p.weights_bytes,
             "arena_bytes": p.arena_bytes} for p in written.programs
        ]  # fmt: skip
        facts = {"model": model, "target": str(written.target), "page": str(output)}
        print_json({**facts, "bytes": written.bytes, "programs": sizes, "examples": len(examples)})
        return
    beside = " beside ".join(p.name for p in written.programs)
    say(f"{output}: {written.bytes / 1024:.0f} KiB, {model} in {beside}; open it in a browser")


def _pixels(path: Path, options: PageOptions) -> Pictures:
    """What is given, else what the model says."""
    given = {"mean": options.mean, "std": options.std}
    changed: dict[str, Any] = {n: _numbers(n, text) for n, text in given.items() if text}
    if options.divide is not None:
        changed["divide"] = _numbers("divide", options.divide, 1)[0]
    return replace(pixels_of(path), **changed)


def _numbers(name: str, text: str, *counts: int) -> tuple[float, ...]:
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if len(found) not in (counts or (1, 3)) or not all(map(math.isfinite, found)):
        wanted = "a number" if counts else "a number, or three with commas between them"
        raise ConfigError(f"--{name} {text!r} is not {wanted}")
    return found


def _labels(path: Path | None) -> list[str]:
    if path is None:
        return []
    lines = read_text(path, "labels").removeprefix("\ufeff").splitlines()
    if not lines:
        raise ConfigError(f"{path} has no labels: give a line for each class")
    return lines


def _sizes(
    model: str, file: str | None, shapes: Sequence[str]
) -> tuple[Shapes, list[Mapping[str, Any]]]:
    """Shapes of all inputs, and some examples of them; where the model leaves its batch open, that
    is 1."""
    path = model_files.model_file(model)
    given = shapes_given(path, shapes)
    if file is None:
        return shapes_of(random_inputs(model, shapes, 1)), []
    feed = _feed(model, file, shapes)
    if not len(feed):
        raise InputError(f"{file} has no examples")
    per = model_batches.per_call(path, feed) or 1
    for name, dims in given:
        axis = feed.axis(name)
        if feed.kinds[name] == ROWS:
            per = int(str(dims[axis]))
    examples = [filled(part, per).call() for part in feed[: EXAMPLES * per].batches(per)]
    return shapes_of(examples[0]), examples


def _feed(model: str, file: str, shapes: Sequence[str]) -> Feed:
    """What a file of the suffix .npy holds is for the only input."""
    if Path(file).suffix != ".npy":
        return load_feed(model, file, shapes)
    path = model_files.model_file(model)
    names = model_files.input_names(path)
    if len(names) != 1:
        listed = ", ".join(map(repr, names))
        raise InputError(
            f"{file} holds one array, but {model} has the inputs {listed}: give an .npz file"
        )
    return model_files.feed(path, {names[0]: array_of(file)}, file, shapes_given(path, shapes))
