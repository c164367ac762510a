"""Whether, and where, a sweep runs code of its user, which may crash, hang or end the process.

That is: adapters and functions named FILE.py:FUNCTION; models, data sets, metrics and lowering
functions registered in this process, and the C functions that the latter call; rules registered
with the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments import zoo
from experiments.data import datasets
from experiments.measure import scoring
from experiments.systems.engine_choice import OURS_NAME
from experiments.systems.schemes import Scheme, names_in
from experiments.user_code import adapters
from experiments.user_code.fingerprints import Fingerprint

from . import identity
from .cells import SweepSpec


def in_specification(spec: Mapping[str, Any] | SweepSpec) -> bool:
    """Whether reading a specification, or its cells, runs code of the user."""
    if isinstance(spec, SweepSpec):
        return any(in_specification(cell.specification()) for cell in spec.cells)
    texts = set(_texts(spec))
    if spec.get("adapters") or any(map(adapters.is_reference, texts)):
        return True
    if any(map(scoring.registered, texts)):
        return True
    if any(datasets.is_registered(t) or zoo.is_registered(t) for t in texts):
        return True
    if any(has_own_engine(text) for text in spec.get("engines", ()) if isinstance(text, str)):
        return True
    from datatypes import registry

    own_rules = "rules" in identity.compiling()
    return own_rules or bool(registry.registered(names_in(*texts)))


def has_own_engine(text: str) -> bool:
    """Whether an element of the axis of engines names one that this package does not bring."""
    from compiler.pattern.tables import shipped_engines

    names = text.partition("@")[0].split("+")
    return not {*names, ""} <= {*shipped_engines(), OURS_NAME, ""}


def of_scheme(scheme: Scheme) -> str:
    """The lowering functions and C functions of the user that a scheme computes with, in words;
    empty if there are none."""
    from datatypes import registry
    from datatypes.c_libraries.library import libraries_of

    found = registry.registered(names_in(scheme.dtype, scheme.options))
    if not found:
        return ""
    fingerprint = Fingerprint()
    for function in found.values():
        fingerprint.of(function)
    files: dict[str, list[str]] = {}
    for name in sorted(set(fingerprint.texts)):
        for library in libraries_of([name]):
            files.setdefault(library.name, []).append(name)
    words = [f"C functions {', '.join(names)} of {file}" for file, names in files.items()]
    return f"{scheme.label} ({'; '.join(words) or 'lowering functions'})"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, Iterable):
        for inner in value:
            yield from _texts(inner)
