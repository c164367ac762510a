"""What a region becomes: primitives one after the other, and the memory between them.

A plan is made without running anything: it is how a pattern's check finds out whether oneDNN can do
something at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.engines.onednn.library import Refused
from compiler.engines.onednn.objects import (
    DST,
    SRC,
    ZERO_POINTS,
    Attributes,
    Desc,
    Primitive,
    cpu,
    run_once,
)
from compiler.tensor.packed_arrays import aligned_empty
from compiler.types.dtypes import Array


@dataclass(eq=False)
class Slot:
    """Memory that holds one value after another.

    Attributes:
        size: bytes.
        array: finds what is in it, if that is known before the program runs.
        given: which operand of the region it is; None: none.
        result: which result of the region it is; None: none.
    """

    size: int
    array: Callable[[], Array] | None = None
    given: int | None = None
    result: int | None = None

    @property
    def own(self) -> bool:
        """Whether it is the region's to write to."""
        return self.array is None and self.given is None


@dataclass(frozen=True)
class Value:
    """A tensor in memory."""

    desc: Desc
    slot: Slot

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.desc.shape


@dataclass(frozen=True)
class Step:
    """A primitive, and what its operands are held in."""

    primitive: Primitive
    operands: Mapping[int, Value]


@dataclass
class Plan:
    """Steps, in order, and how many operands and results there are."""

    steps: list[Step] = field(default_factory=list)
    results: int = 0

    # ---- values ----------------------------------------------------------------------------------
    def new(self, desc: Desc) -> Value:
        """Memory for a value."""
        return Value(desc, Slot(desc.size))

    def constant(self, data: Array) -> Value:
        """A value that is known; it is kept as it is."""
        held = np.ascontiguousarray(data)
        desc = Desc.plain(held.shape or (1,), held.dtype)
        return Value(desc, Slot(desc.size, lambda: held))

    def scalar(self, value: float, rank: int, dtype: str = "float32") -> Value:
        """A constant with `rank` axes of length 1."""
        return self.constant(np.full((1,) * rank, value, dtype))

    # ---- steps -----------------------------------------------------------------------------------
    def run(self, primitive: Primitive, operands: Mapping[int, Value], into: Value | None = None
            ) -> Value:  # fmt: skip
        """Add a step; its operands must be held as the primitive wants them. What it gives."""
        to = into or self.new(primitive.desc(DST))
        self.steps.append(Step(primitive, {**operands, DST: to}))
        return to

    def held(self, v: Value, desc: Desc, own: bool = False) -> Value:
        """`v` as `desc` says; `own`: in memory that may be written to, and is no other value's."""
        if v.desc == desc and not own:
            return v
        if v.slot.array is not None and not own:
            return Value(desc, Slot(desc.size, _reordered(v, desc)))
        return self.run(reorder(v.desc, desc), {SRC: v}, self.new(desc))

    def plain(self, v: Value) -> Value:
        """`v` in C order."""
        return self.held(v, Desc.plain(v.shape, v.desc.dtype))

    def reshaped(self, v: Value, shape: Sequence[int]) -> Value:
        """`v` with another shape: the same memory, where its order allows for that."""
        if tuple(shape) == v.shape:
            return v
        try:
            return Value(v.desc.reshaped(shape), v.slot)
        except Refused:
            flat = self.plain(v)
            return Value(Desc.plain(shape, v.desc.dtype), flat.slot)

    def permuted(self, v: Value, axes: Sequence[int]) -> Value:
        """`v` with its axes in another order: the same memory."""
        return Value(v.desc.permuted(axes), v.slot)

    def lowered(self, v: Value, desc: Desc, by: int) -> Value:
        """uint8 `v` as int8 `v - by`, held as `desc` says."""
        points = Attributes(zero_points=(SRC,))
        primitive = reorder(v.desc, desc, points)
        zero = self.constant(np.array([by], np.int32))
        return self.run(primitive, {SRC: v, ZERO_POINTS + SRC: zero}, self.new(desc))

    # ---- results ---------------------------------------------------------------------------------
    def give(self, v: Value, shape: Sequence[int]) -> None:
        """Let `v` be the next result of the region, in C order."""
        desc = Desc.plain(tuple(shape) or (1,), v.desc.dtype)
        shaped = self.reshaped(v, desc.shape)
        made = any(DST in s.operands and s.operands[DST].slot is v.slot for s in self.steps)
        if shaped.desc == desc and made and v.slot.own and v.slot.result is None:
            v.slot.result = self.results
        else:
            into = self.new(desc)
            into.slot.result = self.results
            self.run(reorder(shaped.desc, desc), {SRC: shaped}, into)
        self.results += 1


def reorder(given: Desc, wanted: Desc, attributes: Attributes | None = None) -> Primitive:
    """What copies from one order in memory to another."""
    engine = cpu()
    args: tuple[Any, ...] = (given.address, engine, wanted.address, engine)
    return Primitive("reorder", *args, attributes=attributes)


def _reordered(v: Value, desc: Desc) -> Callable[[], Array]:
    """What finds a constant's memory in another order, when it is needed."""
    primitive = reorder(v.desc, desc)

    def find() -> Array:
        assert v.slot.array is not None
        made = aligned(desc.size)
        run_once(primitive, {SRC: (v.desc, v.slot.array()), DST: (desc, made)})
        return made

    return find


def aligned(size: int) -> Array:
    """Bytes of memory that start a line of the cache; much of it lies in large pages, where the
    system has some: equal programs take times several percent apart without."""
    return aligned_empty((size,), np.dtype(np.uint8))
