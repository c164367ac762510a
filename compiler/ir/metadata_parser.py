"""The metadata section of a printed module: constants, attributes, origins."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.errors import DtypelabError, ParseError
from compiler.ir.expr import Constant
from compiler.types.dtypes import DType

_CONSTANT = re.compile(r"meta\[Constant\]\[(\d+)\] = (\S+?)\[([\d, ]*)\] ([0-9a-f]*)$")


def read_metadata(
    text: str, line: int
) -> tuple[dict[int, Constant], dict[str, Any], dict[str, Any]]:
    """(constants by number, the module's attributes, origins by binding) of a section whose first
    line is number `line` of the program.

    Raises:
        ParseError: names the line.
    """
    constants: dict[int, Constant] = {}
    sections: dict[str, dict[str, Any]] = {"names": {}, "attrs": {}, "origins": {}}
    for k, row in enumerate(text.splitlines()):
        if not row.strip():
            continue
        found = _CONSTANT.match(row)
        key, _, value = row.partition(" = ")
        try:
            if found:
                dtype = DType.parse(found[2])
                shape = [int(n) for n in found[3].split(",") if n.strip()]
                data = np.frombuffer(bytes.fromhex(found[4]), dtype.storage).reshape(shape)
                constants[int(found[1])] = Constant(data.copy(), dtype)
            elif key in sections:
                sections[key] = _table(key, json.loads(value))
            else:
                raise ValueError("this is no metadata")
        except (ValueError, DtypelabError) as e:
            raise ParseError(f"line {line + k + 1}, column 1: {e}") from None
    names = sections["names"]
    constants = {k: replace(c, name=names.get(str(k), "")) for k, c in constants.items()}
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in sections["attrs"].items()}
    return constants, attrs, sections["origins"]


def _table(section: str, read: Any) -> dict[str, Any]:
    """What a section says.

    Raises:
        ValueError: it is no table of what the section has.
    """
    if not isinstance(read, dict):
        raise ValueError(f"{section} must be a table")
    if section == "names" and not all(isinstance(name, str) for name in read.values()):
        raise ValueError("names must be texts")
    return read
