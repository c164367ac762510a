"""Tables in files that grow: rows of one command behind those of others."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compiler.errors import ConfigError
from compiler.files.reading import read_bytes
from experiments.files import check_writable

if TYPE_CHECKING:
    import pandas as pd


def table_before(
    path: str | os.PathLike[str] | None, kind: str, *columns: Sequence[str]
) -> list[pd.DataFrame]:
    """The table that is in a file already, as the texts that it holds, so that no number changes
    when it is written again; nothing if there is no file.

    Args:
        path: of the file; None: there is none.
        kind: what rows are of, for messages.
        columns: what its columns may be: today's, or older ones.

    Raises:
        ConfigError: it is no file, cannot be written, or holds something else.
    """
    import pandas as pd

    if path is None:
        return []
    check_writable(path, appended=True)
    if not os.path.exists(path):
        return []
    content = read_bytes(path, "the table")
    try:
        table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read as a table: {error}") from error
    if [*table.columns] not in [[*names] for names in columns]:
        raise ConfigError(f"{path} is no table of {kind}: give another file, or remove it")
    return [table]
