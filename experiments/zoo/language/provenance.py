"""What the shipped text is, so that anybody can rebuild it: versions, and a hash a module."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable

from .corpus import Module


def provenance(modules: Iterable[Module]) -> str:
    """JSON: the interpreter, and of every part its modules with their SHA-256."""
    parts: dict[str, dict[str, str]] = {"train": {}, "calibration": {}, "held-out": {}}
    for module in modules:
        parts[module.part][module.path] = module.digest
    text = "the standard library of Python " + platform.python_version()
    facts = {"text": text, "licence": "PSF-2.0, see stdlib_text.licence.txt", "modules": parts}
    return json.dumps(facts, indent=0) + "\n"
