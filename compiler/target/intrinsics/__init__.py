"""Tensor intrinsics: loop semantics plus the target's instruction, one file per instruction set."""

from __future__ import annotations

from compiler.errors import ScheduleError
from compiler.target.intrinsics import aarch64, generic, nvptx, x86
from compiler.target.registry import Target
from compiler.tensor.intrinsic import Intrinsic

_FAMILIES = (x86, aarch64, nvptx, generic)
_registered: list[Intrinsic] = []


def register_intrinsic(intrinsic: Intrinsic) -> Intrinsic:
    """Offer an intrinsic to schedules; it goes before those that come with the compiler, and takes
    the place of a registered one of the same name.

    Raises:
        ScheduleError: the name is one of the compiler's own.
    """
    if any(intrinsic.name == i.name for f in _FAMILIES for i in f.INTRINSICS):
        raise ScheduleError(f"{intrinsic.name} is an intrinsic of the compiler: take another name")
    _registered[:] = [i for i in _registered if i.name != intrinsic.name] + [intrinsic]
    return intrinsic


def any_registered() -> bool:
    """Whether there are intrinsics from outside the package."""
    return bool(_registered)


def for_target(target: Target) -> list[Intrinsic]:
    """The intrinsics whose CPU features `target` has, best first; the generic ones are always
    last."""
    every = [*reversed(_registered), *(i for f in _FAMILIES for i in f.INTRINSICS)]
    return [i for i in every if set(i.features) <= target.enabled]


def named_intrinsics() -> dict[str, Intrinsic]:
    """Every intrinsic of any target by name."""
    return {i.name: i for i in (*(i for f in _FAMILIES for i in f.INTRINSICS), *_registered)}
