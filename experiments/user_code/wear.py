"""What a cell's code did to its process beyond its own results, so that no later cell sees it."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from .keeper import children

#: Modules whose functions results rest on.
_TRUSTED = {"numpy": np, "numpy.linalg": np.linalg, "numpy.random": np.random}


@dataclass(frozen=True)
class State:
    """Of this process, as far as code of a user may change it."""

    surroundings: dict[str, Any]
    trusted: dict[str, dict[str, int]]

    @classmethod
    def now(cls) -> State:
        """As it is."""
        try:
            folder = os.getcwd()
        except OSError:  # it was removed
            folder = ""
        mask = os.umask(0)
        os.umask(mask)
        found: dict[str, Any] = {
            "folder": folder,
            "umask": mask,
            "environment": dict(os.environ),
            "signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "threads": {thread.ident for thread in threading.enumerate()},
            "processes": set(children(os.getpid())),
            "floating-point errors": np.geterr(),
        }
        return cls(found, {name: _held(module) for name, module in _TRUSTED.items()})

    def worn(self, since: State) -> bool:
        """Whether it differs, so that another process should run the cells that follow."""
        return self.surroundings != since.surroundings

    def replaced(self, since: State) -> list[str]:
        """Functions of numpy that were replaced or removed."""
        return [
            f"{module}.{name}"
            for module, before in since.trusted.items()
            for name, what in before.items()
            if self.trusted[module].get(name) != what
        ]


def _held(module: ModuleType) -> dict[str, int]:
    """Names of functions, and which objects they are (types get replaced for compatibility)."""
    found = vars(module).items()
    return {name: id(f) for name, f in found if callable(f) and not isinstance(f, type)}
