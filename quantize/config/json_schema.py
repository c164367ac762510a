"""A JSON schema of what a QConfig may be, made of the tables that check one: for editors."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any

from compiler.op.accumulate import MODES
from compiler.op.accumulator import Accumulator
from compiler.op.accumulator_presets import PRESETS
from compiler.op.accumulator_width import width
from quantize.config.checks import CERTIFIED, CHOICES, FLAGS, NAMES, RANGES, WORDS
from quantize.config.overrides import PER_NODE
from quantize.config.qconfig import QConfig

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT: Schema = {"type": "string"}
_WIDTHS = [f"int{bits}_{how}" for bits in range(64) for how in ("wrap", "saturate")]
ACCUMULATIONS = [*MODES, *PRESETS, *(name for name in _WIDTHS if width(name) is not None)]
_TYPES = {bool: "boolean", int: "integer", str: "string"}
_DESCRIPTION: Schema = {
    "type": "object",
    "properties": {
        f.name: {"type": _TYPES.get(type(f.default), "string")} for f in fields(Accumulator)
    },
    "required": ["format"],
    "additionalProperties": False,
}
ACCUMULATION: Schema = {
    "anyOf": [
        {"enum": ACCUMULATIONS},
        {"type": "string", "pattern": r"^((?!u?int\d)[A-Za-z_]\w*|\{.*\})$"},
        _DESCRIPTION,
    ]
}
"""One of these, the name of a format, or the description of an accumulator."""
MODE: Schema = {"anyOf": [{"const": CERTIFIED}, *ACCUMULATION["anyOf"]]}
"""What a configuration may say of accumulators; a plan has decided them."""


def config_schema() -> Schema:
    """The schema of a configuration's TOML file, or of the table of one in a plan."""
    return {"$schema": DIALECT, "title": "QConfig", **closed(config_properties())}


def config_properties() -> dict[str, Schema]:
    """Field of a QConfig -> its schema, with what the documentation says of it."""
    about = documented(QConfig)
    found = {}
    for f in fields(QConfig):
        default = {} if f.default in (MISSING, ()) else {"default": f.default}
        found[f.name] = {"description": about[f.name], **_field(f.name), **default}
    return found


def _field(name: str) -> Schema:
    if name in CHOICES:
        return {"enum": list(CHOICES[name])}
    if name in RANGES:
        low, high = RANGES[name]
        kind = "number" if isinstance(low, float) else "integer"
        number = {"type": kind, "minimum": low, "maximum": high}
        return {"anyOf": [{"const": WORDS[name]}, number]} if name in WORDS else number
    if name in FLAGS:
        return {"type": "boolean"}
    if name in NAMES:
        return TEXT
    patterns = {"type": "object", "additionalProperties": MODE}
    others: dict[str, Schema] = {
        "accumulate": {"anyOf": [MODE, patterns]},
        "skip": {"anyOf": [TEXT, {"type": "array", "items": {**TEXT, "minLength": 1}}]},
        "overrides": {"type": "object", "additionalProperties": _override()},
    }
    return others[name]


def _override() -> Schema:
    """What may be said of some nodes: one value a field."""
    own: dict[str, Schema] = {"skip": {"type": "boolean"}, "accumulate": MODE}
    known = {name: own.get(name) or _field(name) for name in PER_NODE}
    return {**closed(known), "minProperties": 1}


def closed(properties: dict[str, Schema], *required: str) -> Schema:
    """An object with these entries and no others."""
    needed = {"required": list(required)} if required else {}
    return {
        "type": "object", "properties": properties, "additionalProperties": False, **needed
    }  # fmt: skip


def documented(cls: type) -> dict[str, str]:
    """Field of a dataclass -> what the list of attributes in its docstring says, in one line."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2].split("\n\n")[0]
    found: dict[str, str] = {}
    for names, about in re.findall(r"^    (\w[\w, ]*): ((?:.|\n {8})*)", text, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), " ".join(about.split()))
    return found
