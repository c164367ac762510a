"""dtypelab sweep."""

from __future__ import annotations

from pathlib import Path

import click

from .common import json_option, print_json, show


@click.command(short_help="Run a sweep and write its results as CSV.")
@click.argument("spec", metavar="SPEC.toml")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="NAME.csv",
    help="Results.",
)
@click.option("--resume", is_flag=True, help="Continue results that exist.")
@click.option("--retry-failed", is_flag=True, help="Continue, and run failed cells again.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes.",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Run on the workers of this dask.distributed scheduler."
)
@json_option
def sweep(
    spec: str,
    out: Path,
    resume: bool,
    retry_failed: bool,
    jobs: int,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Run every combination of models, schemes, calibrators, targets and threads in SPEC.toml.

    SPEC.toml may also be the name of a shipped specification (quickstart). A sweep that was
    stopped, even killed, continues with --resume and loses nothing.

    Example: dtypelab sweep quickstart -o quickstart.csv
    """
    from experiments.runner import sweep as run_sweep
    from experiments.table import results_table

    rows = run_sweep(
        spec, out, resume=resume, jobs=jobs, retry_failed=retry_failed, scheduler=scheduler
    )
    failed = int((rows["status"] != "ok").sum())
    if as_json:
        print_json({"out": str(out), "rows": rows.to_dict("records"), "failed": failed})
        return
    show(results_table(rows))
    click.echo(f"{len(rows)} rows in {out}" + (f", {failed} of them failed" if failed else ""))
