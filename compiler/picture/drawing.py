"""A module as an SVG picture, by graphviz's `dot` or by our own layout."""

from __future__ import annotations

import shutil
import subprocess

from compiler._html import escaped
from compiler.errors import ConfigError
from compiler.ir.expr import IRModule
from compiler.picture.boxes import Box, Diagram, diagram
from compiler.picture.layered import layered_svg

COLOURS = {
    "input": "#d8ecd8", "output": "#d8ecd8", "operator": "#e6ecf5", "group": "#fbe9c9",
    "control": "#f3dbe6",
}  # fmt: skip
"""Fill of a box by its kind."""
_SECONDS = 60


def has_graphviz() -> bool:
    """Whether graphviz's `dot` is installed."""
    return shutil.which("dot") is not None


def svg_text(mod: IRModule, graphviz: bool | None = None) -> str:
    """The picture of `main` as SVG: operators, shapes, dtypes, fused groups.

    Args:
        mod: with inferred types; `compiler.optimize(mod)` shows what is fused.
        graphviz: whether graphviz makes the layout; None: if it is installed.

    Raises:
        ConfigError: graphviz is asked for, but not installed, or it fails.
    """
    shown = diagram(mod)
    if graphviz is None:
        graphviz = has_graphviz()
    if not graphviz:
        return layered_svg(shown, COLOURS)
    if not has_graphviz():
        raise ConfigError("graphviz is not installed: install it, or draw without it")
    try:
        done = subprocess.run(
            ["dot", "-Tsvg"], input=dot_text(shown), capture_output=True, text=True,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError("graphviz takes too long for this graph: draw without it") from None
    if done.returncode:
        raise ConfigError(f"graphviz failed: {(done.stderr.splitlines() or ['no reason'])[0]}")
    return done.stdout


def dot_text(shown: Diagram) -> str:
    """The picture in graphviz's language."""
    lines = [
        "digraph {",
        '  node [shape=plain fontname="monospace" fontsize=10]; edge [color="#667788"];',
    ]
    lines += [f"  b{k} [label=<{_label(box)}>];" for k, box in enumerate(shown.boxes)]
    lines += [f"  b{a} -> b{b};" for a, b in shown.edges]
    return "\n".join([*lines, "}"])


def _label(box: Box) -> str:
    rows = [f"<b>{escaped(box.title)}</b>", *map(escaped, box.lines)]
    cells = "".join(f'<tr><td align="left">{r}</td></tr>' for r in rows)
    table = f'<table border="1" cellborder="0" cellspacing="0" bgcolor="{COLOURS[box.kind]}">'
    return f"{table}{cells}</table>"
