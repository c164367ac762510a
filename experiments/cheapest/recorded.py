"""What several searches found, as one table: the points of their fronts beside uniform formats."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.results.growing import table_before

from .bound import columns
from .held_out import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

    from .searching import Found

FRONT, CHOSEN, UNIFORM = "front", "chosen", "uniform"
"""What a row is: a point of the front; the assignment that was chosen for the bound (which may be
no point of the front, where the bound is not of SQNR); every layer in one candidate."""


@dataclass(frozen=True)
class Asked:
    """What a search was asked, and the seconds that it took with so many threads; of which
    revision of the source, if that is known."""

    model: str
    data: str
    bound: str
    n_calib: int
    seed: int
    threads: int
    seconds: float
    git_rev: str = ""
    git_dirty: str = ""


OF_SEARCH = (
    *("model", "data", "bound", "n_calib", "seed", "threads", "seconds", "git_rev"),
    *("git_dirty", "unit", "layers", "candidates", "evaluations"),
)
OF_ROW = (
    *("kind", "format", "accumulate", "cost", "metric", "sqnr_db", "predicted_db"),
    *("greedy_cost", "greedy_sqnr_db", "test_holds", "test_surely_holds"),
    *(*(f"test_{name}" for name in COLUMNS), "config"),
)
EARLIER = {"sqnr_db": "sqnr", "greedy_sqnr_db": "greedy_sqnr"}
"""What columns of the first tables were called."""
LATER = (
    *("git_rev", "git_dirty", "metric", "test_surely_holds", "test_metric_se"),
    *("test_sqnr_db_low", "test_kl_float32_high", "test_top1_agreement_low"),
)
"""Columns that they did not have."""


def rows(found: Found, asked: Asked) -> pd.DataFrame:
    """The front, the chosen assignment and the uniform formats of one search, a row each, by
    `OF_SEARCH` and `OF_ROW`; what a kind of row has not is empty."""
    import pandas as pd

    from quantize.config.file import write_toml

    from .held_out import choices

    chosen = {
        "cost": found.point.cost,
        **columns(found.point.figures),
        "predicted_db": found.point.predicted_db,
        "test_holds": found.holds,
        "test_surely_holds": found.surely_holds,
        **{f"test_{name}": value for name, value in found.test.items()},
        "config": write_toml(choices(found.config)),
    }
    table = pd.concat(
        [
            found.front.assign(kind=FRONT),
            pd.DataFrame([chosen]).assign(kind=CHOSEN),
            found.uniforms.assign(kind=UNIFORM),
        ],
        ignore_index=True,
    )
    search = {
        **asdict(asked),
        "seconds": round(asked.seconds, 1),
        "unit": found.unit,
        "layers": len(found.layers),
        "candidates": found.candidates,
        "evaluations": found.evaluations,
    }
    return table.assign(**search).reindex(columns=[*OF_SEARCH, *OF_ROW])


def written(table: pd.DataFrame, file: Path) -> None:
    """A table of searches as CSV: as other tables are, but for the lines of `config`, which stay
    lines, so that the cell is a file for `--config` as it stands."""
    from experiments.results.export import neutral

    neutral(table.drop(columns="config")).assign(config=table["config"])[[*table.columns]].to_csv(
        file, index=False
    )


def before(file: Path | None) -> list[pd.DataFrame]:
    """What a file holds already, an older one with the columns of today; nothing if there is none.

    Raises:
        ConfigError: it holds something else.
    """
    wanted = [*OF_SEARCH, *OF_ROW]
    first = [EARLIER.get(name, name) for name in wanted if name not in LATER]
    found = table_before(file, "searches", wanted, first)
    names = {old: new for new, old in EARLIER.items()}
    return [table.rename(columns=names).reindex(columns=wanted) for table in found]
