"""dtypelab dtype hardware."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compiler.errors import ConfigError, DtypelabError
from experiments.files import check_outputs, write_whole

from .common import json_option, print_json, progress_bar, say, show

if TYPE_CHECKING:
    from datatypes.hardware.generate import Design
    from datatypes.hardware.synthesis import Cost


@click.command("hardware", short_help="A format as a circuit: Verilog, gates, depth.")
@click.argument("name", metavar="NAME")
@click.option(
    "--accumulate",
    metavar="MODE",
    help="What sums are kept in: exact, fma, sequential, a format's name, or a description.  "
    "[default: exact; of block formats float32]",
)
@click.option(
    "--pipeline",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Rows of registers, 0 to 2.",
)
@click.option(
    "--headroom",
    type=int,
    default=16,
    show_default=True,
    metavar="N",
    help="Exact sums hold 2^N products.",
)
@click.option("--liberty", metavar="FILE", help="A technology's cells, for um^2 and ps.")
@click.option("-o", "--output", metavar="FILE", help="Verilog to write.  [default: NAME.v]")
@click.option("--no-synthesis", is_flag=True, help="Only write the Verilog; needs no tools.")
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="How long the synthesis of one module may take.  [default: 600]",
)
@json_option
def hardware(
    name: str,
    accumulate: str | None,
    pipeline: int,
    headroom: int,
    liberty: str | None,
    output: str | None,
    no_synthesis: bool,
    time_limit: float | None,
    as_json: bool,
) -> None:
    """Write a format's decoder, encoder, adder, multiplier and multiply-accumulate as Verilog, and
    say what they cost: gates, NAND2 equivalents, and the most gates in a row. Of a block format
    (mxfp4_e2m1), the dot product of a block.

    Synthesis is Yosys'; the extra `hardware` brings it.

    Example: dtypelab dtype hardware posit8_es2 --accumulate exact -o posit.v
    """
    from datatypes.hardware import tools
    from datatypes.hardware.generate import design
    from experiments.costs.netlists import described_by

    for option, value in (("--liberty", liberty), ("--time-limit", time_limit)):
        if no_synthesis and value is not None:
            raise ConfigError(f"{option} is for synthesis: leave it out, or --no-synthesis")
    described = described_by(name)
    if accumulate is None:
        accumulate = "exact" if isinstance(described, str) else "float32"
    made = design(described, accumulate, pipeline=pipeline, headroom=headroom)
    if not no_synthesis and tools.missing():
        raise DtypelabError(f"{tools.missing()}; or give --no-synthesis")
    file = Path(f"{made.name}.v" if output is None else output)
    check_outputs([file], [liberty])
    costs: list[Cost] = []
    if not no_synthesis:
        from datatypes.hardware.synthesis import synthesized

        limit = tools.TIMEOUT if time_limit is None else time_limit
        with progress_bar("synthesizing", not as_json) as watch:
            costs = synthesized(made, liberty=liberty, time_limit=limit, watch=watch)
    write_whole(file, made.verilog.encode())
    facts = _facts(made, accumulate, file)
    if as_json:
        print_json({**facts, "modules": [asdict(cost) for cost in costs]})
        return
    if costs:
        _print(costs)
    say(f"{file}: {', '.join(c.name for c in made.circuits.values())}")


def _facts(made: Design, accumulate: str, file: Path) -> dict[str, Any]:
    from datatypes.hardware import tools

    return {
        "name": made.name,
        "nbits": made.nbits,
        "accumulate": accumulate,
        "accumulator_bits": made.accumulator_bits,
        "terms": made.terms,
        "file": str(file),
        "tool": "" if tools.missing() else tools.yosys_version(),
    }


def _print(costs: list[Cost]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("module")
    mapped = costs[0].area_um2 is not None
    for column in ("gates", "NAND2", "depth", *(("um^2", "ps") if mapped else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for cost in costs:
        row = [cost.module, f"{cost.cells:,}", f"{cost.nand2:,.1f}", str(cost.depth)]
        if mapped:
            row += [f"{cost.area_um2:,.1f}", f"{cost.delay_ps:,.0f}"]
        table.add_row(*row)
    show(table)
