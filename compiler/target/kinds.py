"""Kinds of targets, which are what a target's text begins with."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import UnsupportedError, unknown


@dataclass(frozen=True)
class TargetKind:
    """One kind of target. `compiler.runtime.loader.register_target_kind` adds another.

    Attributes:
        name: the first word of the targets' texts.
        lowerings: the kind that lowering functions of datatypes are registered for.
        schedules: the machines that default schedules are made for (`compiler.scheduling.default`).
        grid: whether it has grids of threads.
    """

    name: str
    lowerings: str = "llvm"
    schedules: str = "cpu"
    grid: bool = False


_kinds = {k.name: k for k in (TargetKind("llvm"), TargetKind("c"))}


def add_kind(kind: TargetKind) -> None:
    """Let targets of a kind be parsed.

    Raises:
        UnsupportedError: the name is taken.
    """
    if kind.name in _kinds:
        raise UnsupportedError(f"there is a kind of target {kind.name!r} already")
    _kinds[kind.name] = kind


def remove_kind(name: str) -> None:
    """Forget a kind, if there is one of that name."""
    _kinds.pop(name, None)


def kind_of(name: str) -> TargetKind:
    """The kind of a name.

    Raises:
        UnsupportedError: there is none.
    """
    if name not in _kinds:
        raise UnsupportedError(unknown("kind of target", name, _kinds))
    return _kinds[name]


def kinds() -> tuple[str, ...]:
    """The names of all kinds."""
    return tuple(_kinds)
