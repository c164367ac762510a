"""What accuracy costs as one picture in a file: on paper of its own, with what its marks mean."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from compiler._html import escaped
from compiler.errors import ConfigError, unknown
from compiler.files.printable import printable
from experiments.files import atomic_path, check_outputs
from experiments.results.row_names import system_names
from experiments.results.store import read_rows

from .labels import shortened
from .palette import looks
from .picture import COLUMNS, HEIGHT, WIDTH, mark, panels

if TYPE_CHECKING:
    import pandas as pd

_LINE, _ENTRY, _MARGIN = 15, 198, 8


def sheet(
    results: str | os.PathLike[str],
    out: str | os.PathLike[str],
    models: Collection[str] = (),
    cost: str | None = None,
) -> Path:
    """Write the figure of merit over a cost, a panel a network, as an SVG file without script.

    Args:
        results: a results CSV.
        out: the picture.
        models: networks to show; none: all of them.
        cost: a column of `experiments.page.picture.COSTS`; by default latency where it was
            measured, else bytes.

    Raises:
        ConfigError: no results file or one without rows, no such network or cost, or `out` cannot
            be written.
    """
    check_outputs([out], [results])
    rows = read_rows(results)
    if rows.empty:
        raise ConfigError(f"{results} has no rows yet; run its sweep first")
    for name in models:
        if name not in set(rows["model"]):
            raise ConfigError(f"{results}: {unknown('network', name, list(rows['model']))}")
    chosen = rows[rows["model"].isin(list(models))] if models else rows
    text = sheet_svg(chosen, cost)
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(out)


def sheet_svg(rows: pd.DataFrame, cost: str | None = None) -> str:
    """The picture: panels, and below them the mark of every number system.

    Raises:
        ConfigError: an unknown cost.
    """
    drawn = panels(rows, cost)
    columns = min(len(drawn), COLUMNS)
    parts = []
    for k, (model, inner) in enumerate(drawn.items()):
        x, y = k % columns * WIDTH, k // columns * HEIGHT
        title = f'<text x="4" y="12" font-weight="bold" font-size="12">{escaped(model)}</text>'
        parts.append(f'<g transform="translate({x} {y})">{title}{inner}</g>')
    top, width = HEIGHT * -(-len(drawn) // columns), WIDTH * columns
    legend, height = _legend(rows, width, top + _LINE)
    width, height = width + 2 * _MARGIN, height + 2 * _MARGIN
    frame = f"{-_MARGIN} {-_MARGIN} {width} {height}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{frame}" width="{width}" role="img" '
        'aria-label="What accuracy costs, network by network" font-family="sans-serif" '
        f'font-size="10" fill="#1b1b1b" color="#1b1b1b"><rect x="{-_MARGIN}" y="{-_MARGIN}" '
        f'width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}{legend}</svg>\n'
    )


def _legend(rows: pd.DataFrame, width: int, top: int) -> tuple[str, int]:
    """A mark and a name for every number system, in columns; and where the last line ends."""
    known = looks(system_names(rows))
    columns = max(1, width // _ENTRY)
    parts = []
    for k, (name, look) in enumerate(known.items()):
        x, y = k % columns * (width / columns) + 8, top + k // columns * _LINE
        label = escaped(shortened(printable(name)))
        parts.append(
            f"{mark(look, f'translate({x:.1f} {y})')}<title>{escaped(printable(name))}</title>"
            f'</path><text x="{x + 10:.1f}" y="{y + 3.5}">{label}</text>'
        )
    return "".join(parts), top + -(-len(known) // columns) * _LINE
