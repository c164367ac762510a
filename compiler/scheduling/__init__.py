"""Schedule: transforms the loop nests of one PrimFunc without changing what they compute."""

from __future__ import annotations

from compiler.scheduling.packing import PackPrimitives
from compiler.scheduling.regions import RegionPrimitives
from compiler.scheduling.tensorize import TensorizePrimitives
from compiler.tensor.stmt import PrimFunc


class Schedule(RegionPrimitives, TensorizePrimitives, PackPrimitives):
    """Schedule primitives on a PrimFunc, which they change in place.

    A loop name denotes every loop of that name: the tails that `peel` makes keep theirs.
    """

    def __init__(self, func: PrimFunc):
        self.func = func


__all__ = ["Schedule"]
