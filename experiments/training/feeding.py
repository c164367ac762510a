"""What each step of a training reads: examples in an order, moved and mirrored, and what their
scores are to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .data import Examples
from .initial import mirrored, moved, order
from .models import at_once
from .network import Floats
from .programs import Programs, float32_shares, in_parts, one_hot
from .step import TARGETS

if TYPE_CHECKING:
    from .spec import Run


class Feeding:
    """The batches of a run.

    Where layers before those that are trained stay as they are, what these give is computed once
    for each view of the examples, `run.views` of them, each moved and mirrored in its own way; an
    epoch has one. Otherwise images are moved in every step anew.
    """

    def __init__(self, run: Run, made: Programs, data: Examples, threads: int):
        self.run, self.made, self.threads = run, made, threads
        self.x = data.x[: run.n_train]
        self.targets: Floats | None = None
        if not run.of_model:
            assert data.y is not None
            self.targets = one_hot(data.y[: run.n_train], made.network.classes)
        self._order: tuple[int, NDArray[np.intp]] = (-1, np.zeros(0, np.intp))
        self._views: dict[int, tuple[tuple[NDArray[Any], ...], Floats]] = {}

    def batch(self, step: int) -> NDArray[np.intp]:
        """The numbers of the examples of a step."""
        epoch, place = divmod(step, self.run.steps_an_epoch)
        if self._order[0] != epoch:
            self._order = epoch, order(self.run.seed, epoch, self.run.n_train)
        start = place * self.run.batch
        return self._order[1][start : start + self.run.batch]

    def at(self, step: int) -> dict[str, NDArray[Any]]:
        """Inputs and targets of a step, by the names of the step's parameters."""
        chosen = self.batch(step)
        if self.made.front is None:
            x = self._changed(self.x[chosen], step)
            arrays: tuple[NDArray[Any], ...] = (x,)
            targets = self._shares(len(x))(x) if self.targets is None else self.targets[chosen]
        else:
            whole, wanted = self._view(step // self.run.steps_an_epoch % self.run.views)
            arrays, targets = tuple(a[chosen] for a in whole), wanted[chosen]
        return {**dict(zip(self.made.step.inputs, arrays, strict=True)), TARGETS: targets}

    def _view(self, k: int) -> tuple[tuple[NDArray[Any], ...], Floats]:
        """Of all examples as they are in a view: what the trained layers read, and the targets."""
        if k not in self._views:
            x = self._changed(self.x, k)
            targets = self.targets
            if targets is None:
                size = at_once(len(x), x.shape[1:])
                shares = self._shares(size)
                (targets,) = in_parts(lambda part: (shares(part),), (x,), size)
            self._views[k] = self.made.features(x), targets
        return self._views[k]

    def _changed(self, x: Floats, draw: int) -> Floats:
        run = self.run
        x = moved(x, run.seed, draw, run.shift) if run.shift else x
        return mirrored(x, run.seed, draw) if run.mirror else x

    def _shares(self, batch: int) -> Callable[[Floats], Floats]:
        run = self.run
        return float32_shares(
            run.path, run.model_sha256, batch, self.x.shape[1:], run.rules.temperature, self.threads
        )
