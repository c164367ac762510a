"""What several verbs share: arguments, options, reading inputs, printing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import numpy as np

from compiler.errors import ConfigError, InputError, unknown
from compiler.printable import printable, printable_lines
from experiments import datasets, model_files, pipeline

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from compiler import Executable
    from compiler.ir.expr import IRModule

F = TypeVar("F", bound=Callable[..., Any])

#: Arrays of a data set that are not inputs of a network.
_LABELS = {"y", "labels"}
#: Names that a single array may have when the model has one input.
_ANONYMOUS = {"x", "arr_0"}


def model_argument(function: F) -> F:
    """The argument MODEL: the path of an .onnx file or the name of a shipped network."""
    return click.argument("model", metavar="MODEL")(function)


def format_options(function: F) -> F:
    """--dtype, --accumulate and --lowering."""
    for option in (
        click.option("--lowering", metavar="KIND", help="library, table or vector."),
        click.option(
            "--accumulate",
            metavar="MODE",
            help="How sums of the format are formed: sequential, fma, exact, float32, float64.",
        ),
        click.option(
            "--dtype",
            default="float32",
            show_default=True,
            metavar="F",
            help='Format, or {"PATTERN" = "FORMAT" or ["FORMAT", "MODE"], ...} by layer.',
        ),
    ):
        function = option(function)
    return function


def target_options(function: F) -> F:
    """--target and --threads."""
    threads = click.IntRange(min=1)
    for option in (
        click.option("--threads", type=threads, default=1, show_default=True, metavar="N"),
        click.option("--target", default="llvm", show_default=True, metavar="T"),
    ):
        function = option(function)
    return function


def shape_options(function: F) -> F:
    """--batch and --shape."""
    for option in (
        click.option(
            "--shape",
            "shapes",
            multiple=True,
            metavar="INPUT=1,3,224,224",
            help="Fix an input's shape.",
        ),
        click.option(
            "--batch", type=click.IntRange(min=1), default=1, show_default=True, metavar="N"
        ),
    ):
        function = option(function)
    return function


def json_option(function: F) -> F:
    """--json."""
    option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    return option(function)


def load_inputs(file: str, module: IRModule) -> dict[str, pipeline.Array]:
    """The model's inputs, in their order, from an .npz file, checked against their types.

    The file's arrays carry the inputs' names; labels (y) are passed over. For a model with one
    input the array may also be called x or arr_0, and the name of a shipped data set stands for its
    evaluation images.

    Raises:
        DtypelabError: the file cannot be read, or names, ranks, shapes or dtypes do not fit.
    """
    from compiler.runtime.inputs import bind_inputs

    inputs = model_files.inputs_of(module)
    names = list(inputs)
    if file in datasets.names() and len(names) == 1:
        arrays = {names[0]: datasets.load(file).x}
    else:
        arrays = {k: v for k, v in datasets.read_npz(file).items() if k not in _LABELS - {*names}}
        if len(names) == 1 and len(arrays) == 1 and _ANONYMOUS.issuperset(arrays):
            arrays = {names[0]: next(iter(arrays.values()))}
    for name in arrays:
        if name not in names:
            raise InputError(f"{file}: {unknown('input', name, names)}")
    try:
        bind_inputs(list(inputs.items()), (), arrays)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    return {name: arrays[name] for name in names}


def lowering_facts(executable: Executable) -> dict[str, str]:
    """How an executable computes in its custom datatypes, and why so; empty texts without any."""
    reasons = "; ".join(dict.fromkeys(choice.reason for choice in executable.lowerings))
    return {"lowering": executable.dtype_lowering, "lowering_reason": reasons}


def echo_lowering(executable: Executable) -> None:
    """Print a line for every custom datatype: how it is computed, and why so."""
    for choice in executable.lowerings:
        say(str(choice))


def random_inputs(model: str, shapes: Sequence[str], batch: int) -> dict[str, pipeline.Array]:
    """Standard normal floats, and zeros for inputs of other dtypes (often indices), seed 0.

    `shapes`: as --shape gives them; `batch` is for a symbolic first dimension.

    Raises:
        ConfigError: another dimension is symbolic.
    """
    path = model_files.model_file(model)
    module = model_files.load_model(path, tuple(map(_shape, shapes)))
    generator = np.random.default_rng(0)
    arrays: dict[str, pipeline.Array] = {}
    for name, kind in model_files.inputs_of(module).items():
        shape = [
            batch if place == 0 and not isinstance(size, int) else size
            for place, size in enumerate(kind.shape)
        ]
        known = [size for size in shape if isinstance(size, int)]
        if len(known) < len(shape):
            raise ConfigError(f"input {name!r} is a {kind}; fix its shape with --shape {name}=...")
        storage = kind.dtype.storage
        is_float = np.issubdtype(storage, np.floating)
        values = generator.standard_normal(known) if is_float else np.zeros(known)
        arrays[name] = values.astype(storage)
    return arrays


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, numbers = text.partition("=")
    try:
        shape = tuple(int(number) for number in numbers.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not equals or not shape or min(shape) < 1:
        raise click.UsageError(f"--shape {text!r} is not INPUT=1,3,224,224")
    return name, shape


def shapes_of(arrays: Mapping[str, pipeline.Array]) -> model_files.Shapes:
    """The shapes of named arrays, as `model_files.load_model` takes them."""
    return tuple((name, tuple(array.shape)) for name, array in arrays.items())


def load_static(model: str, arrays: Mapping[str, pipeline.Array]) -> IRModule:
    """The model with its shapes fixed to those of `arrays`."""
    return model_files.load_model(model_files.model_file(model), shapes_of(arrays))


def say(*lines: str, err: bool = False) -> None:
    """Lines on stdout, or stderr; what a name in them holds besides visible characters is escaped,
    as it may come from anywhere."""
    click.echo("\n".join(map(printable, lines)), err=err)


def say_text(text: str) -> None:
    """The same of text that has its lines and their ends already."""
    click.echo(printable_lines(text), nl=not text.endswith("\n"))


def cell(text: object) -> Text:
    """A text of somebody else's in a table of `rich`: no markup of its own, and in one line."""
    from rich.text import Text

    return Text(printable(str(text)))


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON object on stdout. NaN becomes null; infinities become "inf" and "-inf"."""
    click.echo(json.dumps(_plain(content), allow_nan=False))


def show(content: RenderableType) -> None:
    """Something that `rich` renders, on stdout; wide enough not to be cut off in a pipe."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(content)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
