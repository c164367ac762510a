"""dtypelab dtype check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

from .common import json_option, print_json, say, show

if TYPE_CHECKING:
    from datatypes.proof import Report, Row


@click.command(short_help="Prove that compiled code computes what a format means.")
@click.argument("name", metavar="NAME")
@click.option("--exhaustive", is_flag=True, help="All 2^32 pairs of add and mul (16 bits).")
@click.option("--lowering", metavar="KIND", help="library, table or vector.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of the samples.",
)
@json_option
def check(name: str, exhaustive: bool, lowering: str | None, seed: int, as_json: bool) -> None:
    """Check that compiled code computes in a format what the format means, bit for bit.

    Every code, all pairs of operands up to 8 bits, above that every tie and extreme and a sample;
    functions, casts, sums of products; for every instruction set that this machine has. Exits with
    1 if anything differs, and shows what.

    Example: dtypelab dtype check posit16_es1 --exhaustive
    """
    report = _with_bar(name, lowering, exhaustive, seed)
    if as_json:
        print_json({"passed": report.passed, **asdict(report)})
    else:
        _print(report)
    if not report.passed:
        click.get_current_context().exit(1)


def _with_bar(name: str, lowering: str | None, exhaustive: bool, seed: int) -> Report:
    """Check with a bar on a terminal's stderr, and without one elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from datatypes.proof import Progress, check_format

    console = Console(stderr=True)
    columns = (
        TextColumn("checking"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[s]}"),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0, s="")

        def watch(p: Progress) -> None:
            part = p.pairs / p.of_pairs if p.of_pairs else 0.0
            state = f"{p.step} ({part:.1%} of its pairs)" if p.of_pairs else p.step
            bar.update(task, completed=p.done + part, total=p.total, s=state)

        return check_format(name, lowering, exhaustive, seed, watch=watch)


def _print(report: Report) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("property", "against", "targets", "cases", "wrong", "seconds"):
        justify: Literal["left", "right"] = "left" if column in ("property", "against") else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for (name, against), rows in _by_property(report).items():
        targets = sum(bool(row.target) for row in rows)
        cases, wrong = sum(row.cases for row in rows), sum(row.wrong for row in rows)
        seconds = sum(row.seconds for row in rows)
        table.add_row(
            name,
            against,
            str(targets or "-"),
            f"{cases:,}",
            f"{wrong:,}" if wrong else "-",
            f"{seconds:.2f}",
        )
    show(table)
    for row in report.rows:
        _print_examples(row)
    _print_reasons("not compared", report.excluded)
    _print_reasons("not checked", report.missing)
    cases, failed = sum(row.cases for row in report.rows), sum(bool(r.wrong) for r in report.rows)
    verdict = "passed" if report.passed else f"FAILED in {failed} of {len(report.rows)} properties"
    say(f"{report.format}, {report.lowering} lowering: {verdict} ({cases:,} cases)")


def _by_property(report: Report) -> dict[tuple[str, str], list[Row]]:
    """The rows of all targets together."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in report.rows:
        found.setdefault((row.name, row.against), []).append(row)
    return found


def _print_examples(row: Row) -> None:
    for example in row.examples:
        where = f" on {row.target}" if row.target else ""
        operands = ", ".join(example.operands)
        say(
            f"{row.name}{where}: operands {operands}; got {example.got}, "
            f"expected {example.expected} ({row.against})"
        )


def _print_reasons(title: str, reasons: Mapping[str, str]) -> None:
    for name, reason in reasons.items():
        say(f"{title}: {name} ({reason})")
