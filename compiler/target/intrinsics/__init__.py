"""Tensor intrinsics: loop semantics plus the target's instruction, one file per instruction set."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from compiler.errors import ScheduleError
from compiler.target.intrinsics import generic
from compiler.target.intrinsics.nvptx_matrices import HALF
from compiler.target.registry import Target
from compiler.tensor.intrinsic import Intrinsic

_FILES = (import_module(f"{__name__}.{m.name}") for m in iter_modules(__path__))
_OF_TARGETS = [f for f in _FILES if hasattr(f, "INTRINSICS") and f is not generic]
_OWN: tuple[Intrinsic, ...] = (
    *(i for f in _OF_TARGETS for i in f.INTRINSICS),
    *generic.INTRINSICS,
)
"""Those of every file of this folder; within a file, the best come first."""
_registered: list[Intrinsic] = []


def register_intrinsic(intrinsic: Intrinsic) -> Intrinsic:
    """Offer an intrinsic to schedules; it goes before those that come with the compiler, and takes
    the place of a registered one of the same name.

    Raises:
        ScheduleError: the name is one of the compiler's own.
    """
    if any(intrinsic.name == i.name for i in _OWN):
        raise ScheduleError(f"{intrinsic.name} is an intrinsic of the compiler: take another name")
    _registered[:] = [i for i in _registered if i.name != intrinsic.name] + [intrinsic]
    return intrinsic


def any_registered() -> bool:
    """Whether there are intrinsics from outside the package."""
    return bool(_registered)


def registered_for(target: Target) -> list[Intrinsic]:
    """Those of `for_target` that come from outside the package."""
    return [i for i in reversed(_registered) if set(i.features) <= target.enabled]


def for_target(target: Target) -> list[Intrinsic]:
    """The intrinsics whose CPU features `target` has, best first; the generic ones are always
    last."""
    every = [*reversed(_registered), *_OWN]
    return [i for i in every if set(i.features) <= target.enabled]


def matrix_steps(target: Target) -> int:
    """Neighbouring bytes of a row of data that the target's instructions for products of matrices
    multiply, or of GPUs, that a thread loads for these; 0: it has none."""
    every = for_target(target)
    found = (i for i in every if i.rows is not None and i.emitter(target.kind))
    products = (i for i in found if len(i.operand_dtypes) == 2)
    of_warps = any(i.emitter("ptx") and not i.late for i in every)
    return next((i.loops["k"] * i.loops["i"] for i in products), HALF if of_warps else 0)


def named_intrinsics() -> dict[str, Intrinsic]:
    """Every intrinsic of any target by name."""
    return {i.name: i for i in (*_OWN, *_registered)}
