"""Formats by name: the named ones, the parametric families, and those a user defines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from compiler.errors import DtypelabError, unknown
from compiler.types.block_names import names_blocks
from datatypes.formats.codebook import NF4
from datatypes.formats.description import Format
from datatypes.formats.fixed import fixed
from datatypes.formats.logarithmic import lns
from datatypes.formats.minifloat import NAMED, minifloat
from datatypes.formats.posit import posit
from datatypes.formats.takum import takum


@dataclass(frozen=True)
class Family:
    """Formats that share a rule: a pattern of names whose numbers are arguments of `make`."""

    notation: str
    pattern: str
    make: Callable[..., Format]


def _ieee(nbits: int, exponent: int, mantissa: int) -> Format:
    if nbits != 1 + exponent + mantissa:
        raise DtypelabError(
            f"format 'float{nbits}_e{exponent}m{mantissa}' has {1 + exponent + mantissa} bits; "
            f"write float{1 + exponent + mantissa}_e{exponent}m{mantissa}"
        )
    return minifloat(exponent, mantissa)


FAMILIES = (
    Family("posit<N>_es<E>", r"posit(\d+)_es(\d+)", posit),
    Family("float<N>_e<E>m<M>", r"float(\d+)_e(\d+)m(\d+)", _ieee),
    Family("fixed<N>_<F>", r"fixed(\d+)_(\d+)", fixed),
    Family("takum<N>", r"takum(\d+)", takum),
    Family("lns<N>_<F>", r"lns(\d+)_(\d+)", lns),
)

_STOCHASTIC = re.compile(r"(.+)_stochastic(?:_seed(0|[1-9][0-9]*))?")
"""Any format that rounds to nearest, rounding stochastically instead."""
_TRUNCATE = re.compile(r"(.+)_truncate")
"""Any format that rounds to nearest, rounding toward zero instead."""

_EXAMPLES = (
    *(posit(n, e) for n, e in ((8, 0), (16, 1), (32, 2), (8, 2), (16, 2))),
    *(takum(n) for n in (8, 16)),
    *(fixed(n, f) for n, f in ((8, 4), (16, 8))),
    *(lns(n, f) for n, f in ((8, 3), (16, 8))),
    NF4,
)

_known: dict[str, Format] = {fmt.name: fmt for fmt in (*_EXAMPLES[:5], *NAMED, *_EXAMPLES[5:])}
_builtin = frozenset(_known)


def get(name: str | Format) -> Format:
    """The format called `name`; a `Format` is returned as it is.

    Raises:
        DtypelabError: no such format (names the nearest), or parameters a family does not take.
    """
    if isinstance(name, Format):
        return name
    return _known[name] if name in _known else _parse(name)


def add(fmt: Format) -> Format:
    """Make `get` find a format, and return it. `datatypes.define` checks it first.

    Raises:
        DtypelabError: another format has this name.
    """
    if fmt.name in _known and _known[fmt.name] != fmt:
        raise DtypelabError(f"a format called {fmt.name!r} exists; choose another name")
    if is_builtin(fmt.name) and fmt.name not in _known and get(fmt.name) != fmt:
        raise DtypelabError(f"{fmt.name!r} names a format of a family; choose another name")
    if names_blocks(fmt.name):
        raise DtypelabError(f"{fmt.name!r} names a block format; choose another name")
    _known[fmt.name] = fmt
    return fmt


def is_builtin(name: str) -> bool:
    """Whether a name means one format in every process: a listed one, or one of a family."""
    found = _STOCHASTIC.fullmatch(name) or _TRUNCATE.fullmatch(name)
    if found:
        return is_builtin(found[1])
    return name in _builtin or any(re.fullmatch(f.pattern, name) for f in FAMILIES)


def find(name: str) -> Format | None:
    """The format called `name`; None if there is none."""
    try:
        return get(name)
    except DtypelabError:
        return None


def defined(name: str) -> Format | None:
    """The format that this process defined under a name, or made of one that it defined; None of
    built-in names and of others."""
    if is_builtin(name):
        return None
    made = _STOCHASTIC.fullmatch(name) or _TRUNCATE.fullmatch(name)
    return find(name) if made else _known.get(name)


def list_formats() -> list[str]:
    """Names of the formats that are listed; `families` gives the notation of all others."""
    return list(_known)


def families() -> list[str]:
    """Notation of the parametric families, such as `posit<N>_es<E>`."""
    return [*(family.notation for family in FAMILIES), "<FORMAT>_stochastic[_seed<N>]",
            "<FORMAT>_truncate"]  # fmt: skip


@lru_cache(maxsize=256)
def _parse(name: str) -> Format:
    for family in FAMILIES:
        found = re.fullmatch(family.pattern, name)
        if found:
            fmt = family.make(*map(int, found.groups()))
            if fmt.name != name:
                raise DtypelabError(f"unknown format {name!r}; write {fmt.name!r}")
            return fmt
    stochastic = _STOCHASTIC.fullmatch(name)
    if stochastic:
        return _random(get(stochastic[1]), name, int(stochastic[2] or 0))
    if truncated := _TRUNCATE.fullmatch(name):
        return _truncating(get(truncated[1]), name)
    raise DtypelabError(unknown("format", name, [*_known, *families()]))


def _truncating(fmt: Format, name: str) -> Format:
    """The format, rounding toward zero: what is too large becomes the largest number, and what is
    too small zero."""
    if fmt.rounding != "nearest":
        raise DtypelabError(f"{fmt.name} rounds {fmt.rounding} already; {name} has no meaning")
    return replace(fmt, name=name, rounding="zero", source=f"like {fmt.name}")


def _random(fmt: Format, name: str, seed: int) -> Format:
    """The format, rounding stochastically."""
    if fmt.rounding != "nearest":
        raise DtypelabError(f"{fmt.name} rounds {fmt.rounding} already; {name} has no meaning")
    return replace(fmt, name=name, rounding="stochastic", seed=seed, source=f"like {fmt.name}")
