"""A JSON schema of specifications, made of the tables that check them: for editors.

It knows keys, types, ranges and choices; names of models, data and formats are known when a
specification is read, as files and adapters of its own may bring them.
"""

from __future__ import annotations

from dataclasses import fields

from experiments.layers.gaps import GapRequest
from experiments.layers.table import LayerRequest
from experiments.systems.number_systems import block_format_names, format_names
from experiments.systems.prices import SOURCES
from experiments.systems.schemes import ALIASES, FORMAT_OPTIONS, NAMES
from quantize.config.json_schema import (
    DIALECT,
    MODE,
    TEXT,
    Schema,
    closed,
    config_properties,
)

from .axes import AXES, ELEMENT_KEYS, LIST_OPTIONS, SETTINGS
from .cells import LATENCY
from .rules import KEYS as RULE_KEYS
from .specification import KEYS

_NATURAL: Schema = {"type": "integer", "minimum": 0}
_ABOUT = {
    "models": "Networks: names that `dtypelab zoo` lists, paths of .onnx files, FILE.py:FUNCTION.",
    "schemes": "Number systems: float32, int8, int8_channel, scaled, a format, formats by layer.",
    "calibrators": "How calibrated schemes choose ranges, unless they say so themselves.",
    "accumulations": "How sums are formed, in schemes that can and do not say so themselves.",
    "targets": 'What is compiled for: "c", "llvm", with -mcpu, -mattr, or -mtriple for elsewhere.',
    "threads": "Threads that a network runs on.",
    "engines": 'Engines that compute what they can: "onednn", "onednn@measured"; "ours": none.',
    "seeds": "Seeds of calibration inputs and of stochastic rounding.",
    "repeats": "How often every cell is measured.",
    "seed": "One seed; see seeds.",
    "repeat": "One of the repetitions, from 0.",
    "dataset": "Data: a name, an .npz file, or FILE.py:FUNCTION.",
    "metric": "What answers are judged by; by default what fits the labels.",
    "output": "Which output is judged, of a network with several.",
    "adapters": "Python files of yours that are run first.",
    "energy": "Picojoules of operations: operands, an operator and its numbers, or memory.",
    "gates": "Gates of a unit that does a multiply-accumulate, by its operands.",
    "area": "Square micrometres of such a unit.",
    "certificates": "Look for the accumulators that provably hold every sum.",
    "layers": "Errors of single layers, in a file beside the results.",
    "gap": "Simulations in float32 beside execution, step by step, in a file beside the results.",
    "device": "Address of the device that runs all cells, HOST:PORT or pipe:COMMAND.",
    "latency": "How long latency is measured; runs = 0 leaves it out.",
    "n_eval": "Inputs that are evaluated; by default all.",
    "n_calib": "Inputs that are calibrated with.",
    "timeout_s": "Seconds that a cell may take.",
    "memory_gib": "Memory that a cell with code of yours may take.",
    "include": "Cells besides the product of the lists.",
    "exclude": "Cells that are left out.",
    "override": "Settings of some cells.",
}


def spec_schema() -> Schema:
    """The schema of a specification, as JSON-compatible data."""
    known = _properties()
    described = {name: {"description": _ABOUT[name], **known[name]} for name in KEYS}
    top = closed(described, "models", "schemes")
    return {"$schema": DIALECT, "title": "dtypelab sweep", **top}


def _properties() -> dict[str, Schema]:
    positive = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9}
    layers = {
        f.name: {"type": "boolean"} if isinstance(f.default, bool) else _NATURAL
        for f in fields(LayerRequest)
    }
    settings = _settings()
    price = {"type": "number", "minimum": 0}
    sources: list[Schema] = [{"enum": list(SOURCES)}, {"type": "string", "pattern": r"\.toml$"}]
    prices: Schema = {"type": "object", "additionalProperties": price}
    return {
        **_lists(),
        "repeats": {"type": "integer", "minimum": 1},
        "seed": _NATURAL,
        "repeat": _NATURAL,
        **dict.fromkeys(("dataset", "metric", "output", "device"), TEXT),
        "adapters": _list(TEXT, 0),
        "energy": {**prices, "properties": {"source": {"anyOf": sources}}},
        "gates": prices,
        "area": prices,
        "certificates": {"type": "boolean"},
        "layers": closed(layers),
        "gap": closed({f.name: _NATURAL for f in fields(GapRequest)}),
        "latency": closed({name: settings[name] for name in LATENCY}),
        **{name: settings[name] for name in ("n_eval", "n_calib")},
        **dict.fromkeys(("timeout_s", "memory_gib"), positive),
        "include": _list(_included(), 0),
        "exclude": _list(closed(_wanted()), 0),
        "override": _list(closed({**_wanted(), **settings}), 0),
    }


def _lists() -> dict[str, Schema]:
    """The axes that are lists, which is all but the count of repetitions."""
    return {
        "models": _list(_model()),
        "schemes": _list(_scheme()),
        "calibrators": _list(config_properties()["calibrate"], 0),
        "accumulations": _list(MODE, 0),
        "targets": _list(TEXT, 0),
        "threads": _list({"type": "integer", "minimum": 1}, 0),
        "engines": _list(TEXT, 0),
        "seeds": _list(_NATURAL, 0),
    }


def _list(items: Schema, least: int = 1) -> Schema:
    some = {"minItems": least} if least else {}
    return {"type": "array", "items": items, "uniqueItems": True, **some}


def _settings() -> dict[str, Schema]:
    return {
        name: {"type": "integer" if isinstance(least, int) else "number", "minimum": least}
        for name, least in SETTINGS.items()
    }


def _model() -> Schema:
    table = {**dict.fromkeys(ELEMENT_KEYS, TEXT), **_settings()}
    return {"anyOf": [TEXT, closed(table, "model")]}


def _scheme() -> Schema:
    names = [*NAMES, *block_format_names(), *format_names()]
    name = {**TEXT, "examples": names}
    config = config_properties()
    options = {
        **{option: {"type": "string"} for option in FORMAT_OPTIONS},
        **{option: _one_or_more(option, given) for option, given in config.items()},
        **{alias: config.get(option, TEXT) for alias, option in ALIASES.items()},
    }
    by_layer = {"type": "object", "minProperties": 1}
    table = {"scheme": {"anyOf": [name, by_layer]}, **options, **_settings()}
    of_file = {"config": {**TEXT, "description": "A file of fields of quantize.QConfig."}}
    options = {**options, **_settings()}
    return {"anyOf": [name, closed(table, "scheme"), closed({**of_file, **options}, "config")]}


def _one_or_more(option: str, given: Schema) -> Schema:
    """An option, or a list of its values, which spans schemes."""
    return given if option in LIST_OPTIONS else {"anyOf": [given, _list(given)]}


def _wanted() -> dict[str, Schema]:
    """What rules say of the cells that they are for: values, or patterns of them."""
    one = {"type": ["string", "integer"]}
    return {key: {"anyOf": [one, {"type": "array", "items": one}]} for key in RULE_KEYS}


def _included() -> Schema:
    """A cell or several: of each axis one element, or a list of them."""
    given = {AXES[axis]: {"anyOf": [known["items"], known]} for axis, known in _lists().items()}
    return closed({**given, "repeat": _NATURAL, **_settings()})
