"""dtypelab export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from compiler.errors import ConfigError
from compiler.exporting import FORMS
from experiments.systems import pipeline, schemes
from experiments.zoo import model_files

from .common import (
    format_options,
    json_option,
    model_argument,
    print_json,
    say,
    shape_option,
    shapes_given,
)

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule


@click.command(short_help="Write a model as code that C programs are linked with.")
@model_argument
@click.option("--plan", "plan_file", metavar="P.json", help="Quantized by a plan.")
@format_options
@shape_option
@click.option("--target", default="llvm", show_default=True, metavar="T")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder, which is made.",
)
@click.option("--name", default="net", show_default=True, help="Of the function in C.")
@click.option(
    "--form",
    "forms",
    multiple=True,
    type=click.Choice(FORMS),
    help="Repeatable. Without it: source for target c, else an object file and libraries.",
)
@click.option(
    "--weights",
    type=click.Choice(["inside", "file"]),
    default="inside",
    show_default=True,
    help="In the code, or in a file that callers read or map.",
)
@click.option("--force", is_flag=True, help="Write into a folder that is there.")
@json_option
def export(
    model: str,
    plan_file: str | None,
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    shapes: Sequence[str],
    target: str,
    output: Path,
    name: str,
    forms: Sequence[str],
    weights: str,
    force: bool,
    as_json: bool,
) -> None:
    """Compile MODEL ahead of time into DIR: code, a header, a README, and a program that runs it.

    The code needs no heap, no files, no threads and no Python, and several calls may run at once:
    all memory that it writes is given to it. Sizes that the model leaves open are arguments;
    --shape fixes them. --target c writes one C11 file for any compiler; llvm, machine code for this
    CPU, and llvm -mcpu=haswell, for that one.

    A shared library loads back in Python: compiler.load("DIR/libnet.so").

    Example: dtypelab export mnist_mlp --dtype posit16_es1 --target c -o mlp_in_c
    """
    import compiler

    module, how = _module(model, plan_file, dtype, accumulate, lowering, shapes)
    written = compiler.export(
        module, target, output, name=name, forms=forms or None, weights=weights,
        dtype_lowering=how, force=force,
    )  # fmt: skip
    if as_json:
        facts = {"model": model, "dtype": dtype, "plan": plan_file or "", "name": name}
        sizes = {"arena_bytes": written.arena_bytes, "weights_bytes": written.weights_bytes}
        print_json({
            **facts, "target": str(written.target), "folder": str(output),
            "files": dict(written.files), **sizes,
        })  # fmt: skip
        return
    arena = written.arena_bytes
    needs = "an arena as its sizes say" if arena is None else f"an arena of {arena:,} bytes"
    say(f"{output}: {model} for target {written.target}, "
        f"{written.weights_bytes:,} bytes of weights, {needs}")  # fmt: skip
    for file, what in written.files.items():
        say(f"  {file}: {what}")


def _module(
    model: str,
    plan_file: str | None,
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    shapes: Sequence[str],
) -> tuple[IRModule, str | None]:
    """The module, and how its custom datatypes are lowered.

    Raises:
        DtypelabError: the plan, the format or a shape does not fit.
    """
    if plan_file is not None and (dtype != "float32" or accumulate is not None):
        raise ConfigError("--plan and --dtype are two ways to compute: give one")
    scheme = schemes.number_format(dtype, accumulate, lowering)
    path = model_files.model_file(model)
    module = model_files.load_model(path, shapes_given(path, shapes))
    how = cast("str | None", scheme.option("lowering"))
    if plan_file is None:
        return pipeline.retype(module, scheme), how
    import quantize

    return quantize.realize(module, quantize.Plan.from_json(plan_file)), how
