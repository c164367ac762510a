"""Differences between cells that saw the same sequences, with intervals: language models side by
side.

A sequence that is hard for one network is hard for the other, so differences sequence by sequence
vary much less than the figures do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.errors import ConfigError, unknown
from experiments.measure.statistics import ratio_of_sums
from experiments.results.row_names import judged_outputs, system_names
from experiments.results.store import read_rows

from .sequences import SUMS, read_sequences, sequences_path

if TYPE_CHECKING:
    import pandas as pd

Float64 = NDArray[np.float64]
FLOAT32 = "float32"
_AGAIN = "take its row out of the results, and run the sweep with --resume"


@dataclass(frozen=True)
class Cell:
    """A row that was judged by tokens: its network, what it is called there, and sums over the
    tokens of every sequence, by their names."""

    network: tuple[str, ...]
    model: str
    system: str
    config_hash: str
    sums: dict[str, Float64]

    @property
    def kl(self) -> float:
        """The mean divergence of a token from float32."""
        return float(self.sums["kl_float32"].sum() / self.sums["tokens"].sum())


@dataclass(frozen=True)
class Difference:
    """How much more loss and divergence from float32 a token has in one cell than in another.

    In nats, with 95 % intervals; `perplexity_ratio` is the one's perplexity over the other's. Of
    `sequences` sequences that both saw, with `tokens` tokens that count. NaN without labels.
    """

    model: str
    system: str
    against: str
    sequences: int
    tokens: int
    perplexity_ratio: float
    loss_difference: float
    loss_low: float
    loss_high: float
    kl_difference: float
    kl_low: float
    kl_high: float


def paired_differences(
    results: str | os.PathLike[str] | pd.DataFrame,
    against: str = FLOAT32,
    sequences: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Every cell of a sweep of language models against one cell of the same network, sequence by
    sequence: a line each, with the fields of `Difference`.

    Args:
        results: a results file, or rows of one (then `sequences` says where their sequences are).
        against: the system that the others are compared with, as tables call it.
        sequences: the file of sequences, by default the one beside the results.

    Raises:
        ConfigError: no row was judged by tokens, the file of sequences is not there, or no network
            has a row of that name.
    """
    import pandas as pd

    if not isinstance(results, pd.DataFrame):
        sequences = sequences_path(results) if sequences is None else sequences
        results = read_rows(results)
    if sequences is None:
        raise ConfigError("rows alone do not say where the file of their sequences is: name it")
    cells = cells_of(results, sequences)
    named = [c.system for c in cells]
    if against not in (*named, FLOAT32):
        raise ConfigError(unknown("system", against, named))
    lines = []
    for members in by_network(cells):
        base = next((c for c in members if c.system == against), None)
        if base is None and against == FLOAT32:
            base = _float32(members[0])
        if base is not None:
            lines += [difference(c, base) for c in members if c is not base]
    return pd.DataFrame(lines, columns=[f.name for f in fields(Difference)])


def cells_of(rows: pd.DataFrame, sequences: str | os.PathLike[str]) -> list[Cell]:
    """The rows that were judged by tokens, in order.

    Raises:
        ConfigError: there is none, or the file of sequences is not there, or lacks some of a row.
    """
    named = zip(rows.to_dict("records"), system_names(rows), judged_outputs(rows), strict=True)
    judged = [line for line in named if not math.isnan(line[0]["tokens"])]
    if not judged:
        raise ConfigError(
            'no row was judged by tokens: give the specification metric = "perplexity"'
        )
    lines = dict(list(read_sequences(sequences).groupby("config_hash", sort=False)))
    found = []
    for row, system, output in judged:
        own = lines.get(row["config_hash"])
        if own is None:
            raise ConfigError(
                f"{sequences} has no sequences of {row['model']} in {system}: {_AGAIN}"
            )
        ordered = own.sort_values("sequence")
        if ordered["sequence"].tolist() != list(range(int(row["n_eval"]))):
            raise ConfigError(
                f"{sequences} has not each of the {row['n_eval']:.0f} sequences of {row['model']} "
                f"in {system} once: {_AGAIN}"
            )
        sums = {name: ordered[name].to_numpy(np.float64) for name in SUMS}
        network = (row["model_sha256"], row["dataset_sha256"], output)
        found.append(Cell(network, row["model"], system, row["config_hash"], sums))
    return found


def by_network(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cells of one network and its data together."""
    for network in dict.fromkeys(c.network for c in cells):
        yield [c for c in cells if c.network == network]


def _float32(cell: Cell) -> Cell:
    """What a cell says of float32."""
    loss, zero = cell.sums["loss_fp32"], np.zeros_like(cell.sums["tokens"])
    sums = cell.sums | {"loss": loss, "kl_float32": zero, "agreed": cell.sums["tokens"]}
    return Cell(cell.network, cell.model, FLOAT32, "", sums)


def difference(cell: Cell, base: Cell) -> Difference:
    """One cell against another of the same network, on the sequences that both saw.

    Raises:
        ConfigError: other tokens count in them.
    """
    n = min(len(cell.sums["tokens"]), len(base.sums["tokens"]))
    a, b = ({name: s[:n] for name, s in c.sums.items()} for c in (cell, base))
    tokens = a["tokens"]
    if not np.array_equal(tokens, b["tokens"]):
        raise ConfigError(
            f"{cell.model}: {cell.system} and {base.system} were not judged by the same tokens"
        )
    with np.errstate(invalid="ignore"):
        loss = ratio_of_sums(a["loss"] - b["loss"], tokens)
        kl = ratio_of_sums(a["kl_float32"] - b["kl_float32"], tokens)
    ratio = math.exp(loss[0]) if loss[0] < 700 else math.inf if loss[0] > 0 else math.nan
    total = int(tokens.sum())
    return Difference(cell.model, cell.system, base.system, n, total, ratio, *loss, *kl)
