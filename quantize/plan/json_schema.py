"""A JSON schema of a saved plan, made of the dataclasses and tables that read one: for editors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from compiler.op.qnn.formats import SCALE_ROUNDINGS
from quantize.config.checks import CHOICES
from quantize.config.json_schema import (
    ACCUMULATION,
    DIALECT,
    Schema,
    closed,
    config_properties,
    documented,
)
from quantize.formats.operand_format import OperandFormat
from quantize.plan.entries import (
    LARGEST_GROUP,
    MOST,
    NODE_DEFAULTS,
    VALUE_DEFAULTS,
    VALUE_DTYPES,
    WEIGHT_DEFAULTS,
)
from quantize.plan.factors import Factors
from quantize.plan.node_plan import DECISIONS, NodePlan
from quantize.plan.params import ValueParams, WeightParams
from quantize.plan.plan import PLAN_DEFAULTS, PLAN_VERSION, Plan
from quantize.plan.rotation import Rotation

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_POSITIVE: Schema = {"type": "number", "exclusiveMinimum": 0}
_SCALES: Schema = {"type": "array", "items": _POSITIVE, "minItems": 1}


def plan_schema() -> Schema:
    """The schema of what `Plan.to_json` writes."""
    bits = {"type": "integer", "minimum": 2, "maximum": 16}
    group = {"type": "integer", "minimum": 0, "maximum": LARGEST_GROUP}
    node = _entry(
        NodePlan,
        NODE_DEFAULTS,
        decision={"enum": list(DECISIONS)},
        macs={"type": "integer", "minimum": 0, "maximum": MOST},
        accumulate=ACCUMULATION,
        compute={"enum": ["", *CHOICES["compute"]]},
    )
    value = _entry(
        ValueParams, VALUE_DEFAULTS, scale=_POSITIVE, dtype={"enum": list(VALUE_DTYPES)}, bits=bits
    )
    weight = _entry(WeightParams, WEIGHT_DEFAULTS, scales=_SCALES, bits=bits, group=group)
    factors = _entry(Factors, {}, divisors=_SCALES)
    rest = {f.name: None for f in fields(OperandFormat) if f.name != "format"}
    operand = _entry(
        OperandFormat,
        rest,
        scales=_SCALES,
        group={"type": "integer", "minimum": 0},
        scale_rounding={"enum": list(SCALE_ROUNDINGS)},
    )
    plan = _entry(
        Plan,
        PLAN_DEFAULTS,
        version={"const": PLAN_VERSION},
        config=closed(config_properties()),
        nodes=_named(node),
        values=_named(value),
        weights=_named(weight),
        factors=_named(factors),
        formats=_named({"type": "array", "items": operand, "minItems": 1}),
        rotation=_entry(Rotation, {f.name: None for f in fields(Rotation)}),
        shifts=_named({"type": "array", "items": {"type": "number"}}),
    )
    return {"$schema": DIALECT, "title": "Plan", **plan}


def _named(entry: Schema) -> Schema:
    return {"type": "object", "additionalProperties": entry}


def _entry(cls: type, optional: Mapping[str, Any], **known: Schema) -> Schema:
    """An object with the fields of a dataclass: by their types, but for those that are `known`."""
    hints, about = get_type_hints(cls), documented(cls)
    names = [f.name for f in fields(cls)]
    properties = {}
    for name in names:
        described = {"description": about[name]} if name in about else {}
        properties[name] = {**described, **(known.get(name) or _of(hints[name]))}
    return closed(properties, *(name for name in names if name not in optional))


def _of(hint: Any) -> Schema:
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _of(get_args(hint)[0])}
    assert not isinstance(hint, UnionType)
    return {"type": _TYPES[hint]}
