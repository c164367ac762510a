"""The file of sequences: what every sequence of a data set adds to the figures of a language model,
a CSV line each, beside the results file. Differences between cells are made of it, sequence by
sequence (see `paired`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.measure.tokens import TokenSums
from experiments.results.schema import Value

from .long_file import Kind, Line, LongFile, beside, read_long

if TYPE_CHECKING:
    import pandas as pd

_TEXT = ("run_id", "config_hash")
#: Sums over the tokens of a sequence that count; losses and divergences in nats.
SUMS = ("tokens", "loss", "loss_fp32", "kl_float32", "agreed")
SEQUENCE_COLUMNS = (*_TEXT, "sequence", *SUMS)
_KIND = Kind("file of sequences", SEQUENCE_COLUMNS, _TEXT, "a sweep that is judged by tokens")


def sequences_path(results: str | os.PathLike[str]) -> Path:
    """`study.sequences.csv` for the results file `study.csv`."""
    return beside(results, "sequences")


def is_sequences(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of sequences, by its name."""
    return ".sequences" in Path(path).suffixes


def sequence_lines(row: Mapping[str, Value], sums: TokenSums) -> list[Line]:
    """The lines of a configuration, without its run: `row` is its line in the results."""
    columns = (sums.tokens, sums.loss, sums.loss_fp32, sums.kl, sums.agreed)
    lines: list[Line] = []
    for k, (tokens, loss, loss_fp32, kl, agreed) in enumerate(zip(*columns, strict=True)):
        lines.append({
            "config_hash": row["config_hash"], "sequence": k, "tokens": int(tokens),
            "loss": float(loss), "loss_fp32": float(loss_fp32), "kl_float32": float(kl),
            "agreed": None if agreed != agreed else int(agreed),
        })  # fmt: skip
    return lines


class SequencesFile(LongFile):
    """A CSV of sequences."""

    kind = _KIND


def read_sequences(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A file of sequences, CSV or Parquet, as a table; missing numbers are NaN; see `read_long`."""
    return read_long(path, _KIND)
