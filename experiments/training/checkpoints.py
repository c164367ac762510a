"""The state of a training in a file: written whole or not at all, so that a kill loses at most the
steps since, and what goes on from it ends in the same bits."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import ConfigError
from experiments.data.datasets import read_npz
from experiments.files import atomic_path, remove_leftover
from experiments.layers.curves import Point

from .loss_scale import ScaleState
from .network import Floats

_META = "state"


@dataclass(frozen=True, eq=False)
class State:
    """A training between two steps.

    Attributes:
        arrays: weights and the optimizer's state by name, float32.
        scale: of the loss.
        step: how many steps are done.
        losses: of the steps since the last line of the curve.
        curve: its lines so far.
        seconds: that were computed for, in all processes.
    """

    arrays: Mapping[str, Floats]
    scale: ScaleState
    step: int = 0
    losses: tuple[float, ...] = ()
    curve: tuple[Point, ...] = ()
    seconds: float = 0.0

    @property
    def updates(self) -> int:
        """How many steps changed the weights."""
        return self.step - self.scale.skipped


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds a state of the training with this hash."""

    path: Path
    config_hash: str

    def save(self, state: State) -> None:
        """Write the state in place of the one before.

        Raises:
            ConfigError: the file cannot be written.
        """
        content = io.BytesIO()
        about = json.dumps(
            {
                "config_hash": self.config_hash, "names": list(state.arrays),
                "scale": asdict(state.scale), "step": state.step, "losses": state.losses,
                "curve": [list(asdict(p).values()) for p in state.curve],
                "seconds": state.seconds,
            }
        )  # fmt: skip
        arrays: dict[str, Any] = {f"array{k}": a for k, a in enumerate(state.arrays.values())}
        arrays[_META] = np.frombuffer(about.encode(), np.uint8)
        np.savez(content, **arrays)
        with atomic_path(self.path, locked=True) as temporary:
            temporary.write_bytes(content.getvalue())

    def load(self) -> State | None:
        """The state that the file holds; None if there is no file.

        Raises:
            ConfigError: it is damaged, or of another training.
        """
        remove_leftover(self.path)
        if not os.path.exists(self.path):
            return None
        arrays = read_npz(self.path)
        try:
            about: dict[str, Any] = json.loads(arrays[_META].tobytes())
            if about["config_hash"] != self.config_hash:
                raise ConfigError(f"{self.path} is a checkpoint of another training; remove it")
            return State(
                {name: arrays[f"array{k}"] for k, name in enumerate(about["names"])},
                ScaleState(**about["scale"]),
                about["step"],
                tuple(about["losses"]),
                tuple(Point(*line) for line in about["curve"]),
                about["seconds"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.path} is no checkpoint of a training: {error}") from error
