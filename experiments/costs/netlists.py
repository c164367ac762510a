"""Gates and depth of formats' circuits, as a table: `python -m experiments.costs.netlists FILE`.

The table in results/hardware.csv was recorded by it. It takes Yosys, and minutes. Formats of a
user come from a file that defines them, `--adapter FILE.py`; those called mitchell from one that
calls `experiments.examples.approximate_multiplier.define()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compiler.errors import DtypelabError, UnsupportedError

if TYPE_CHECKING:
    from datatypes.hardware.blocks import Blocks

COLUMNS = (
    "format", "nbits", "accumulate", "accumulator_bits", "module", "terms", "gates", "nand2",
    "depth", "tool",
)  # fmt: skip
FORMATS = (
    "int4", "int8", "fixed8_4", "fixed16_8", "float4_e2m1fn", "float6_e3m2fn", "float8_e4m3fn",
    "float8_e5m2", "posit8_es0", "posit8_es2", "takum8", "nf4", "lns8_3", "float16",
    "posit16_es1", "takum16", "bfloat16", "posit8_es1", "posit16_es2", "mxint8", "mxfp8_e4m3",
    "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_e2m1", "nvfp4", "nvint4",
)  # fmt: skip
ACCUMULATORS = ("exact", "float32")
MORE = {
    **dict.fromkeys(("posit8_es0", "posit8_es1", "posit8_es2"), ("fma", "float16")),
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e5m2"),
        ("sequential", "fma", "float16", "bfloat16", "float22_e8m13", "h100_fp8", "b200_fp8"),
    ),
    **dict.fromkeys(("takum8", "bfloat16", "posit16_es1", "posit16_es2", "takum16"), ("fma",)),
    "float16": ("fma", "v100_fp16", "a100_fp16", "h100_fp16"),
}
"""More accumulators of some formats."""
OF_FORMAT = ("decode", "encode", "add", "mul")
"""Modules that are the same with every accumulator; `accumulate` is empty in their rows."""


def rows(
    name: str, accumulators: Sequence[str] = ACCUMULATORS, only: Sequence[str] = ()
) -> Iterator[dict[str, object]]:
    """What the circuits of one format cost, a row a module; by the keys of `COLUMNS`.

    Formats whose only sums are of rounded products have those, whatever is asked for; block
    formats have sums in floats only. With `only`, some of the modules.

    Raises:
        DtypelabError: Yosys is missing, or the format has no circuits.
    """
    from datatypes.hardware import synthesis, tools
    from datatypes.hardware.blocks import Blocks
    from datatypes.hardware.generate import design

    done: set[str] = set()
    tool = tools.yosys_version()
    described = described_by(name)
    for accumulate in accumulators:
        try:
            made = design(described, accumulate)
        except UnsupportedError:
            accumulate = "float32" if isinstance(described, Blocks) else "sequential"
            made = design(described, accumulate)
        wanted = [what for what in made.circuits if what not in OF_FORMAT or what not in done]
        wanted = [what for what in wanted if what in only or not only]
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
                "terms": made.terms if cost.module == "mac" else "",
                "gates": cost.cells,
                "nand2": cost.nand2,
                "depth": cost.depth,
                "tool": tool,
            }
        done |= {accumulate, *OF_FORMAT}


def described_by(name: str) -> str | Blocks:
    """What has circuits under a name: a block format's parts, or the name of a format as it is.

    Raises:
        DtypelabError: a block format's elements or scales have none.
    """
    from datatypes.formats import get
    from datatypes.hardware.blocks import Blocks
    from quantize.formats.blocks import block_format

    found = block_format(name)
    if found is None:
        return name
    scale = "float32_e8m23" if found.scale == "float32" else found.scale
    return Blocks(name, get(found.element), get(scale), found.block)


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--format", "formats", multiple=True, metavar="NAME", help="Repeatable.")
@click.option("--accumulate", "accumulators", multiple=True, metavar="MODE", help="Repeatable.")
@click.option("--module", "only", multiple=True, metavar="NAME", help="Repeatable; else all.")
@click.option("--adapter", metavar="FILE.py", help="Defines formats.")
def main(
    file: str,
    formats: Sequence[str],
    accumulators: Sequence[str],
    only: Sequence[str],
    adapter: str | None,
) -> None:
    """Synthesize the circuits of formats and write what they cost as CSV.

    Example: python -m experiments.costs.netlists hardware.csv --format posit8_es2
    """
    import pandas

    from experiments.files import check_writable, write_whole
    from experiments.user_code import adapters

    try:
        check_writable(file)
        if adapter is not None:
            adapters.install(adapters.Adapter.read(adapter))
        table: list[dict[str, object]] = []
        for name in formats or FORMATS:
            chosen = accumulators or (*ACCUMULATORS, *MORE.get(name, ()))
            table += rows(name, chosen, only)
            text = pandas.DataFrame(table, columns=list(COLUMNS)).to_csv(index=False)
            write_whole(Path(file), text.encode())
            click.echo(name, err=True)
    except DtypelabError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
