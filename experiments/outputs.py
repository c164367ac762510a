"""Which output of a network is judged: metric, SQNR, cosine and agreement are those of one output.

Calibration looks at the whole network, all outputs included.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from compiler.errors import ConfigError, DtypelabError, ModelError, unknown

from . import model_files
from .datasets import Dataset
from .feeds import sample_of

if TYPE_CHECKING:
    from compiler.ir.types import TensorType

BATCH = 3
"""Where a model cannot be imported for a batch of any size."""


def chosen_output(path: Path, data: Dataset, metric: str, wanted: str = "") -> str:
    """The output called `wanted`, or the first that fits the metric and the labels; empty for a
    model that has one.

    An output fits if it has a row for every example; for top1 of at least two classes, for CTC of
    steps and classes, for rmse, r2 and cosine as large as a label. If none fits, it is the first
    with a row for every example, else the first.

    Raises:
        ConfigError: there is no output called `wanted`; names the nearest.
    """
    try:
        names = model_files.output_names(path)
    except ModelError:  # importing it will say so
        return wanted
    if wanted and wanted not in names:
        raise ConfigError(unknown("output", wanted, names))
    if len(names) < 2 or wanted:
        return wanted if len(names) > 1 else ""
    types = _types(path, data)
    rows = [name for name, t in types.items() if t is not None]
    fitting = [name for name in rows if _fits(types[name], metric, data)]
    return next(iter([*fitting, *rows, *names]))


def _types(path: Path, data: Dataset) -> dict[str, TensorType | None]:
    """Output name -> type, None for one that has no row for every example."""
    from compiler.ir.expr import atom_type
    from compiler.ir.types import TensorType

    sample = sample_of(data.x)
    fixed = model_files.fixed_batch(path, sample)
    sizes: list[int | str] = [fixed] if fixed is not None else ["N", BATCH]
    for batch in sizes:
        try:
            module = model_files.load_for_batch(path, sample, batch)
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


def _fits(t: TensorType | None, metric: str, data: Dataset) -> bool:
    assert t is not None
    own = t.shape[1:]
    if metric == "top1":
        return bool(own) and own[0] != 1 and all(d == 1 for d in own[1:])
    if metric in ("ctc_exact", "ctc_cer"):
        return len(own) == 2
    if metric in ("rmse", "r2", "cosine") and data.labelled:
        known = [d for d in own if isinstance(d, int)]
        return len(known) < len(own) or np.prod(known) == np.prod(data.y.shape[1:])
    return True
