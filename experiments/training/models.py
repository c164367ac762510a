"""Model files to train, for examples of a shape."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.errors import ConfigError, DtypelabError
from experiments.zoo import model_files

if TYPE_CHECKING:
    from compiler.ir.expr import IRModule

_MOST_NUMBERS = 1 << 22
"""Numbers of the input of one call: of photos of 224 x 224 pixels, 27."""


def at_once(count: int, example: tuple[int, ...]) -> int:
    """How many of `count` examples go through a network together, for the memory's sake: all of
    them, or for large ones a number that divides `count`."""
    most = max(1, _MOST_NUMBERS // prod(example))
    return next(n for n in range(min(count, most), 0, -1) if count <= most or count % n == 0)


def model(path: Path, batch: int, example: tuple[int, ...]) -> IRModule:
    """The imported model, for so many examples at once."""
    try:
        names = model_files.input_names(path)
        if len(names) != 1:
            raise ConfigError(f"training takes models with one input, not {', '.join(names)}")
        return model_files.load_model(path, ((names[0], (batch, *example)),))
    except DtypelabError as error:
        raise ConfigError(f"{path.name} in batches of {batch}: {error}") from error
