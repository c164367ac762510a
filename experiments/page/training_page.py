"""Runs of training as a page of their own: what every format comes to, and how the losses went."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from compiler._html import escaped
from compiler.errors import ConfigError
from experiments.files import atomic_path, check_outputs
from experiments.layers.curves import curves_path, read_curves
from experiments.layers.training_summary import Summary, summaries
from experiments.layers.trainings import read_runs

from . import palette
from .palette import Look, looks
from .tables import Column, forms, swatch, table
from .value_pictures import figure, svg

if TYPE_CHECKING:
    import pandas as pd

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 560, 300, 44, 24
_COLUMNS = (
    Column("model", "model", "The network.", False, False),
    Column("system", "formats", "Forward pass first; then what differs from it.", False, False),
    Column("runs", "runs", "Seeds.", sorts=False),
    Column("metric", "top-1 %", "The mean of the seeds, on the test examples.", sorts=False),
    Column("lost", "lost", "Points from float32, seed by seed.", sorts=False),
    Column("interval", "95 % interval", "Of that, by Student's t.", False, False),
    Column("skipped", "skipped", "Steps that changed nothing: gradients not finite.", sorts=False),
)


def training_page(
    runs: str | os.PathLike[str], out: str | os.PathLike[str], title: str | None = None
) -> Path:
    """Write a file of runs as one HTML page that needs nothing else.

    Raises:
        ConfigError: `runs` is no file of runs or none of them came to an end, or `out` cannot be
            written.
    """
    curves = curves_path(runs)
    check_outputs([out], [runs, curves])
    found = summaries(read_runs(runs))
    if not found:
        raise ConfigError(f"{runs} has no run that came to an end")
    look_of = looks(s.system for s in found)
    drawn = _curves(found, read_curves(curves), look_of) if os.path.exists(curves) else ""
    heading = escaped(title or Path(runs).stem)
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        f"<style>{style}{palette.style()}.curve {{ fill: none; stroke: var(--own); "
        f"stroke-width: 1.2 }}</style></head><body>{forms()}<main><h1>{heading}</h1>"
        f"<section><h2>Trainings</h2>{table('runs', _COLUMNS, (_line(s, look_of) for s in found))}"
        f"</section>{drawn}</main></body></html>\n"
    )
    with atomic_path(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(out)


def _line(s: Summary, look_of: Mapping[str, Look]) -> str:
    known = not math.isnan(s.low)
    texts = (
        f"{len(s.hashes)}", f"{100 * s.mean:.2f}",
        "" if math.isnan(s.lost) else f"{100 * s.lost:.2f}",
        f"{100 * s.low:.2f} to {100 * s.high:.2f}" if known else "", f"{s.skipped:.1f}",
    )  # fmt: skip
    name = f'<td class="text"><div>{swatch(look_of[s.system])}{escaped(s.system)}</div></td>'
    cells = "".join(f"<td>{t}</td>" for t in texts)
    return f'<td class="text">{escaped(s.model)}</td>{name}{cells}'


def _curves(found: Sequence[Summary], curves: pd.DataFrame, look_of: Mapping[str, Look]) -> str:
    """A picture a model: the loss over the steps, the mean of the seeds, on a logarithmic scale."""
    pictures = []
    for model in dict.fromkeys(s.model for s in found):
        lines = {s.system: _mean_loss(curves, s) for s in found if s.model == model}
        pictures.append(figure(model, _picture(model, lines, look_of)))
    return f'<section><h2>Losses</h2><div class="panels wide">{"".join(pictures)}</div></section>'


def _mean_loss(curves: pd.DataFrame, s: Summary) -> list[tuple[float, float]]:
    own = curves[curves["config_hash"].isin(s.hashes)]
    means = own.groupby("step")["loss"].mean()
    pairs = zip(means.index.to_numpy(), means.to_numpy(), strict=True)
    return [(float(step), float(loss)) for step, loss in pairs if 0 < loss < math.inf]


def _picture(
    model: str, lines: Mapping[str, Sequence[tuple[float, float]]], look_of: Mapping[str, Look]
) -> str:
    points = [p for line in lines.values() for p in line]
    if not points:
        return svg(_WIDTH, _HEIGHT, f"No finite losses of {model}", "")
    last = max(step for step, _ in points)
    low, high = (f(math.log10(loss) for _, loss in points) for f in (min, max))
    wide = max(high - low, 1e-9)

    def place(step: float, loss: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 8) * step / last
        y = 8 + (_HEIGHT - _BOTTOM - 8) * (high - math.log10(loss)) / wide
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<polyline class="curve c{look_of[name].colour}" points="'
        f'{" ".join(place(*p) for p in line)}"><title>{escaped(name)}</title></polyline>'
        for name, line in lines.items()
    ]
    ends = ((10**high, 12), (10**low, _HEIGHT - _BOTTOM))
    parts += [f'<text x="{_LEFT - 6}" y="{y}" text-anchor="end">{v:.2g}</text>' for v, y in ends]
    corner = f'x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end"'
    parts.append(f"<text {corner}>{last:.0f} steps</text>")
    return svg(_WIDTH, _HEIGHT, f"Losses of {model} in training, by format", "".join(parts))
