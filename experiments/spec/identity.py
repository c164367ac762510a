"""What gives a row its meaning besides its specification: everything that this process defined.

A specification names formats, block formats, registered datatypes, metrics and adapters; what these
names mean is the user's, and may change while the names stay. What ships counts by its name, as the
version of this program is a column of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from experiments.files import sha256
from experiments.measure import scoring
from experiments.systems.schemes import Scheme, names_in
from experiments.user_code import adapters
from experiments.user_code.fingerprints import Fingerprint

if TYPE_CHECKING:
    from .cells import Cell


def definitions(scheme: Scheme) -> dict[str, Any]:
    """What the names in a scheme mean, as far as this process defined it: JSON values by kind.

    "formats": name -> hash of what a format means, its seed and tables of operations included;
    "blocks": name -> the fields of a block format; "registered": what lowering functions and
    minimums of datatypes do, by what they are for; "libraries": SHA-256 of the C libraries that
    these call. Kinds of which nothing was defined are left out.
    """
    from datatypes import registry
    from datatypes.formats.catalogue import defined
    from datatypes.formats.hashing import digest
    from quantize.formats.blocks import block_format, defined_block_format

    names = names_in(scheme.dtype, scheme.options)
    for block in filter(None, map(block_format, sorted(names))):
        names |= {block.element, block.scale}
    print_ = Fingerprint()
    registered: dict[str, str] = {}
    while True:
        # A lowering may use other datatypes, by name; what it calls is found when it is read.
        found = registry.registered(names)
        if found.keys() == registered.keys():
            break
        print_ = Fingerprint()
        registered = {use: print_.of(function) for use, function in found.items()}
        names |= names_in(tuple(print_.texts))
    blocks = {n: asdict(b) for n in sorted(names) if (b := defined_block_format(n))}
    formats = {n: digest(f) for n in sorted(names) if (f := defined(n))}
    kinds = {
        "formats": formats,
        "blocks": blocks,
        "registered": registered,
        "libraries": _libraries(print_.texts) if registered else [],
    }
    return {kind: content for kind, content in kinds.items() if content}


def _libraries(symbols: Iterable[str]) -> list[str]:
    from datatypes.c_libraries.library import libraries_of

    return sorted(map(sha256, libraries_of(symbols)))


def metric_content(name: str) -> list[str]:
    """What a metric is: nothing for the usual one, its name, or its name and what it does."""
    if adapters.is_reference(name):
        return [name.rpartition(":")[2], adapters.adapter_of(name).sha256]
    registered = scoring.registered(name)
    if registered is not None:
        return [name, Fingerprint().of(registered)]
    return [] if name == "top1" else [name]


def adapter_content(cell: Cell) -> list[str]:
    """SHA-256 of the adapters, and of the modules beside them, that a cell's specification runs.

    That of its metric is not among them, unless it is named otherwise too.
    """
    named = adapters.files_of(cell.model.source, cell.dataset_source)
    return sorted({adapters.current(path).sha256 for path in (*cell.adapters, *named)})


def compiling() -> dict[str, Any]:
    """How this process compiles, where that is not as usual: its PassContext, the records of
    tuning that it applies, and the rules that were registered with the compiler."""
    from compiler.scheduling import rules
    from compiler.transform import layout_rules

    changed: dict[str, Any] = dict(pass_context())
    own = [*layout_rules.registered(), *rules.registered()]
    return changed | ({"rules": Fingerprint().of(own)} if own else {})


def pass_context() -> dict[str, str]:
    """What of a PassContext, and of a tuning log, other processes know nothing of."""
    from compiler.passes.manager import PassContext
    from compiler.scheduling.tuning_log import CONFIG, active_digest

    now, usual = PassContext.current(), PassContext()
    names = ("opt_level", "required_pass", "disabled_pass")
    changed = {
        name: repr(value) for name in names if (value := getattr(now, name)) != getattr(usual, name)
    }
    config = {k: v for k, v in sorted(now.config.items()) if k != CONFIG}
    given = {"config": repr(config) if config else "", "tuning": active_digest()}
    return changed | {k: v for k, v in given.items() if v}
