"""`dtypelab`: the group of verbs, and the one place that turns exceptions into exit codes."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from compiler.errors import DtypelabError, DtypelabWarning
from compiler.files.printable import printable
from experiments.running.provenance import dtypelab_version
from experiments.user_code import activity, adapters, isolation

from .bench import bench
from .cache import cache
from .compare import compare
from .costs import costs
from .cycles import cycles
from .dtype import dtype
from .export import export
from .gap import gap
from .generate import generate
from .inspect import inspect
from .plan import plan
from .quantize import quantize
from .report import report
from .reproduce import reproduce
from .run import run
from .schema import schema
from .search import search
from .serve import devices, serve
from .sweep import sweep
from .table import table
from .targets import targets
from .train import train
from .tune import tune
from .zoo import zoo

OK, INTERNAL_ERROR, USAGE_ERROR = 0, 1, 2
_WRITING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""What a standard output that cannot be written fails with; files are named where they fail."""


@click.group(invoke_without_command=True, no_args_is_help=False)
@click.version_option(dtypelab_version(), message="%(prog)s %(version)s")
@click.option(
    "--adapter",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE.py",
    help="Run FILE.py first, which defines number formats, models, data or metrics of your own.",
)
@click.pass_context
def cli(context: click.Context, files: tuple[Path, ...]) -> None:
    """Run trained ONNX models in the number system you want to study.

    MODEL is the path of an .onnx file or the name of a network that `dtypelab zoo`
    lists, such as mnist_mlp.

    Example: dtypelab sweep quickstart -o quickstart.csv
    """
    if files and context.invoked_subcommand == "sweep":
        raise click.UsageError('SPEC.toml names the adapters of a sweep: adapters = ["FILE.py"]')
    for file in files:
        adapters.install(adapters.Adapter.read(file))
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for verb in (
    *(inspect, run, generate, quantize, plan, compare, bench, tune, search, gap, costs, cycles),
    *(dtype, export, targets, serve, devices, train, sweep, schema, table, report, reproduce),
    *(zoo, cache),
):
    cli.add_command(verb)


def main() -> None:
    """Entry point of the `dtypelab` command.

    Where it runs a file of the user, it does so in a process of its own, whose end is a sentence.
    """
    _open_streams()
    warnings.formatwarning = _warning
    arguments = sys.argv[1:]
    if not any(word.partition("=")[0] == "--adapter" for word in arguments):
        sys.exit(run_command(arguments))
    try:
        code = isolation.call(partial(run_command, arguments), silence_s=math.inf, say=None)
    except DtypelabError as error:
        code = _complain(str(error), USAGE_ERROR)
    except KeyboardInterrupt:
        code = _complain("interrupted", INTERNAL_ERROR)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line; errors go to stderr as one sentence.

    Returns:
        0 on success, 2 on bad usage or input, or without the memory that is asked for, 1 on an
        internal error (with a traceback when DTYPELAB_DEBUG is set) or an interruption.
    """
    try:
        code = cli.main(args=list(arguments), prog_name="dtypelab", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "dtypelab"
        return _complain(f"{error.format_message().rstrip('.')}; see `{path} --help`", USAGE_ERROR)
    except click.ClickException as error:
        return _complain(error.format_message(), USAGE_ERROR)
    except DtypelabError as error:
        return _complain(str(error), USAGE_ERROR)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for Ctrl-D; we ask for nothing
            return _internal(error.__cause__)
        return _complain("interrupted", INTERNAL_ERROR)
    except BrokenPipeError:
        # The reader of our output (`head`, a pager) has gone: nothing to say, nowhere to say it.
        _discard(sys.stdout)
        return INTERNAL_ERROR
    except MemoryError as error:
        return _complain(f"out of memory: {error}".rstrip(": "), USAGE_ERROR)
    except OSError as error:
        if error.filename is None and error.errno in _WRITING:
            _discard(sys.stdout)
            return _complain(f"cannot write the output: {error.strerror}", USAGE_ERROR)
        return _internal(error)
    except Exception as error:
        # Whatever we did not foresee, or a user's adapter raises: also that is one sentence.
        return _internal(error)


_formatted = warnings.formatwarning


def _warning(message: Warning | str, category: type[Warning], *more: Any, **named: Any) -> str:
    """A warning of ours as errors are, in a sentence; others with their place in the code."""
    if issubclass(category, DtypelabWarning):
        return f"dtypelab: {printable(str(message))}\n"
    return _formatted(message, category, *more, **named)


def _internal(error: Exception) -> int:
    if os.environ.get("DTYPELAB_DEBUG"):
        traceback.print_exc()
    said = activity.in_words(error)
    return _complain(f"internal error: {said}; DTYPELAB_DEBUG=1 shows where", INTERNAL_ERROR)


def _open_streams() -> None:
    """Make streams that cannot fail for what they are given, and that are there: a file that is
    opened must not become the standard output because that was closed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nowhere() -> TextIO:
    """A stream that what is printed vanishes in, open as long as the process."""
    return open(os.devnull, "w")


def _discard(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere, so that it does not fail when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complain(message: str, code: int) -> int:
    try:
        print(f"dtypelab: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)
    return code
