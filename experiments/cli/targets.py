"""dtypelab targets."""

from __future__ import annotations

import click

from .common import json_option, print_json, say


@click.command(short_help="The targets that there are, and what runs here.")
@json_option
def targets(as_json: bool) -> None:
    """List what --target may be: this machine's CPU, older ones, other machines, and C.

    What runs here is for run, bench, tune and sweep; code for all of them is written by export.

    Example: dtypelab targets --json
    """
    from compiler.target.registry import Target, known_targets

    found = [Target.anywhere(text) for text in known_targets()]
    rows = [
        {
            "target": t.text, "triple": t.triple, "cpu": t.cpu, "isa": t.isa,
            "pointer_bytes": t.pointer_bytes, "vector_bytes": t.vector_bytes, "runs": t.runnable,
        }
        for t in found
    ]  # fmt: skip
    if as_json:
        print_json({"targets": rows})
        return
    wide = max(len(t.text) for t in found)
    for t in found:
        runs = "runs here" if t.runnable else "export only"
        say(f"{t.text:<{wide}}  {t.triple:<26}  {t.isa:<12}  {runs}")
