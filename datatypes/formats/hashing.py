"""What a format means, as a hash: two descriptions of one name can be told apart."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from functools import lru_cache

from datatypes.formats.description import Format
from datatypes.formats.rules import SORTED_BITS

_APART = ("name", "decoder", "tables", "source")


@lru_cache(maxsize=64)
def digest(fmt: Format) -> str:
    """Hexadecimal SHA-256 of a format's rules, tables and values; its name does not count.

    The values are those of all codes, of formats of more than 16 bits those of some 2**16; where
    ties depend on codes of one bit more, those too.
    """
    total = hashlib.sha256()
    rules = [(f.name, getattr(fmt, f.name)) for f in fields(fmt) if f.name not in _APART]
    total.update(repr(rules).encode())
    for table in fmt.tables:
        total.update(repr((table.op, len(table.codes))).encode() + table.codes)
    longer = fmt.nbits + (fmt.ties == "encoding" and fmt.negation != "none")
    for nbits in range(fmt.nbits, longer + 1):
        step = 1 if nbits <= SORTED_BITS + 1 else (1 << (nbits - SORTED_BITS)) + 1
        values = (fmt.decoder(code, nbits) for code in range(0, 1 << nbits, step))
        total.update("\n".join(map(repr, values)).encode())
    return total.hexdigest()
