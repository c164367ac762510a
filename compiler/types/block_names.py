"""What formats of blocks of numbers are called: no format of numbers may have such a name.

`quantize` has what they are, and `datatypes` refuses their names; neither knows the other.
"""

from __future__ import annotations

SHIPPED = frozenset(
    (
        "mxfp8_e4m3",
        "mxfp8_e5m2",
        "mxfp6_e3m2",
        "mxfp6_e2m3",
        "mxfp4_e2m1",
        "mxint8",
        "nvfp4",
        "nvint4",
    )
)
"""Those that are there whether `quantize` was imported or not."""

_names = {*SHIPPED}


def names_blocks(name: str) -> bool:
    """Whether a format of blocks is called so."""
    return name in _names


def note_blocks(name: str) -> None:
    """Note the name of a format of blocks that a user defines."""
    _names.add(name)
