"""What several verbs share: arguments, options, reading inputs, printing."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import numpy as np

from compiler.boundary.packed import STRING
from compiler.errors import ConfigError, InputError
from compiler.files.printable import printable, printable_lines
from experiments.data import datasets
from experiments.feeds import Feed, filled
from experiments.systems import pipeline
from experiments.systems.engine_choice import MEASURED, EngineChoice, handed, handed_lines
from experiments.zoo import model_batches, model_files

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType
    from rich.text import Text

    from compiler import Executable
    from compiler.ir.expr import IRModule

F = TypeVar("F", bound=Callable[..., Any])
WORD = 8
"""Letters of a random text."""


def model_argument(function: F) -> F:
    """The argument MODEL: the path of an .onnx file or the name of a shipped network."""
    return click.argument("model", metavar="MODEL")(function)


def input_option(function: F) -> F:
    """--input."""
    return click.option(
        "--input", "file", required=True, metavar="X.npz", help="Arrays by input name, or mnist1k."
    )(function)


def format_options(function: F) -> F:
    """--dtype, --accumulate and --lowering."""
    for option in (
        click.option("--lowering", metavar="KIND", help="library, table or vector."),
        click.option(
            "--accumulate",
            metavar="MODE",
            help="How sums are formed: sequential, fma, exact, float32, float64, in any format, or "
            'as {format = "float16", chunk = 128, outer = "float32"} says.',
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


def engine_options(function: F) -> F:
    """--engine and --engine-costs, which `chosen_engines` reads."""
    costs = click.option(
        "--engine-costs",
        type=click.Choice(["all", MEASURED]),
        default="all",
        show_default=True,
        help="What engines are handed: all that they can compute, or what is quicker so.",
    )
    text = "Let another code generator compute what it can; may be repeated, the most wanted first."
    return click.option("--engine", "engines", multiple=True, metavar="NAME", help=text)(
        costs(function)
    )


def chosen_engines(names: Sequence[str], costs: str) -> EngineChoice:
    """The engines that options name; those that compute nodes of files do so in all models that
    this command loads.

    Raises:
        DtypelabError: there is no such engine, or it cannot run here.
        click.UsageError: costs of no engine are wanted.
    """
    if costs == MEASURED and not names:
        raise click.UsageError("--engine-costs measured needs an --engine to measure")
    chosen = EngineChoice(tuple(names), MEASURED if costs == MEASURED else None).checked()
    click.get_current_context().with_resource(model_files.imported_with(names))
    return chosen


def echo_engines(executable: Executable, chosen: EngineChoice) -> None:
    """Print a line for every region of an engine, or that one was not handed, and for every chosen
    engine that has none."""
    if lines := handed_lines(executable, chosen):
        say(*lines)


def import_engine_option(function: F) -> F:
    """--engine, of those that compute nodes of files: what cannot be imported, in all models that
    this command loads."""

    @functools.wraps(function)
    def importing(*arguments: Any, engines: Sequence[str], **named: Any) -> Any:
        from compiler.engines.engine import checked
        from compiler.ir.handed import ENGINES

        for name in checked(engines):
            if name not in ENGINES:
                raise ConfigError(
                    f"engine {name!r} computes parts of programs that run, and no nodes of files: "
                    f"here, give --engine {ENGINES[0]}"
                )
        with model_files.imported_with(engines):
            return function(*arguments, **named)

    text = "Let onnxruntime compute what cannot be imported: --engine onnxruntime."
    option = click.option("--engine", "engines", multiple=True, metavar="NAME", help=text)
    return cast("F", option(importing))


def shape_option(function: F) -> F:
    """--shape, as `shapes_given` reads it."""
    text = "Fix the shape of an input whose sizes are open; may be repeated."
    option = click.option(
        "--shape", "shapes", multiple=True, metavar="INPUT=1x3x224x224", help=text
    )
    return option(function)


def batch_options(function: F) -> F:
    """--batch and --shape."""
    number = click.IntRange(min=1)
    batch = click.option("--batch", type=number, default=1, show_default=True, metavar="N")
    return batch(shape_option(function))


def outputs_option(*names: str, text: str) -> Callable[[F], F]:
    """--outputs, and other `names` for it."""

    def option(function: F) -> F:
        return click.option(
            "--outputs", *names, "chosen", multiple=True, metavar="NAME", help=f"{text} Repeatable."
        )(function)

    return option


def token_option(text: str) -> Callable[[F], F]:
    """--token-file."""
    from pathlib import Path

    kind = click.Path(path_type=Path)
    return click.option("--token-file", type=kind, metavar="FILE", help=text)


def device_options(function: F) -> F:
    """--device and --token-file."""
    text = "Run on the device that `dtypelab serve` serves there."
    device = click.option("--device", metavar="HOST:PORT", help=text)
    return device(token_option("Holds the token of the device.")(function))


def json_option(function: F) -> F:
    """--json."""
    option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    return option(function)


def load_feed(model: str, file: str, shapes: Sequence[str] = (), calibration: bool = False) -> Feed:
    """The model's inputs from an .npz file, checked against their types.

    The file's arrays carry the inputs' names; what a data set may hold besides (labels y, and
    calibration inputs NAME_calib) is passed over, or is what is wanted, with `calibration`. For a
    model with one input the array may also be called x or arr_0, and the name of a shipped data set
    stands for its images. `shapes`: as --shape gives them.

    Raises:
        DtypelabError: the file cannot be read, or names, ranks, shapes or dtypes do not fit.
    """
    path = model_files.model_file(model)
    fixed = shapes_given(path, shapes)
    names = model_files.input_names(path)
    if file in datasets.names():
        data = datasets.load(file).for_model(path)
        x = data.calibration if calibration else data.x
        if isinstance(x, Feed):
            return x
        arrays = {names[0]: x}
    else:
        held = datasets.read_npz(file)
        arrays = datasets.named_arrays(file, held, names, calibration)
        missing = _uncalibrated(held, names) if calibration else []
        if missing:
            try:
                return model_files.feed(path, arrays, file, fixed)
            except InputError as error:
                listed = ", ".join(f"{name}{datasets.CALIB}" for name in missing)
                raise InputError(f"{error}; it has no array {listed}") from None
    return model_files.feed(path, arrays, file, fixed)


def _uncalibrated(held: Mapping[str, pipeline.Array], names: Sequence[str]) -> list[str]:
    """The inputs without calibration inputs of their own, in a file that has them for others."""
    without = [name for name in names if f"{name}{datasets.CALIB}" not in held]
    return without if len(without) < len(names) else []


def lowering_facts(executable: Executable) -> dict[str, str]:
    """How an executable computes in its custom datatypes, and why so; empty texts without any."""
    reasons = "; ".join(dict.fromkeys(choice.reason for choice in executable.lowerings))
    return {"lowering": executable.dtype_lowering, "lowering_reason": reasons}


def engine_facts(executable: Executable, engines: EngineChoice) -> dict[str, Any]:
    """Which engines were wanted, and what they compute; nothing, if none were."""
    if not engines.names:
        return {}
    return {"engine": str(engines), "engine_nodes": handed(executable)}


def echo_lowering(executable: Executable) -> None:
    """Print a line for every custom datatype: how it is computed, and why so."""
    for choice in executable.lowerings:
        say(str(choice))


def random_inputs(model: str, shapes: Sequence[str], batch: int) -> dict[str, pipeline.Array]:
    """Standard normal floats, words, and zeros for inputs of other dtypes (often indices), seed 0.

    `shapes`: as --shape gives them; `batch` is for a symbolic first dimension.

    Raises:
        ConfigError: another dimension is symbolic, no input takes that batch, or one is a sequence.
    """
    path = model_files.model_file(model)
    fixed = dict(shapes_given(path, shapes))
    types = model_files.input_types(path, tuple(fixed.items()))
    packed = model_files.packed_inputs(path)
    for name in types:
        kind = types[name]  # what fixed another input may have fixed this one too
        rank = kind.rank - (packed.get(name) == STRING)  # the last axis of texts is their bytes
        if rank and not isinstance(kind.shape[0], int) and packed.get(name, STRING) == STRING:
            own = fixed.get(name, (None,) * rank)
            fixed[name] = (batch, *own[1:])
            types = model_files.input_types(path, tuple(fixed.items()))
    generator = np.random.default_rng(0)
    arrays: dict[str, pipeline.Array] = {}
    for name, kind in types.items():
        dims, what = kind.shape, f"a {kind}"
        if name in packed:
            dims, what = dims[:-1], f"of the type {packed[name]}"
            if packed[name] != STRING:
                raise ConfigError(
                    f"input {name!r} is {what}, of which no random values are made: run the model "
                    "on values of your own (compiler.build)"
                )
        known = [size for size in dims if isinstance(size, int)]
        if len(known) < len(dims):
            raise ConfigError(
                f"input {name!r} is {what}; fix its shape with --shape {shlex.quote(name)}=..."
            )
        if name in packed:
            letters = generator.integers(ord("a"), ord("z") + 1, (*known, WORD), np.uint32)
            arrays[name] = letters.view(f"U{WORD}").reshape(known)
            continue
        storage = kind.dtype.storage
        is_float = np.issubdtype(storage, np.floating)
        values = generator.standard_normal(known) if is_float else np.zeros(known)
        arrays[name] = np.asarray(values, storage)
    firsts = list(dict.fromkeys(a.shape[0] for a in arrays.values() if a.ndim))
    if batch not in (1, *firsts):
        sizes = " and ".join(map(str, firsts)) or "those of single numbers"
        raise ConfigError(f"no input of {model} takes --batch {batch}: its first sizes are {sizes}")
    return arrays


def shapes_given(path: Path, shapes: Sequence[str]) -> model_files.Shapes:
    """What --shape says, by the model's own names.

    Raises:
        DtypelabError: there is no such input, or the shape does not fit it.
        click.UsageError: one is not INPUT=1x3x224x224.
    """
    from compiler.boundary.inputs import input_called

    names = model_files.input_names(path)
    found = {input_called(name, names): shape for name, shape in map(read_shape, shapes)}
    return tuple(found.items())


def read_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """INPUT=SIZES; the name may have any character, also =, and a scalar has no sizes.

    Raises:
        click.UsageError: it is not.
    """
    name, equals, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.replace("x", ",").split(",") if sizes.strip())
    except ValueError:
        shape = (0,)
    if not equals or min(shape, default=1) < 1:
        raise click.UsageError(f"--shape {text!r} is not INPUT=1x3x224x224")
    return name, shape


def shapes_of(arrays: Mapping[str, pipeline.Array]) -> model_files.Shapes:
    """The shapes of named arrays, as `model_files.load_model` takes them."""
    return tuple((name, tuple(array.shape)) for name, array in arrays.items())


def load_static(
    model: str, arrays: Mapping[str, pipeline.Array], outputs: Sequence[str] = ()
) -> IRModule:
    """The model with its shapes fixed to those of `arrays`; of some `outputs`, only what they
    need."""
    from compiler.transform.choose_outputs import choose_outputs

    module = model_files.load_model(model_files.model_file(model), shapes_of(arrays))
    return choose_outputs(module, outputs)


def load_as_calibrated(model: str, arrays: Mapping[str, pipeline.Array]) -> IRModule:
    """The same for a plan that was made with all sizes open: they stay so where one is 0, as what
    is known to be empty (the past of a decoder) is left out of the program, with its nodes."""
    empty = any(0 in a.shape for a in arrays.values())
    return model_files.load_model(model_files.model_file(model), () if empty else shapes_of(arrays))


def one_call(model: str, feed: Feed) -> Feed:
    """The examples of `feed` that go into one call of the model: all, or as many as it takes."""
    per = model_batches.per_call(model_files.model_file(model), feed)
    return feed if per in (None, len(feed)) else filled(feed[:per], per)


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


@contextlib.contextmanager
def progress_bar(title: str, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, and what tells it what is being done, how much of it is, and of how much;
    nothing unless it is `shown`, and stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not shown or not console.is_terminal:  # elsewhere, a bar would leave an empty line
        yield lambda *_: None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title)

        def tell(what: str, done: int, total: int) -> None:
            text = printable(f"{title} {what}".strip())
            progress.update(task, description=text, completed=done, total=total)

        yield tell
