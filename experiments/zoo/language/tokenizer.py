"""Byte-level byte-pair encoding: text becomes ids and ids become text, without losing a byte.

A tokenizer is a JSON file: `special` (names of ids that no text gives), `merges` (pairs of ids, in
the order they were learnt) and `pattern` (how text is cut before merging). Ids 0 to 255 are bytes,
then come the special ones, then one id a merge. Source of the algorithm: Sennrich, Haddow and Birch
2016, over bytes as in GPT-2 (Radford et al. 2019).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from compiler.errors import ConfigError

#: Words with the space before them, single digits, runs of signs, a line's end with the next line's
#: indentation; every byte is in one of them.
PATTERN = r" ?[A-Za-z_\x80-\xff]+|[0-9]| ?[^\sA-Za-z0-9_\x80-\xff]+|\n *|\s"
#: The special id that stands before every document.
START = "<start>"


@dataclass(frozen=True)
class Tokenizer:
    """Special ids, merges in the order of their learning, and the pattern that cuts text."""

    special: tuple[str, ...]
    merges: tuple[tuple[int, int], ...]
    pattern: str = PATTERN

    @property
    def size(self) -> int:
        """How many ids there are."""
        return 256 + len(self.special) + len(self.merges)

    @property
    def start(self) -> int | None:
        """The id before every document, None where the tokenizer has none."""
        return 256 + self.special.index(START) if START in self.special else None

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of every id; special ones have none."""
        pieces = [bytes([value]) for value in range(256)] + [b""] * len(self.special)
        for left, right in self.merges:
            pieces.append(pieces[left] + pieces[right])
        return pieces

    @cached_property
    def _ranks(self) -> dict[tuple[int, int], int]:
        return {pair: 256 + len(self.special) + at for at, pair in enumerate(self.merges)}

    @cached_property
    def _cut(self) -> re.Pattern[bytes]:
        return re.compile(self.pattern.encode("latin-1"))

    def _word(self, word: bytes) -> list[int]:
        """The word's bytes with the earliest learnt merge applied while there is one."""
        ids, ranks = list(word), self._ranks
        while len(ids) > 1:
            new, pair = min((ranks.get(p, self.size), p) for p in pairwise(ids))
            if new == self.size:
                break
            ids = merged(ids, pair, new)
        return ids

    def encode(self, text: str | bytes) -> list[int]:
        """Ids of a text, without a start id. Text that is not UTF-8 may be given as bytes."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        known: dict[bytes, list[int]] = {}
        ids: list[int] = []
        for word in self._cut.findall(data):
            if word not in known:
                known[word] = self._word(word)
            ids += known[word]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 (a character cut in two) become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids.

        Raises:
            ConfigError: an id that the tokenizer does not have.
        """
        ids = [int(one) for one in ids]
        if bad := [one for one in ids if not 0 <= one < self.size]:
            raise ConfigError(f"id {bad[0]} is none of the tokenizer's {self.size}")
        return b"".join(self.pieces[one] for one in ids)

    def to_json(self) -> str:
        """What `read` reads."""
        merges = [list(pair) for pair in self.merges]
        fields = {"special": list(self.special), "pattern": self.pattern, "merges": merges}
        return json.dumps({"kind": "byte-level bpe"} | fields, separators=(",", ":")) + "\n"


def merged(ids: Sequence[int], pair: tuple[int, int], new: int) -> list[int]:
    """`ids` with every `pair`, from the left, replaced by `new`."""
    out: list[int] = []
    at = 0
    while at < len(ids):
        if at + 1 < len(ids) and ids[at] == pair[0] and ids[at + 1] == pair[1]:
            out.append(new)
            at += 2
        else:
            out.append(ids[at])
            at += 1
    return out


def read(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a JSON file.

    Raises:
        ConfigError: there is no such file, or it is no tokenizer.
    """
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        merges = tuple((int(left), int(right)) for left, right in fields["merges"])
        tokenizer = Tokenizer(tuple(fields["special"]), merges, fields["pattern"])
        first = 256 + len(tokenizer.special)
        if any(max(pair) >= first + at or min(pair) < 0 for at, pair in enumerate(merges)):
            raise ValueError("a merge of ids that come later")
        re.compile(tokenizer.pattern.encode("latin-1"))
    except OSError as error:
        raise ConfigError(f"cannot read the tokenizer {os.fspath(path)}: {error}") from error
    except (ValueError, KeyError, TypeError, re.error) as error:
        raise ConfigError(
            f"{os.fspath(path)} is no tokenizer (JSON with special, pattern and merges): {error}"
        ) from error
    return tokenizer
