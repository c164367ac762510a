"""dtypelab dtype list | show | check | hardware | cost."""

from __future__ import annotations

import click

from .common import json_option, print_json, say, show
from .dtype_check import check
from .dtype_cost import cost
from .dtype_hardware import hardware
from .dtype_show import describe, show_format


@click.group(short_help="The number formats: list, show, check, write circuits.")
def dtype() -> None:
    """List the built-in number formats, show one, prove its kernels right, or write its circuits.

    Example: dtypelab dtype show posit8_es0
    """


dtype.add_command(check)
dtype.add_command(cost)
dtype.add_command(hardware)
dtype.add_command(show_format)


@dtype.command("list", short_help="All built-in formats.")
@json_option
def list_formats(as_json: bool) -> None:
    """List the built-in formats and the families that others can be named from.

    Example: dtypelab dtype list --json
    """
    from rich.table import Table

    import datatypes
    from datatypes.formats import families

    described = [describe(datatypes.get(name)) for name in datatypes.list_formats()]
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
    say(f"any other by name: {', '.join(families())}")
