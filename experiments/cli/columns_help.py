"""Help that ends in what the columns of a results file mean."""

from __future__ import annotations

import click


class WithColumns(click.Command):
    """A command on results, the --help of which explains every column."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the columns, each with its unit, behind what there is."""
        from experiments.results.column_meanings import COMPUTED, MEANINGS

        super().format_epilog(ctx, formatter)
        meanings = {**MEANINGS, **COMPUTED}.items()
        with formatter.section("Columns"):
            formatter.write_dl(
                [(name, m.text + (f" [{m.unit}]" if m.unit else "")) for name, m in meanings]
            )
