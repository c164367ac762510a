"""dtypelab dtype list | show | check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .common import json_option, print_json, show
from .dtype_check import check

if TYPE_CHECKING:
    from datatypes import Format

#: Formats up to this width have all their codes shown on request.
_MAX_CODES_BITS = 8


@click.group(short_help="The number formats: list them, show one, check one.")
def dtype() -> None:
    """List the built-in number formats, show one, or prove its kernels right.

    Example: dtypelab dtype show posit8_es0
    """


dtype.add_command(check)


@dtype.command("list", short_help="All built-in formats.")
@json_option
def list_formats(as_json: bool) -> None:
    """List the built-in formats and the families that others can be named from.

    Example: dtypelab dtype list --json
    """
    from rich.table import Table

    import datatypes
    from datatypes.formats import families

    described = [_describe(datatypes.get(name)) for name in datatypes.list_formats()]
    if as_json:
        print_json({"formats": described, "families": families()})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "bits", "smallest", "largest", "overflow", "underflow"):
        table.add_column(column, justify="left" if column == "name" else "right", no_wrap=True)
    for facts in described:
        table.add_row(
            facts["name"],
            str(facts["nbits"]),
            f"{facts['minpos']:.6g}",
            f"{facts['maxpos']:.6g}",
            facts["overflow"],
            facts["underflow"],
        )
    show(table)
    click.echo(f"any other by name: {', '.join(families())}")


@dtype.command("show", short_help="One format.")
@click.argument("name", metavar="NAME")
@click.option("--codes", is_flag=True, help="List every code with its value (8 bits or fewer).")
@json_option
def show_format(name: str, codes: bool, as_json: bool) -> None:
    """Show the width, range and rounding rules of a format.

    Example: dtypelab dtype show posit8_es0 --codes
    """
    import datatypes

    fmt = datatypes.get(name)
    facts = _describe(fmt)
    if codes:
        if fmt.nbits > _MAX_CODES_BITS:
            raise click.UsageError(f"--codes lists formats of up to {_MAX_CODES_BITS} bits")
        bits = range(fmt.mask + 1)
        values = datatypes.decode(fmt, list(bits)).tolist()
        facts["codes"] = dict(zip(map(str, bits), values, strict=True))
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        if key == "codes":
            for code, number in value.items():
                click.echo(f"{int(code):>5}  {int(code):0{fmt.nbits}b}  {number:.17g}")
        else:
            click.echo(f"{key:<12} {value}")


def _describe(fmt: Format) -> dict[str, Any]:
    return {
        "name": fmt.name,
        "nbits": fmt.nbits,
        "storage": fmt.storage.name,
        "minpos": float(fmt.minpos),
        "maxpos": float(fmt.maxpos),
        "ties": fmt.ties,
        "overflow": fmt.overflow,
        "infinity": fmt.infinity,
        "underflow": fmt.underflow,
        "nan": fmt.has_nan,
        "signed_zero": fmt.signed_zero,
        "source": fmt.source,
    }
