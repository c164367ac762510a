"""Gates and depth of formats' circuits, as a table: `python -m experiments.costs.netlists FILE`.

The table in results/hardware.csv was recorded by it. It takes Yosys, and minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from compiler.errors import DtypelabError, UnsupportedError

COLUMNS = (
    "format", "nbits", "accumulate", "accumulator_bits", "module", "gates", "nand2", "depth",
    "tool",
)  # fmt: skip
FORMATS = (
    "int4", "int8", "fixed8_4", "float4_e2m1fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e5m2",
    "posit8_es0", "posit8_es2", "takum8", "nf4", "lns8_3", "float16", "posit16_es1", "takum16",
    "bfloat16",
)  # fmt: skip
ACCUMULATORS = ("exact", "float32")
WIDE = {"takum8", "float16", "bfloat16", "posit16_es1", "takum16"}
"""Formats whose exact sums take long to synthesize (takums' have 900 bits): `fma` instead."""
OF_FORMAT = ("decode", "encode", "add", "mul")
"""Modules that are the same with every accumulator; `accumulate` is empty in their rows."""


def rows(name: str, accumulators: Sequence[str] = ACCUMULATORS) -> Iterator[dict[str, object]]:
    """What the circuits of one format cost, a row a module; by the keys of `COLUMNS`.

    Formats whose only sums are of rounded products have those, whatever is asked for.

    Raises:
        DtypelabError: Yosys is missing, or the format has no circuits.
    """
    from datatypes.hardware import synthesis, tools
    from datatypes.hardware.generate import design

    done: set[str] = set()
    tool = tools.yosys_version()
    for accumulate in accumulators:
        try:
            made = design(name, accumulate)
        except UnsupportedError:
            accumulate = "sequential"
            made = design(name, accumulate)
        wanted = [what for what in made.circuits if what not in OF_FORMAT or what not in done]
        if accumulate in done:
            continue
        for cost in synthesis.synthesized(made, only=wanted):
            own = cost.module in OF_FORMAT
            yield {
                "format": made.name,
                "nbits": made.nbits,
                "accumulate": "" if own else accumulate,
                "accumulator_bits": "" if own else made.accumulator_bits,
                "module": cost.module,
                "gates": cost.cells,
                "nand2": cost.nand2,
                "depth": cost.depth,
                "tool": tool,
            }
        done |= {accumulate, *OF_FORMAT}


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--format", "formats", multiple=True, metavar="NAME", help="Repeatable.")
@click.option("--accumulate", "accumulators", multiple=True, metavar="MODE", help="Repeatable.")
def main(file: str, formats: Sequence[str], accumulators: Sequence[str]) -> None:
    """Synthesize the circuits of formats and write what they cost as CSV.

    Example: python -m experiments.costs.netlists hardware.csv --format posit8_es2
    """
    import pandas

    from experiments.files import check_writable, write_whole

    try:
        check_writable(file)
        table: list[dict[str, object]] = []
        for name in formats or FORMATS:
            chosen = accumulators or (("fma", "float32") if name in WIDE else ACCUMULATORS)
            table += rows(name, chosen)
            text = pandas.DataFrame(table, columns=list(COLUMNS)).to_csv(index=False)
            write_whole(Path(file), text.encode())
            click.echo(name, err=True)
    except DtypelabError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
