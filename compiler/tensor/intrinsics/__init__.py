"""Tensor intrinsics: loop semantics plus the target's instruction, one file per instruction set."""

from __future__ import annotations

from compiler.target import Target
from compiler.tensor.intrinsics import aarch64, generic, nvptx, x86
from compiler.tensor.intrinsics.intrinsic import Intrinsic

_registered: list[Intrinsic] = []


def register_intrinsic(intrinsic: Intrinsic) -> Intrinsic:
    """Offer an intrinsic to schedules; it goes before those that come with the compiler."""
    _registered.append(intrinsic)
    return intrinsic


def for_target(target: Target) -> list[Intrinsic]:
    """The intrinsics whose CPU features `target` has, best first; the generic ones are always
    last."""
    families = (x86, aarch64, nvptx, generic)
    every = [*reversed(_registered), *(i for f in families for i in f.INTRINSICS)]
    return [i for i in every if set(i.features) <= target.enabled]
