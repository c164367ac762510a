"""Overrides: fields of a QConfig that are different for some nodes and values, by pattern of names.

A pattern is a name, or has `*` and `?`. It fits an operator call by the name of its result in the
prepared module or by the name of an ONNX node that it comes from. What it says of weights holds for
that call's; what it says of activations holds for that call's result (with the activation folded
into it, whose names count too), or for the network's input of that name. Of each field, the first
override that fits and gives the field decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from compiler.errors import ConfigError, UnsupportedError, unknown
from compiler.op.accumulator import of_table
from quantize.config.sites import ATTENTION, OWN

Overrides: TypeAlias = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""Pairs of a pattern and of pairs of a field and its value, in order."""
Names: TypeAlias = tuple[str, ...]
"""All names by which patterns can mean one node or value."""

NODES, WEIGHTS, VALUES = "a node", "the weights of an integer node", "an integer value"
SUMS = "the sums of an integer node"
PER_NODE: dict[str, str] = {
    "skip": NODES,
    "accumulate": SUMS,
    "compute": WEIGHTS,
    "weight_bits": WEIGHTS,
    "weight_granularity": WEIGHTS,
    "weight_group_size": WEIGHTS,
    "weight_dtype": WEIGHTS,
    "scales": WEIGHTS,
    "scale_dtype": WEIGHTS,
    "activation_scale_dtype": WEIGHTS,
    **{f"{site}_{what}": WEIGHTS for site in ATTENTION for what in ("dtype", "granularity")},
    **{f"{site}_dtype": WEIGHTS for site in OWN},
    "activation_granularity": VALUES,
    "weight_range": WEIGHTS,
    "weight_calibrate": WEIGHTS,
    "weight_rounding": WEIGHTS,
    "rounding_inputs": WEIGHTS,
    "rounding_steps": WEIGHTS,
    "rounding_damping": WEIGHTS,
    "calibrate": VALUES,
    "percentile": VALUES,
    "kl_bins": VALUES,
    "momentum": VALUES,
    "sigmas": VALUES,
    "activation_dtype": VALUES,
    "activation_symmetric": VALUES,
    "activation_range": VALUES,
    "activation_bits": VALUES,
}
"""The fields that may be overridden, and what each of them is a property of."""


def overrides_of(given: Any) -> Overrides:
    """Overrides as hashable data, from nested mappings or from what this returned.

    Raises:
        ConfigError: they are none, or a field is unknown, belongs to the whole network, or is a
            list or table.
    """
    try:
        pairs = [(pattern, dict(values)) for pattern, values in _items(given)]
    except (TypeError, ValueError):
        raise ConfigError(
            "overrides must be a mapping from patterns of names to fields, for example "
            f'{{"conv_1": {{"weight_bits": 4}}}}, not {given!r}'
        ) from None
    for pattern, values in pairs:
        if not isinstance(pattern, str) or not pattern:
            raise ConfigError(f"overrides: a pattern must be a name, not {pattern!r}")
        if not values:
            raise ConfigError(f"overrides of {pattern!r} say nothing: give a field")
        for name, value in values.items():
            _check(pattern, name, value)
    return tuple((p, tuple((n, _text(n, v)) for n, v in values.items())) for p, values in pairs)


def _items(given: Any) -> Iterable[tuple[Any, Any]]:
    return given.items() if isinstance(given, Mapping) else list(given)


def _text(name: str, value: Any) -> Any:
    """A value; of the description of an accumulator the canonical text."""
    return str(of_table(value)) if _describes(name, value) else value


def _describes(name: Any, value: Any) -> bool:
    return name == "accumulate" and isinstance(value, Mapping) and "format" in value


def _check(pattern: str, name: Any, value: Any) -> None:
    if name not in PER_NODE:
        problem = unknown("field of a node", str(name), PER_NODE)
        raise ConfigError(f"overrides of {pattern!r}: {problem}")
    if name == "skip" and not isinstance(value, bool):
        raise ConfigError(f"overrides of {pattern!r}: skip must be true or false, not {value!r}")
    if _describes(name, value):
        try:
            of_table(value)
        except UnsupportedError as error:
            raise ConfigError(f"overrides of {pattern!r}: {error}") from None
    elif not isinstance(value, str | int | float):
        raise ConfigError(f"overrides of {pattern!r}: {name} must be one value, not {value!r}")


def fits(pattern: str, names: Iterable[str]) -> bool:
    """Whether a pattern is, or matches, one of `names`."""
    return any(name == pattern or fnmatchcase(name, pattern) for name in names)


def deciding(overrides: Overrides, field: str, names: Names) -> tuple[str, Any] | None:
    """The pattern that decides a field where these names are, and the value; None if none does."""
    for pattern, values in overrides:
        if field in dict(values) and fits(pattern, names):
            return pattern, dict(values)[field]
    return None


def check_fitting(overrides: Overrides, found: Mapping[str, Sequence[Names]]) -> None:
    """Check that every field of every override decides something.

    Args:
        found: names of all there is of each kind that `PER_NODE` tells.

    Raises:
        ConfigError: a pattern fits nothing, or a field decides nothing.
    """
    for pattern, values in overrides:
        everything = [names for known in found.values() for names in known]
        if not any(fits(pattern, names) for names in everything):
            known = [n for names in everything for n in names]
            raise ConfigError("overrides: " + unknown("node", pattern, known))
        for field, _ in values:
            decided = (deciding(overrides, field, names) for names in found[PER_NODE[field]])
            if all(d is None or d[0] != pattern for d in decided):
                raise ConfigError(
                    f"overrides of {pattern!r}: {field} decides nothing, as {PER_NODE[field]} must "
                    "have that name and no override before it may give the field; leave it out"
                )
