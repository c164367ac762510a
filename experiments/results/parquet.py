"""Tables as Parquet files, for those who have the extra `parquet`.

Sweeps append to CSV; a Parquet file is a whole table, written at once, with the same columns, texts
as strings and numbers bit for bit.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError
from compiler.files.reading import ARRAYS, open_file
from experiments.files import atomic_path

if TYPE_CHECKING:
    import pandas as pd

SUFFIX = ".parquet"


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file is Parquet, by its name."""
    return Path(path).suffix == SUFFIX


def write_parquet(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table, whole or not at all.

    Raises:
        ConfigError: pyarrow is not installed, or `path` cannot be written.
    """
    _need_pyarrow(path)
    with atomic_path(path) as temporary:
        table.to_parquet(temporary, engine="pyarrow", index=False)


def read_parquet(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The table in a Parquet file.

    Raises:
        ConfigError: pyarrow is not installed, or the file cannot be read.
    """
    import pandas as pd

    _need_pyarrow(path)
    open_file(path, "results", most=ARRAYS).close()  # a file, not too large
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError) as error:
        # pyarrow's own errors are ValueErrors.
        raise ConfigError(f"cannot read {path} as Parquet: {error}") from error


def _need_pyarrow(path: str | os.PathLike[str]) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            f"{path}: Parquet files need pyarrow; install dtypelab with its extra `parquet`"
        )
