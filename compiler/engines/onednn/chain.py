"""What is done with a primitive's results before they are stored: elementwise operators as
post-operations.

Numbers are float32 there, integers too. A chain keeps what is to be added to integers, and their
bounds, until it is known what comes next: storing in 8 bits rounds to the nearest even integer and
saturates by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.engines.onednn.library import Refused
from compiler.engines.onednn.objects import Binary, Desc, Eltwise, Kind, Pair, PostOp, Sum
from compiler.engines.onednn.plan import Plan, Value
from compiler.types.dtypes import Array

MOST = 32
"""Post-operations that a primitive takes."""


@dataclass(frozen=True)
class Post:
    """A post-operation, and the tensor that it reads."""

    op: PostOp
    operand: Value | None = None


Fit = Callable[[Sequence[int]], tuple[int, ...]]
"""Shape of an operand of the value's rank -> its shape beside the primitive's result."""


@dataclass
class Chain:
    """Post-operations of a value.

    Attributes:
        plan: what operands are made in.
        shape: of the value, in the program.
        fit: how its operands look to the primitive.
        sums: bounds of |integer sums| that the primitive starts from, for each output channel (the
            value's axis `channels`), bias included; None: it starts from no sums.
        broadcasts: whether operands may be smaller than the value along some axes only. After
            binary primitives version 3.2 reads wrong elements where all other axes have length 1.
        begins: whether the first post-operation becomes the primitive, whose operands may be so.
    """

    plan: Plan
    shape: tuple[int, ...]
    fit: Fit
    sums: Array | None = None
    channels: int = 1
    broadcasts: bool = False
    begins: bool = False
    posts: list[Post] = field(default_factory=list)
    _offset: int = 0
    _bounds: tuple[int, int] | None = None

    # ---- numbers ---------------------------------------------------------------------------------
    def function(self, kind: Kind, alpha: float = 0.0, beta: float = 0.0) -> None:
        """f(value), as oneDNN defines f."""
        self._settle()
        self._push(Post(Eltwise(kind, alpha, beta)))

    def binary(self, kind: Pair, other: Value) -> None:
        """value op other, which broadcasts to the value."""
        self._settle()
        if other.desc.dtype != np.float32:
            raise Refused(f"oneDNN computes in float32, and an operand is {other.desc.dtype}")
        shape = (1,) * (len(self.shape) - len(other.shape)) + other.shape
        if shape == (1,) and not self.shape:
            shape = ()
        if any(a not in (1, b) for a, b in zip(shape, self.shape, strict=True)):
            raise Refused(f"an operand of shape {other.shape} is larger than {self.shape}")
        partly = shape != self.shape and math.prod(shape) > 1
        if partly and not self.broadcasts and (self.posts or not self.begins):
            raise Refused("an operand that broadcasts along some axes, but not all")
        held = self.plan.reshaped(other, self.fit(shape))
        full = held.shape == self.fit(self.shape) and math.prod(held.shape) > 1
        known = held.slot.array is not None
        desc = Desc.any(held.shape, np.float32) if full and not known else held.desc
        self._push(Post(Binary(kind, desc), held))

    def by_constant(self, kind: Pair, number: Array) -> None:
        """value op a constant, which broadcasts to it."""
        self.binary(kind, self.plan.constant(np.asarray(number, np.float32)))

    def accumulate(self, other: Value, scale: float, zero_point: int) -> None:
        """value + (other - zero_point) * scale, of a tensor of the value's shape and of 8 bits."""
        self._settle()
        if other.shape != self.shape:
            raise Refused(f"an operand of shape {other.shape} is not {self.shape}")
        held = self.plan.reshaped(other, self.fit(self.shape))
        self._push(Post(Sum(scale, zero_point), held))

    # ---- integers --------------------------------------------------------------------------------
    def shift(self, by: int) -> None:
        """value + by, of integers."""
        self._bound()
        self._offset += by

    def to_integers(self, offset: int, low: int, high: int) -> None:
        """clip(round(value) + offset, low, high)."""
        self._settle()
        self._push(Post(Eltwise(Kind.ROUND)))
        self._offset, self._bounds = offset, (low, high)

    def finished(self, dtype: np.dtype) -> list[Post]:
        """The post-operations of a result that is stored in `dtype`."""
        if dtype.kind in "iu" and dtype.itemsize == 1:
            info = np.iinfo(dtype)
            if self._bounds and self._bounds[0] <= info.min and self._bounds[1] >= info.max:
                self._bounds = None  # storing saturates
            rounds = self.posts and self.posts[-1].op == Eltwise(Kind.ROUND)
            if rounds and not self._offset and self._bounds is None:
                self.posts.pop()  # storing rounds
        self._settle()
        if sum(isinstance(p.op, Sum) for p in self.posts) > 1:
            raise Refused("oneDNN adds one tensor of 8 bits at most")
        return list(self.posts)

    def _bound(self) -> None:
        if self._bounds is not None:
            low, high = (b - self._offset for b in self._bounds)
            self._bounds = None
            self._push(Post(Eltwise(Kind.CLIP, low, high)))

    def _settle(self) -> None:
        self._bound()
        if self._offset:
            offset, self._offset = self._offset, 0
            self._push(Post(Eltwise(Kind.LINEAR, 1.0, offset)))

    def _push(self, post: Post) -> None:
        if len(self.posts) == MOST:
            raise Refused(f"more than {MOST} post-operations")
        self.posts.append(post)
