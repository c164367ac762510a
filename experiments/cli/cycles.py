"""dtypelab cycles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compiler.errors import ConfigError
from compiler.target.registry import Target
from experiments.files import check_outputs, write_whole
from experiments.systems import pipeline, schemes

from .common import (
    batch_options,
    format_options,
    import_engine_option,
    json_option,
    load_static,
    model_argument,
    print_json,
    random_inputs,
    say,
    show,
)
from .int8 import int8_module, int8_options

if TYPE_CHECKING:
    from compiler.engines.accelerator import Cost
    from compiler.runtime.accel.layer import LayerReport


@click.command(short_help="Count a model's cycles on a simulated accelerator.")
@model_argument
@format_options
@click.option("--target", default="accel", show_default=True, metavar="T")
@batch_options
@int8_options
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw what the accelerator's units do over time.",
)
@click.option("--layer", metavar="NAME", help="Draw this layer alone.")
@import_engine_option
@json_option
def cycles(
    model: str,
    dtype: str,
    accumulate: str | None,
    lowering: str | None,
    target: str,
    batch: int,
    shapes: Sequence[str],
    calib: str | None,
    config_file: str | None,
    settings: Sequence[str],
    timeline: Path | None,
    layer: str | None,
    as_json: bool,
) -> None:
    """Run MODEL once on a simulated accelerator, and say what each of its layers takes there.

    The accelerator multiplies blocks of int8 (--calib), or of the 8-bit format that --dtype and the
    target name (-format=posit8_es0, with --accumulate exact). What it lacks runs on this machine,
    and takes no cycles. `multiply` is the part of the cycles in which the multipliers work, `of
    peak` what the network's MACs are of those that they could have made; `bus` the part in which
    bytes move. Options of --target: block, input, weight, acc (bytes of the buffers), bandwidth
    (bytes a cycle), latency, fill, format, weight_bits, accumulator: "accel -bandwidth=8".

    Example: dtypelab cycles mnist_resnet8 --calib mnist1k --timeline resnet8.svg
    """
    from compiler.engines.accelerator import cost

    design = Target.parse(target).design
    if design is None:
        raise ConfigError(f"--target is an accelerator, such as 'accel -block=16', not {target!r}")
    if layer is not None and timeline is None:
        raise ConfigError("--layer is what --timeline draws: give that, too")
    scheme = schemes.number_format(dtype, accumulate, lowering)
    if calib and scheme.kind != "float32":
        raise ConfigError("--calib makes the model int8: leave --dtype out")
    check_outputs([timeline], [])
    arrays = random_inputs(model, shapes, batch)
    module = load_static(model, arrays)
    module = int8_module(model, module, arrays, shapes, calib, config_file, settings)
    if not calib:
        module = pipeline.retype(module, scheme)
    executable = pipeline.build(module, scheme, target, 1)
    executable(*arrays.values())
    found = cost(executable)
    assert found is not None
    if timeline is not None:
        from experiments.page.timeline import timeline_svg

        drawn = _named(found, layer)
        write_whole(timeline, timeline_svg(found.design, drawn).encode())
    if as_json:
        print_json(_facts(model, target, found))
        return
    show(_table(found))
    for message in _notes(found):
        say(message)
    if timeline is not None:
        say(f"{timeline}: {timeline.stat().st_size / 1024:.0f} KiB; open it in a browser")


def _named(found: Cost, layer: str | None) -> Sequence[LayerReport]:
    from compiler.errors import unknown

    drawn = [r for r in found.layers if layer in (None, r.name)]
    if not drawn:
        raise ConfigError(unknown("layer", str(layer), [r.name for r in found.layers]))
    return drawn


def _line(r: LayerReport, found: Cost) -> dict[str, Any]:
    moved = r.report.loaded + r.report.stored
    return {
        "layer": r.name,
        "macs": r.macs,
        "cycles": r.report.cycles,
        "busy": r.report.utilization,
        "utilization": r.macs / (r.report.cycles * found.design.peak),
        "bus": moved / (r.report.cycles * found.design.bandwidth),
        "bytes": moved,
        "tile": str(r.tile),
    }


def _facts(model: str, target: str, found: Cost) -> dict[str, Any]:
    lines = [_line(r, found) for r in found.layers]
    return {
        "model": model,
        "target": target,
        "cycles": found.cycles,
        "busy": found.busy,
        "utilization": found.utilization,
        "layers": lines,
    }


def _table(found: Cost) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("layer", "MACs", "cycles", "multiply", "of peak", "bus", "tile"):
        left = column in ("layer", "tile")
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    for r in found.layers:
        line = _line(r, found)
        shares = [f"{100 * line[name]:.1f}%" for name in ("busy", "utilization", "bus")]
        counts = [f"{line[name]:,}" for name in ("macs", "cycles")]
        table.add_row(r.name, *counts, *shares, line["tile"])
    return table


def _notes(found: Cost) -> list[str]:
    return [
        f"{found.cycles:,} cycles of {len(found.layers)} layers; multipliers work in "
        f"{100 * found.busy:.1f} % of them, at {100 * found.utilization:.1f} % of their peak"
    ]
