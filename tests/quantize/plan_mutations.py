"""Plans as files from elsewhere hold them: JSON text with something changed anywhere in it."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 0.5, -0.0, 2**31, -(2**63), 10**400, 1e308, 1e-320),
    *(math.nan, math.inf, -math.inf, "", "x", "*", "1", "float32", "int8", "\x1b[2J", "\ud800"),
    *([], [[]], [None], [1], ["x"], [1, "x"], [math.nan], {}, {"": {}}, {"x": 1}, {"x": [1]}),
)
"""Values that belong nowhere, or not where they are put."""
WORDS = (
    *("float", "integer", "folded", "tabled", "weights", "format", "sequential", "exact", "fma"),
    *("int8", "uint8", "int16", "float32", "posit8_es2", "mxfp8_e4m3", "int16_wrap", "group"),
)
"""What texts of a plan may be."""


def mutated(plan: dict[str, Any], rng: random.Random) -> str:
    """The JSON text of a plan with one to three changes: of values, keys, lengths or the text."""
    changed = copy.deepcopy(plan)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice((_value, _like, _like, _like, _key, _length, _swap))(changed, rng)
    text = json.dumps(changed)
    return rng.choice((*[_same] * 9, _cut, _twice, _deep, _byte))(text, rng)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key or index that it has."""
    found: list[tuple[Any, Any]] = []
    keys = value.items() if isinstance(value, dict) else enumerate(value)
    for key, held in keys:
        found.append((value, key))
        if isinstance(held, dict | list):
            found += _places(held)
    return found


def _any(plan: dict[str, Any], rng: random.Random) -> tuple[Any, Any]:
    """A place; as often in a small part as in a large one."""
    part = rng.choice([plan, *(v for v in plan.values() if isinstance(v, dict) and v)])
    places = _places(part)
    return rng.choice(places) if places else (plan, rng.choice([*plan, "x"]))


def _value(plan: dict[str, Any], rng: random.Random) -> None:
    held, key = _any(plan, rng)
    held[key] = copy.deepcopy(rng.choice(STRANGE))


def _like(plan: dict[str, Any], rng: random.Random) -> None:
    """Another value of the same kind: what a person who edits a plan may write."""
    held, key = _any(plan, rng)
    value = held[key] if isinstance(held, list) else held.get(key)
    if isinstance(value, bool):
        held[key] = not value
    elif isinstance(value, int):
        held[key] = value + rng.choice((-100, -3, -2, -1, 1, 2, 3, 100))
    elif isinstance(value, float):
        held[key] = value * rng.choice((0.0, -1.0, 0.5, 2.0, 2.0**60, 2.0**-60))
    elif isinstance(value, str):
        others = [h[k] for h, k in _places(plan) if isinstance(h[k], str)]
        held[key] = rng.choice((*others, *plan.get("nodes", ()), *WORDS))


def _key(plan: dict[str, Any], rng: random.Random) -> None:
    held, key = _any(plan, rng)
    if isinstance(held, list):
        held.pop(key)
        return
    value = held.pop(key, None)
    if rng.random() < 0.6:
        held[rng.choice((key + "x", key[:-1], "", key.upper(), "\x1b[0m"))] = value


def _length(plan: dict[str, Any], rng: random.Random) -> None:
    lists = [h[k] for h, k in _places(plan) if isinstance(h[k], list) and h[k]]
    if lists:
        chosen = rng.choice(lists)
        if rng.random() < 0.5:
            del chosen[rng.randrange(len(chosen)) :]
        else:
            chosen.extend(chosen[: rng.randrange(1, 4)])


def _swap(plan: dict[str, Any], rng: random.Random) -> None:
    (a, i), (b, k) = _any(plan, rng), _any(plan, rng)
    if i in (a if isinstance(a, dict) else range(len(a))):
        b[k] = copy.deepcopy(a[i])


def _same(text: str, rng: random.Random) -> str:
    return text


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(1, len(text))]


def _twice(text: str, rng: random.Random) -> str:
    place = text.index(", ", rng.randrange(len(text) // 2))
    return f'{text[:place]}, "version": 2, "version": 2{text[place:]}'


def _deep(text: str, rng: random.Random) -> str:
    depth = rng.choice((60, 2000, 200_000))
    return text[:-1] + f', "steps": {"[" * depth}{"]" * depth}}}'


def _byte(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text))
    return text[:place] + rng.choice('{}[]",:-e0\x00\ufeff\u2028') + text[place + 1 :]
