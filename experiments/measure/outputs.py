"""Which output of a network is judged, and by what: metric, SQNR, cosine and agreement are those of
one output.

Calibration looks at the whole network, all outputs included.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError, DtypelabError, ModelError, unknown
from experiments.data.datasets import Dataset
from experiments.feeds import Feed, sample_of
from experiments.zoo import model_batches, model_files

from . import metric_choice
from .metric_choice import Judged

if TYPE_CHECKING:
    from compiler.types.tensor_types import TensorType

BATCH = 3
"""Where a model cannot be imported for a batch of any size."""


@dataclass(frozen=True)
class Choice:
    """The output that is judged (`name`: empty for a model that has one), the metric, and the one
    that would judge it if none were named."""

    judged: Judged
    name: str
    metric: str
    default_metric: str


def chosen(path: Path, data: Dataset, metric: str = "", wanted: str = "") -> Choice:
    """How a network is judged on some data.

    The output is the one called `wanted`, or the first that fits the metric and the labels: where
    no metric is named, here or by the data, the first that the labels are for. If none fits, it is
    the first with a row for every example, else the first.

    Raises:
        ConfigError: there is no output called `wanted`; names the nearest.
    """
    try:
        names = model_files.output_names(path)
    except ModelError:  # importing it will say so
        names = (wanted,)
    if wanted and wanted not in names:
        raise ConfigError(unknown("output", wanted, names))
    found = _candidates(path, data, names)
    if wanted:
        found = [o for o in found if o.name == wanted] or [Judged(wanted, None)]
    defaults = [metric_choice.default(o, data) for o in found]
    if named := metric or data.metric:
        fits = [not metric_choice.misfit(named, o, data) and not _one(named, o) for o in found]
    else:
        fits = [default != metric_choice.ANYWHERE for default in defaults]
    place = fits.index(True) if any(fits) else 0
    judged, default = found[place], defaults[place]
    name = wanted or judged.name if len(names) > 1 else ""
    return Choice(judged, name, metric or default, default)


def _one(metric: str, output: Judged) -> bool:
    """Whether a single class is all that top1 would have to choose from."""
    return metric == "top1" and output.dims is not None and output.dims[1:2] == (1,)


def _candidates(path: Path, data: Dataset, names: tuple[str, ...]) -> list[Judged]:
    """The outputs with a row for every example, or the first, as far as they are known.

    Of a single output the model file may say enough; else the model is imported.
    """
    if len(names) == 1:
        declared = model_files.declared_outputs(path).get(names[0])
        inner = (None,) if declared is None else declared[1:]
        stacked = isinstance(data.x, Feed) and data.x.stacked
        if not stacked and (None not in inner or (declared and len(declared) == 2)):
            return [Judged(names[0], declared)]
    types = _types(path, data)
    rows = [
        Judged(name, (None, *(d if isinstance(d, int) else None for d in t.shape[1:])))
        for name, t in types.items()
        if t is not None
    ]
    return rows or [Judged(names[0], None)]


def _types(path: Path, data: Dataset) -> dict[str, TensorType | None]:
    """Output name -> type, None for one that has no row for every example."""
    from compiler.ir.expr import atom_type
    from compiler.types.tensor_types import TensorType

    sample = sample_of(data.x)
    try:
        fixed = model_batches.fixed_batch(path, sample)
    except DtypelabError:
        return {}  # running it will say why
    sizes: list[int | str] = [fixed] if fixed is not None else ["N", BATCH]
    for batch in sizes:
        try:
            module = model_batches.load_for_batch(path, sample, batch)
        except DtypelabError:
            continue
        types = map(atom_type, module.main.results)
        return {
            name: t
            if isinstance(t, TensorType) and t.rank and str(t.shape[0]) == str(batch)
            else None
            for name, t in zip(module.attrs["outputs"], types, strict=True)
        }
    return {}  # running it will say why
