"""dtypelab targets."""

from __future__ import annotations

import click

from .common import json_option, print_json, say


@click.command(short_help="The targets that there are, and what runs here.")
@json_option
def targets(as_json: bool) -> None:
    """List what --target may be: this machine's CPU, older ones, other machines, C, and GPUs.

    What runs here is for run, bench, tune and sweep; code for all of them is written by export.

    Example: dtypelab targets --json
    """
    from compiler.runtime.machines.registry import machines_of
    from compiler.target.cuda import ON_CPUS
    from compiler.target.registry import Target, kind_of, known_targets

    def runs(t: Target) -> list[str]:
        """Where code for it runs here."""
        if kind_of(t.kind).grid:
            return [f"-runner={name}" for name in ON_CPUS]
        if not t.elsewhere:
            return ["this machine"] if t.runnable else []
        return [m.name for m in machines_of(t) if not m.missing(t)] if t.kind == "llvm" else []

    def lacks(t: Target) -> str:
        known = machines_of(t) if t.elsewhere and t.kind == "llvm" else []
        return f"export only; {', or '.join(m.name for m in known)} would run it" if known else (
            "export only")  # fmt: skip

    found = [Target.anywhere(text) for text in known_targets()]
    rows = [
        {
            "target": t.text, "triple": t.triple, "cpu": t.cpu, "isa": t.isa,
            "pointer_bytes": t.pointer_bytes, "vector_bytes": t.vector_bytes, "runs": bool(runs(t)),
            "machines": runs(t),
        }
        for t in found
    ]  # fmt: skip
    if as_json:
        print_json({"targets": rows})
        return
    wide, triple, isa = (
        max(len(str(row[name])) for row in rows) for name in ("target", "triple", "isa")
    )
    for t in found:
        by = ", ".join(m for m in runs(t) if m != "this machine")
        where = f"runs here{f' ({by})' if by else ''}" if runs(t) else lacks(t)
        say(f"{t.text:<{wide}}  {t.triple:<{triple}}  {t.isa:<{isa}}  {where}")
