"""dtypelab zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .common import cell, json_option, print_json, say, show


@click.command(short_help="List the networks and data sets that have names.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="FILE.onnx", help="Copy.")
@json_option
def zoo(name: str | None, out: Path | None, as_json: bool) -> None:
    """List the networks and data sets that specifications and verbs know by name: where each comes
    from, whether it is here, and what to install if it is not.

    With NAME and -o, write that network as a file of your own.

    Example: dtypelab zoo light_squeezenet -o my_network.onnx
    """
    if (name is None) != (out is None):
        raise click.UsageError("give NAME and -o FILE.onnx together, or neither, to list")
    if name is not None and out is not None:
        _copy(name, out, as_json)
        return
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    from experiments import zoo as known
    from experiments.data import datasets

    models: list[dict[str, Any]] = [
        {
            "name": source.name,
            "origin": source.origin,
            "dataset": source.dataset,
            "available": source.present(),
            "install": source.install,
        }
        for source in known.sources().values()
    ]
    data: list[dict[str, Any]] = [
        {
            "name": name,
            "origin": known.DATASETS[name].origin if name in known.DATASETS else "shipped",
            "missing": known.DATASETS[name].missing if name in known.DATASETS else [],
        }
        for name in datasets.names()
    ]
    if as_json:
        print_json({"models": models, "datasets": data})
        return
    networks = Table("network", "from", "data set", "", box=None, pad_edge=False)
    for model in models:
        state = "here" if model["available"] else escape(model["install"])
        networks.add_row(*(cell(model[key]) for key in ("name", "origin", "dataset")), state)
    sets = Table("data set", "", "", box=None, pad_edge=False)
    for entry in data:
        lacks = f"needs {' and '.join(entry['missing'])}" if entry["missing"] else "here"
        sets.add_row(cell(entry["name"]), cell(entry["origin"]), lacks)
    show(Group(networks, "", sets))


def _copy(name: str, out: Path, as_json: bool) -> None:
    from compiler.errors import ConfigError, unknown
    from experiments import zoo as known
    from experiments.files import check_outputs, write_whole

    source = known.find(name)
    if source is None:
        raise ConfigError(unknown("network", name, known.sources()))
    check_outputs([out], [source])
    content = source.read_bytes()
    write_whole(out, content)
    if as_json:
        print_json({"name": name, "out": str(out), "bytes": len(content)})
        return
    say(f"{out}: {name}, {len(content) / 1024:.0f} KiB")
