"""dtypelab sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from experiments.devices import client
from experiments.spec.shipped import shipped

from .common import device_options, json_option, print_json, say, show

if TYPE_CHECKING:
    import pandas as pd

    from experiments.running.estimates import Estimate

ALL_FAILED = 1
"""Exit code when no cell came to a result."""


@click.command(short_help="Run a sweep and write its results as CSV.")
@click.argument("spec", metavar="SPEC.toml")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="NAME.csv", help="Results.")
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
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace what SPEC.toml says, for example latency.runs=5; may be repeated.",
)
@device_options
@click.option("--dry-run", is_flag=True, help="Only list the cells, and estimate the time.")
@json_option
def sweep(
    spec: str,
    out: Path | None,
    resume: bool,
    retry_failed: bool,
    jobs: int,
    scheduler: str | None,
    settings: Sequence[str],
    device: str | None,
    token_file: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run every combination of models, schemes, calibrators, targets and threads in SPEC.toml.

    SPEC.toml may also be the name of a shipped specification ({shipped}). A sweep that was stopped,
    even killed, continues with --resume and loses nothing. Cells that fail are rows with the
    reason, and stderr says how many; the exit code is 1 where every one failed. With --device, all
    cells run there, and networks are compiled here.

    Example: dtypelab sweep quickstart -o quickstart.csv
    """
    from experiments.results.terminal import results_table
    from experiments.running.runner import sweep as run_sweep

    client.use_token_file(token_file)
    if device:
        settings = [*settings, f"device={json.dumps(device)}"]
    if dry_run:
        _list(spec, settings, out, as_json)
        return 0
    if out is None:
        raise click.UsageError("name the results: -o NAME.csv (or only list cells: --dry-run)")
    rows = run_sweep(
        spec,
        out,
        resume=resume,
        jobs=jobs,
        retry_failed=retry_failed,
        scheduler=scheduler,
        settings=settings,
    )
    failed = int((rows["status"] != "ok").sum())
    code = ALL_FAILED if failed == len(rows) else 0
    if as_json:
        print_json({"out": str(out), "rows": rows.to_dict("records"), "failed": failed})
    else:
        show(results_table(rows))
        say(f"{len(rows)} rows in {out}" + (f", {_some(failed, rows)}" if failed else ""))
    if failed:
        why = f"dtypelab table {out} --columns model,scheme,status,error says why"
        say(f"dtypelab: {_some(failed, rows)}; {why}", err=True)
    return code


sweep.help = str(sweep.help).format(shipped=", ".join(shipped()))


def _some(failed: int, rows: pd.DataFrame) -> str:
    count = f"all {failed}" if failed == len(rows) else f"{failed} of {len(rows)}"
    return f"{count} cells failed"


def _list(spec: str, settings: Sequence[str], out: Path | None, as_json: bool) -> None:
    """The cells, and what they take; those in `out` as recorded there."""
    from experiments.running.estimates import estimates, grid_table, minutes
    from experiments.spec.specification import apart

    recorded = [out] if out else []
    found, _ = apart(spec, settings, lambda s: estimates(s.cells, s.workload.data, recorded))
    total = sum(e.seconds for e in found if not e.recorded)
    if as_json:
        cells = [
            {**e.cell.specification(), "seconds": e.seconds, "recorded": e.recorded}
            | ({"error": e.error} if e.error else {})
            for e in found
        ]
        print_json({"cells": cells, "seconds": total})
        return
    show(grid_table(found))
    done = sum(e.recorded for e in found)
    say(
        f"{len(found)} cells of {len({e.cell.model.name for e in found})} networks, "
        + (f"{done} of them in {out}, the others " if done else "")
        + f"about {minutes(total)} alone on this machine"
    )
    for error, labels in _errors(found).items():
        say(f"{labels[0]}{_others(labels)}: {error}")


def _errors(found: Sequence[Estimate]) -> dict[str, list[str]]:
    """Why cells will fail, and which."""
    out: dict[str, list[str]] = {}
    for e in found:
        if e.error:
            engine = f" {e.cell.engine}" if e.cell.engine else ""
            label = f"{e.cell.model.name} {e.cell.scheme.label}{engine}"
            out.setdefault(e.error, []).append(label)
    return out


def _others(labels: Sequence[str]) -> str:
    return f" and {len(labels) - 1} more" if len(labels) > 1 else ""
