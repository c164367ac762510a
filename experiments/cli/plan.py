"""dtypelab plan show | diff."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from .common import json_option, print_json, say, say_text

_PLAN = click.Path(path_type=Path)


@click.group(short_help="Quantization plans: show one, compare two.")
def plan() -> None:
    """Show a quantization plan, or what is different between two.

    A plan is JSON, an entry a line, to be edited by hand: dtypelab compare and quantize.realize
    take it, without calibrating again.

    Example: dtypelab plan show p.json
    """


@plan.command(short_help="Every node: integer or float, with what parameters, and why.")
@click.argument("file", type=_PLAN, metavar="P.json")
@json_option
def show(file: Path, as_json: bool) -> None:
    """Show what becomes of every node, and how its precision was found.

    Example: dtypelab plan show p.json
    """
    import quantize

    shown = quantize.Plan.from_json(file)
    if as_json:
        print_json({**shown.to_dict(), "coverage": shown.coverage})
        return
    say_text(shown.summary())


@plan.command(short_help="What is different between two plans.")
@click.argument("before", type=_PLAN, metavar="A.json")
@click.argument("after", type=_PLAN, metavar="B.json")
@json_option
def diff(before: Path, after: Path, as_json: bool) -> None:
    """List every entry that two plans do not have in common: settings, decisions, parameters.

    Example: dtypelab plan diff a.json b.json
    """
    import quantize
    from quantize.plan.diff import plan_diff

    changes = plan_diff(quantize.Plan.from_json(before), quantize.Plan.from_json(after))
    if as_json:
        print_json({"changes": [asdict(change) for change in changes]})
        return
    for change in changes:
        say(str(change))
    say(f"{len(changes)} differences")
