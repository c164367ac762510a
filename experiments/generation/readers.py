"""Compiled decoders that remember what they have read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.boundary.elements import numbers

from .decoders import IDS, LOGITS, MASK, POSITIONS, Interface

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.decoding.session import Decoder

Array = NDArray[Any]


class Reader(ABC):
    """A decoder and the ids `seen` by it. `read` takes more ids, and gives the scores of the next.

    Args:
        decoder: its interface.
        at_once: whether ids may be read several in a call. One at a time, there are none to mask,
            which a format may not do (see `number_systems.masks`).
    """

    #: Where keys and values are.
    cache = ""

    def __init__(self, decoder: Interface, at_once: bool = True):
        self.decoder = decoder
        self.at_once = at_once or not decoder.pasts
        self.seen: list[int] = []

    def read(self, ids: Sequence[int]) -> Array:
        """Scores [len(ids), vocabulary] of what follows each of the ids.

        Raises:
            InputError: an id, or how many there are, is beyond what the model has.
        """
        if not self.at_once and len(ids) > 1:
            return np.concatenate([self.read([one]) for one in ids])
        scores = self._scores(ids)
        self.seen += ids
        return numbers(np.asarray(scores))[0, -len(ids) :]

    def forget(self) -> None:
        """Begin again with nothing read."""
        self.seen = []
        self._forget()

    @abstractmethod
    def _scores(self, ids: Sequence[int]) -> Array:
        """Scores [1, n, vocabulary], those of `ids` last."""

    @abstractmethod
    def _forget(self) -> None:
        """Keys and values of what was read are no longer wanted."""

    def _row(self, name: str, values: Sequence[int]) -> Array:
        return np.asarray([list(values)], self.decoder.dtypes[name])


class FedBack(Reader):
    """What a call gives of keys and values goes into the next; without any, all is read again."""

    cache = "fed back"

    def __init__(self, executable: Executable, decoder: Interface, at_once: bool = True):
        super().__init__(decoder, at_once)
        self.executable = executable
        self._forget()
        if not decoder.pasts:
            self.cache = "none"

    def _forget(self) -> None:
        types = self.decoder.dtypes
        self._past: Mapping[str, Array] = {
            name: np.zeros(dims, types[name]) for name, dims in self.decoder.pasts.items()
        }

    def _scores(self, ids: Sequence[int]) -> Array:
        before = len(self.seen) if self._past else 0
        given = [*ids] if self._past else [*self.seen, *ids]
        feed: dict[str, Array] = {IDS: self._row(IDS, given), **self._past}
        if MASK in self.decoder.extras:
            feed[MASK] = np.ones((1, before + len(given)), self.decoder.dtypes[MASK])
        if POSITIONS in self.decoder.extras:
            feed[POSITIONS] = self._row(POSITIONS, range(before, before + len(given)))
        results = self.executable(feed)
        named = results if isinstance(results, list) else [results]
        found = dict(zip(self.decoder.outputs, named, strict=True))
        self._past = {n: found[present] for n, present in self.decoder.presents.items()}
        return np.asarray(found[LOGITS])


class InPlace(Reader):
    """Keys and values stay in memory with room for `capacity` positions."""

    cache = "in place"

    def __init__(self, compiled: Decoder, decoder: Interface, capacity: int, at_once: bool = True):
        super().__init__(decoder, at_once)
        self.session = compiled.session(capacity)
        self._at = list(compiled.outputs).index(LOGITS)

    def _forget(self) -> None:
        self.session.rewind()

    def _scores(self, ids: Sequence[int]) -> Array:
        results = self.session({IDS: self._row(IDS, ids)})
        return np.asarray(results[self._at] if isinstance(results, list) else results)
