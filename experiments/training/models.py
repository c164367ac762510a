"""Model files to train, for examples of a shape."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError, DtypelabError
from experiments.zoo import model_files

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule


def model(path: Path, batch: int, example: tuple[int, ...]) -> IRModule:
    """The imported model, for so many examples at once."""
    try:
        names = model_files.input_names(path)
        if len(names) != 1:
            raise ConfigError(f"training takes models with one input, not {', '.join(names)}")
        return model_files.load_model(path, ((names[0], (batch, *example)),))
    except DtypelabError as error:
        raise ConfigError(f"{path.name} in batches of {batch}: {error}") from error
