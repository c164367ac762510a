"""Entries of a saved plan: JSON-compatible data from and to what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from reprlib import repr as short
from typing import Any

import numpy as np

from compiler.errors import ConfigError, unknown
from quantize.config.checks import CHOICES, check_accumulate
from quantize.plan.factors import Factors
from quantize.plan.node_plan import DECISIONS, SEQUENTIAL, NodePlan
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.rotation import Rotation

MOST = 1 << 63
"""No number of multiply-accumulates is larger."""
LARGEST_GROUP = 1 << 20
VALUE_DTYPES = ("int8", "uint8", "int16")
#: Entries that may be left out, and what they are then.
NODE_DEFAULTS: dict[str, Any] = {"accumulate": SEQUENTIAL, "function_of": "", "compute": ""}
VALUE_DEFAULTS: dict[str, Any] = {"restricted": False}
WEIGHT_DEFAULTS: dict[str, Any] = {
    "shift": [],
    "rounding": "",
    "zero_points": [],
    "group": 0,
    "offsets": [],
}
_LARGEST = float(np.finfo(np.float32).max)


def entries(what: str, data: Any, cls: type) -> dict[str, Any]:
    """Data that must be an object with the fields of a dataclass, and no others.

    Raises:
        ConfigError: it is not such data.
    """
    known = [f.name for f in fields(cls)]
    if not isinstance(data, dict):
        raise ConfigError(f"{what}: expected an object with {', '.join(known)}, not {short(data)}")
    for k in data:
        if k not in known:
            raise ConfigError(f"{what}: {unknown('entry', str(k), known)}")
    missing = [k for k in known if k not in data]
    if missing:
        raise ConfigError(f"{what}: missing {', '.join(missing)}")
    return data


def named_entries(data: dict[str, Any], key: str) -> dict[str, Any]:
    """An entry that must be an object itself.

    Raises:
        ConfigError: it is not such data.
    """
    if not isinstance(data[key], dict):
        raise ConfigError(f"the plan's {key} must be an object, not {short(data[key])}")
    return dict(data[key])


def node_dict(n: NodePlan) -> dict[str, Any]:
    """What `node_of` reads; an accumulator, a function or a way to compute only where it has one of
    its own."""
    d = {**asdict(n), "origins": list(n.origins)}
    if n.accumulate == SEQUENTIAL:  # left out: most nodes have no other
        del d["accumulate"]
    for name in ("function_of", "compute"):
        if not d[name]:
            del d[name]
    return d


def node_of(name: str, data: Any) -> NodePlan:
    """The decision for one node.

    Raises:
        ConfigError: it is not such data.
    """
    given = {**NODE_DEFAULTS, **data} if isinstance(data, dict) else data
    d = entries(f"node {name!r}", given, NodePlan)
    what = f"node {name!r}"
    if d["decision"] not in DECISIONS:
        raise ConfigError(f"{what}: {unknown('decision', str(d['decision']), DECISIONS)}")
    if d["decision"] == "float" and not d["reason"]:
        raise ConfigError(f"{what}: a node that stays float needs a reason")
    if d["compute"] not in ("", *CHOICES["compute"]):
        problem = unknown("value of compute", str(d["compute"]), CHOICES["compute"])
        raise ConfigError(f"{what}: {problem}")
    try:
        accumulate = check_accumulate(d["accumulate"])
    except ConfigError as e:
        raise ConfigError(f"{what}: {e}") from None
    return NodePlan(
        as_text(f"{what}: op", d["op"]),
        d["decision"],
        as_text(f"{what}: reason", d["reason"]),
        as_integer(f"{what}: macs", d["macs"], 0, MOST),
        as_texts(f"{what}: origins", d["origins"]),
        accumulate,
        as_text(f"{what}: function_of", d["function_of"]),
        d["compute"],
    )


def value_dict(v: ValueParams) -> dict[str, Any]:
    """What `value_of` reads."""
    d = asdict(v)
    if not v.restricted:  # left out: few plans have it
        del d["restricted"]
    return d


def weight_dict(w: WeightParams) -> dict[str, Any]:
    """What `weight_of` reads; only what is not at its default."""
    shift = {"shift": list(w.shift)} if w.shift else {}
    rounding = {"rounding": w.rounding} if w.rounding else {}
    zeros = {"zero_points": list(w.zero_points)} if w.zero_points else {}
    group = {"group": w.group} if w.group else {}
    offsets = {"offsets": list(w.offsets)} if w.offsets else {}
    more = {**shift, **rounding, **zeros, **group, **offsets}
    return {"scales": list(w.scales), "bits": w.bits, **more}


def value_of(name: str, data: Any) -> ValueParams:
    """Parameters of one value.

    Raises:
        ConfigError: it is not such data.
    """
    given = {**VALUE_DEFAULTS, **data} if isinstance(data, dict) else data
    d = entries(f"value {name!r}", given, ValueParams)
    if d["dtype"] not in VALUE_DTYPES:
        raise ConfigError(f"value {name!r}: {unknown('dtype', str(d['dtype']), VALUE_DTYPES)}")
    if not isinstance(d["restricted"], bool):
        raise ConfigError(f"value {name!r}: restricted must be true or false")
    most = 16 if d["dtype"] == "int16" else 8
    bits = as_integer(f"value {name!r}: bits", d["bits"], 2, most)
    scale = _positive(f"value {name!r}", d["scale"])
    p = ValueParams(scale, 0, d["dtype"], bits, d["restricted"])
    zero = as_integer(f"value {name!r}: zero_point", d["zero_point"], p.qmin, p.qmax)
    return replace(p, zero_point=zero)


def weight_of(name: str, data: Any) -> WeightParams:
    """Parameters of one node's weights.

    Raises:
        ConfigError: it is not such data.
    """
    given = {**WEIGHT_DEFAULTS, **data} if isinstance(data, dict) else data
    d = entries(f"weights of {name!r}", given, WeightParams)
    if not isinstance(d["scales"], list) or not d["scales"]:
        raise ConfigError(f"weights of {name!r}: scales must be a list of numbers")
    scales = tuple(_positive(f"weights of {name!r}", s) for s in d["scales"])
    shift = shift_of(name, d["shift"])
    bits = as_integer(f"weights of {name!r}: bits", d["bits"], 2, 16)
    group = as_integer(f"weights of {name!r}: group", d["group"], 0, LARGEST_GROUP)
    if not isinstance(d["rounding"], str):
        raise ConfigError(f"weights of {name!r}: rounding must be text, not {short(d['rounding'])}")
    zeros = _zero_points(name, d["zero_points"], bits, len(scales))
    offsets = d["offsets"]
    if not isinstance(offsets, list) or not all(map(_is_finite, offsets)):
        raise ConfigError(f"weights of {name!r}: offsets must be a list of numbers")
    if len(offsets) not in (0, len(scales)):
        raise ConfigError(f"weights of {name!r}: there must be as many offsets as scales")
    held = tuple(map(float, offsets))
    return WeightParams(scales, bits, shift, d["rounding"], zeros, group, held)


def shift_of(name: str, given: Any) -> tuple[float, ...]:
    """What is added to the biases of one node.

    Raises:
        ConfigError: it is not such data.
    """
    if not isinstance(given, list) or not all(map(_is_finite, given)):
        raise ConfigError(
            f"weights of {name!r}: shift must be a list of numbers, not {short(given)}"
        )
    return tuple(map(float, given))


def _zero_points(name: str, given: Any, bits: int, count: int) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) not in (0, count):
        raise ConfigError(
            f"weights of {name!r}: zero_points must be a list of integers, as many as scales"
        )
    half = 1 << (bits - 1)
    what = f"weights of {name!r}: a zero point"
    return tuple(as_integer(what, zero, -half, half - 1) for zero in given)


def factors_dict(factors: Mapping[str, Factors]) -> dict[str, Any]:
    """Name -> what `factors_of` reads."""
    return {
        k: {"readers": list(f.readers), "divisors": list(f.divisors)} for k, f in factors.items()
    }


def factors_of(name: str, data: Any) -> Factors:
    """How the channels of one value are rescaled.

    Raises:
        ConfigError: it is not such data.
    """
    what = f"factors of {name!r}"
    d = entries(what, data, Factors)
    for key in ("readers", "divisors"):
        if not isinstance(d[key], list) or not d[key]:
            raise ConfigError(f"{what}: {key} must be a list, not {short(d[key])}")
    readers = as_texts(f"{what}: readers", d["readers"])
    return Factors(readers, tuple(_positive(what, v) for v in d["divisors"]))


def rotation_dict(rotation: Rotation) -> dict[str, Any]:
    """What `rotation_of_entry` reads; empty where nothing is rotated."""
    if rotation.empty:
        return {}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(rotation).items()}


def rotation_of_entry(data: Any) -> Rotation:
    """Which values are in another basis.

    Raises:
        ConfigError: it is not such data.
    """
    what = "the plan's rotation"
    if isinstance(data, dict) and not data:
        return Rotation()
    given = {"scores": [], "averages": [], **data} if isinstance(data, dict) else data
    d = entries(what, given, Rotation)
    names = ("streams", "online", "declined", "scores", "averages")
    parts = (as_texts(f"{what}: {k}", d[k]) for k in names)
    return Rotation(as_integer(f"{what}: seed", d["seed"], 0, 2**31 - 1), *parts)


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST


def _positive(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        raise ConfigError(f"{what}: a scale must be a positive number, not {short(value)}")
    if float(np.float32(value)) != value:
        raise ConfigError(
            f"{what}: float32 does not hold the scale {short(value)} exactly; "
            f"write {float(np.float32(value))!r}"
        )
    return float(value)


def as_text(what: str, value: Any) -> str:
    """A value that must be text.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be text, not {short(value)}")
    return value


def as_texts(what: str, value: Any) -> tuple[str, ...]:
    """A value that must be a list of texts.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{what} must be a list of texts, not {short(value)}")
    return tuple(value)


def as_integer(what: str, value: Any, low: int, high: int) -> int:
    """A value that must be an integer in a range.

    Raises:
        ConfigError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{what} must be an integer from {low} to {high}, not {short(value)}")
    return value
