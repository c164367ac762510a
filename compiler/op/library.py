"""The library of operators: every file of this folder registers its own, and all are found by
name."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

import compiler.op
from compiler.errors import DtypelabError, unknown
from compiler.op.opdef import REGISTERED, OpDef


def get_op(name: str) -> OpDef:
    """The operator called `name`.

    Raises:
        DtypelabError: there is none.
    """
    _load()
    if name not in REGISTERED:
        raise DtypelabError(unknown("operator", name, REGISTERED))
    return REGISTERED[name]


def all_ops() -> dict[str, OpDef]:
    """Every registered operator by name."""
    _load()
    return dict(REGISTERED)


@cache
def _load() -> None:
    """Import the modules of this folder."""
    for module in walk_packages(compiler.op.__path__, "compiler.op."):
        import_module(module.name)
