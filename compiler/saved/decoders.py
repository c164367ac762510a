"""Decoders in files: executables, and what sessions know of the caches that they keep."""

from __future__ import annotations

import os

from compiler.decoding.caches import Kept
from compiler.decoding.session import Decoder
from compiler.errors import ModelError
from compiler.runtime.executable import GraphExecutable
from compiler.saved.executables import read


def load_decoder(path: str | os.PathLike[str]) -> Decoder:
    """The decoder that `Decoder.save` wrote to a file; nothing is compiled.

    The file holds machine code: load only what you would also run.

    Raises:
        ModelError, LoweringError: as `compiler.load`; or the file holds no decoder.
    """
    exe = read(path)
    if not isinstance(exe, GraphExecutable) or not isinstance(exe.kept, Kept):
        raise ModelError(
            f"{os.fspath(path)} holds no decoder but an executable: load it with compiler.load"
        )
    return Decoder(exe)
