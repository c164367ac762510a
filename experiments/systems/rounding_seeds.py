"""Seeds of stochastic rounding: a scheme in the formats that round with a cell's seed.

The random bits of a rounding are a hash of the format's seed and of where in the program it happens
(`datatypes.formats.randomness`), so a seed gives the same bits whenever it is used, and repetitions
of a cell replay them; other seeds give others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from .schemes import Option, Scheme, names_in

if TYPE_CHECKING:
    from datatypes.formats import Format


def random_formats(scheme: Scheme) -> dict[str, Format]:
    """The formats in a scheme that round stochastically, by name."""
    from datatypes.formats.catalogue import find

    found = {name: find(name) for name in sorted(names_in(scheme.dtype, scheme.options))}
    return {n: f for n, f in found.items() if f is not None and f.rounding == "stochastic"}


def other_seed(scheme: Scheme, seed: int) -> list[int]:
    """The seed, if it is not that of every stochastic format in the scheme already; else none."""
    return [seed] if any(f.seed != seed for f in random_formats(scheme).values()) else []


def seeded_names(scheme: Scheme, seed: int) -> dict[str, str]:
    """Name of a format in the scheme -> that of the same one with the seed, defined now.

    A format that has the seed already keeps its name, and so is not among them.

    Raises:
        DtypelabError: another format has such a name.
    """
    from datatypes.formats import add

    names = {}
    for name, fmt in random_formats(scheme).items():
        if fmt.seed != seed:
            names[name] = add(replace(fmt, name=f"{name}_seed{seed}", seed=seed)).name
    return names


def seeded(scheme: Scheme, seed: int) -> Scheme:
    """The scheme whose stochastic formats have the seed; its label stays."""
    names = seeded_names(scheme, seed)
    if not names:
        return scheme
    options = tuple((key, _renamed(value, names)) for key, value in scheme.options)
    return replace(scheme, dtype=renamed(scheme.dtype, names), options=options)


def renamed(text: str, names: dict[str, str]) -> str:
    """A text with whole words replaced."""
    return re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word[0], word[0]), text)


def _renamed(value: Option, names: dict[str, str]) -> Option:
    if isinstance(value, str):
        return renamed(value, names)
    if isinstance(value, tuple):
        return cast(Option, tuple(_renamed(v, names) for v in value))
    return value
