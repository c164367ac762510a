"""dtypelab export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from compiler.errors import ConfigError
from compiler.exporting import FORMS
from experiments.systems import pipeline, schemes
from experiments.zoo import model_files

from .common import (
    format_options,
    import_engine_option,
    json_option,
    model_argument,
    print_json,
    say,
    shape_option,
    shapes_given,
)
from .export_page import PageOptions, page_options, write_page

if TYPE_CHECKING:
    from compiler.exporting.needs import Needs
    from compiler.ir.expr import IRModule
    from compiler.runtime.machines.instruction_counts import Counts


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
    help="The folder, which is made; with --page, the file.",
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
@click.option("--force", is_flag=True, help="Write into a folder that is there, or over a page.")
@click.option(
    "--flash", type=click.IntRange(min=1), metavar="BYTES", help="There is, for code and weights."
)
@click.option(
    "--ram", type=click.IntRange(min=1), metavar="BYTES", help="There is, for all that is written."
)
@click.option(
    "--report", is_flag=True, help="Count instructions by layer on an emulated microcontroller."
)
@page_options
@import_engine_option
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
    flash: int | None,
    ram: int | None,
    report: bool,
    page: bool,
    examples: str | None,
    labels: Path | None,
    divide: str | None,
    mean: str | None,
    std: str | None,
    as_json: bool,
) -> None:
    """Compile MODEL ahead of time into DIR: code, a header, a README, and a program that runs it.

    The code needs no heap, no files, no threads and no Python, and several calls may run at once:
    all memory that it writes is given to it. Sizes that the model leaves open are arguments;
    --shape fixes them. --target c writes one C11 file for any compiler; llvm, machine code for this
    CPU, and llvm -mcpu=haswell, for that one.

    --target thumbv7em (Cortex-M4; -mcpu=cortex-m7) and thumbv8.1m (Cortex-M55) also give start-up
    code and a linker script. Programs that need more than --flash and --ram are refused, for any
    target; of C, whose code others compile, flash counts the weights alone.

    A shared library loads back in Python: compiler.load("DIR/libnet.so").

    --target wasm32 --page -o FILE.html writes one HTML file that runs MODEL in a browser, on
    pictures and .npy files that its reader chooses; with --dtype or --plan, beside float32.

    Example: dtypelab export mnist_mlp --dtype posit16_es1 --target c -o mlp_in_c
    """
    import compiler

    options = PageOptions(examples, labels, divide, mean, std)
    if page:
        _check_page(name, forms, weights, flash, ram, report)
        change, how = _change(plan_file, dtype, accumulate, lowering)
        called = f"plan {Path(plan_file).name}" if plan_file else dtype
        called += f", accumulate {accumulate}" if accumulate else ""
        given = change, how, called
        write_page(model, options, shapes, output, force, target, given, as_json)
        return
    if options.given():
        raise ConfigError(f"{options.given()[0]} is for pages: add --page, or leave it out")
    module, how = _module(model, plan_file, dtype, accumulate, lowering, shapes)
    counts = _counts(module, target, how) if report else None
    written = compiler.export(
        module, target, output, name=name, forms=forms or None, weights=weights,
        dtype_lowering=how, force=force, flash=flash, ram=ram,
    )  # fmt: skip
    if as_json:
        facts = {"model": model, "dtype": dtype, "plan": plan_file or "", "name": name}
        sizes = {"arena_bytes": written.arena_bytes, "weights_bytes": written.weights_bytes}
        print_json({
            **facts, "target": str(written.target), "folder": str(output),
            "files": dict(written.files), **sizes, **memory(written.needs), **layers(counts),
        })  # fmt: skip
        return
    arena = written.arena_bytes
    needs = "an arena as its sizes say" if arena is None else f"an arena of {arena:,} bytes"
    say(f"{output}: {model} for target {written.target}, "
        f"{written.weights_bytes:,} bytes of weights, {needs}")  # fmt: skip
    for file, what in written.files.items():
        say(f"  {file}: {what}")
    if written.needs is not None:
        say(f"needs {written.needs.text}")
    if counts is not None:
        for kernel in counts.kernels:
            name = kernel.nodes or kernel.symbol.rpartition("_")[0]
            say(f"  {kernel.instructions:>13,} instructions  {name}")
        say(f"  {counts.instructions:>13,} instructions, {counts.stack:,} bytes of stack")


def memory(needs: Needs | None) -> dict[str, int | None]:
    """What there must be, if that is known, for JSON."""
    if needs is None:
        return {}
    return {"flash_bytes": needs.flash if needs.code else None, "ram_bytes": needs.ram}


def layers(counts: Counts | None) -> dict[str, object]:
    """Instructions, for JSON."""
    if counts is None:
        return {}
    rows = [
        {"kernel": k.symbol, "nodes": k.nodes, "instructions": k.instructions}
        for k in counts.kernels
    ]
    return {"instructions": counts.instructions, "stack_bytes": counts.stack, "kernels": rows}


def _counts(module: IRModule, target: str, lowering: str | None) -> Counts:
    """Instructions of a call on zeros.

    Raises:
        DtypelabError: the target is no microcontroller, or does not run here, or sizes are open.
    """
    import numpy as np

    import compiler
    from compiler.runtime.elsewhere import ElsewhereExecutable
    from compiler.runtime.machines.instruction_counts import instruction_counts

    exe = compiler.build(module, target=target, dtype_lowering=lowering)
    if not isinstance(exe, ElsewhereExecutable) or exe.program.dims:
        raise ConfigError(
            "--report counts instructions on microcontrollers, of inputs of known sizes (--shape), "
            f"not for target {target!r}"
        )
    zeros = [
        np.zeros([int(str(d)) for d in t.shape], t.dtype.storage) for _, t in exe.program.inputs
    ]
    return instruction_counts(exe, *zeros)


def _check_page(
    name: str,
    forms: Sequence[str],
    weights: str,
    flash: int | None,
    ram: int | None,
    report: bool,
) -> None:
    """Refuse what is said of code for C programs, or of microcontrollers."""
    said = {"--name": name != "net", "--form": bool(forms), "--weights": weights != "inside"}
    said |= {"--flash": flash is not None, "--ram": ram is not None, "--report": report}
    if any(said.values()):
        option = next(option for option, given in said.items() if given)
        raise ConfigError(f"{option} says nothing of a page: leave it out, or --page")


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
    change, how = _change(plan_file, dtype, accumulate, lowering)
    path = model_files.model_file(model)
    return change(model_files.load_model(path, shapes_given(path, shapes))), how


def _change(
    plan_file: str | None, dtype: str, accumulate: str | None, lowering: str | None
) -> tuple[Callable[[IRModule], IRModule], str | None]:
    """What makes the module of a model's, and how its custom datatypes are lowered.

    Raises:
        DtypelabError: the format is unknown, or there is a plan, too.
    """
    if plan_file is not None and (dtype != "float32" or accumulate is not None):
        raise ConfigError("--plan and --dtype are two ways to compute: give one")
    scheme = schemes.number_format(dtype, accumulate, lowering)
    how = cast("str | None", scheme.option("lowering"))
    if plan_file is None:
        return lambda module: pipeline.retype(module, scheme), how
    import quantize

    plan = plan_file
    return lambda module: quantize.realize(module, quantize.Plan.from_json(plan)), how
