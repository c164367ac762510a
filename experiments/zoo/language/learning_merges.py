"""Merges of byte-pair encoding, learnt from texts: the commonest pair becomes an id, and again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from .tokenizer import PATTERN, START, Tokenizer, merged


def learn(texts: Iterable[bytes], size: int) -> Tokenizer:
    """A tokenizer of `size` ids. Of equally common pairs the one of smaller ids comes first."""
    cut = re.compile(PATTERN.encode("latin-1"))
    counted = Counter(word for text in texts for word in cut.findall(text))
    words = [list(word) for word in counted]
    counts = list(counted.values())
    pairs: Counter[tuple[int, int]] = Counter()
    where: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for at, word in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += counts[at]
            where[pair].add(at)
    merges: list[tuple[int, int]] = []
    for new in range(257, size):
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for at in sorted(where[best]):
            old = words[at]
            for pair in pairwise(old):
                pairs[pair] -= counts[at]
                where[pair].discard(at)
                if not pairs[pair]:
                    del pairs[pair]
            words[at] = merged(old, best, new)
            for pair in pairwise(words[at]):
                pairs[pair] += counts[at]
                where[pair].add(at)
    return Tokenizer((START,), tuple(merges))
