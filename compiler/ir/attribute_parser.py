"""Reads attributes of operators and functions."""

from __future__ import annotations

import json
import re
from typing import Any

from compiler.types.type_parser import TypeParser


class AttributeParser(TypeParser):
    """A cursor that reads attributes as they are printed."""

    def attribute(self) -> Any:
        """A value of an attribute: number, string, True, False, None, list, or symbolic
        dimension."""
        t = self.now
        if self.accept("["):
            return tuple(self.listed(self.attribute, "]"))
        if t.kind == "string":
            return json.loads(self.take().text)
        if t.text in ("True", "False", "None"):
            self.k += 1
            return {"True": True, "False": False, "None": None}[t.text]
        if t.kind == "number" and not re.fullmatch(r"-?\d+", t.text):
            try:
                number = float(t.text)
            except ValueError:
                raise self.error(f"expected an attribute, found {t.text!r}") from None
            self.k += 1
            return number
        d = self.dimension()
        return d if d.terms else d.const
