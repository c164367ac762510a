"""Windows of convolution and pooling, as ONNX's attributes describe them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.frontend.node import Node
from compiler.ir.expr import Atom, Constant
from compiler.types.tensor_types import TensorType

Pair = tuple[int, int]
Emit = Callable[..., Atom]
"""Node.call, Node.step, or a function like them."""


def spatial(n: Node, name: str, count: int, default: int) -> tuple[int, ...]:
    """A positive number for each of `count` spatial axes.

    Raises:
        UnsupportedError: there are fewer or more, or one is not positive.
    """
    v = tuple(int(x) for x in n.attr(name, (default,) * count))
    if len(v) != count or any(x < 1 for x in v):
        raise n.unsupported(f"{name}={v} for an input of {count} spatial dimensions")
    return v


def padding(
    n: Node, t: TensorType, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[Pair]:
    """(before, after) of every spatial axis, from pads or auto_pad."""
    count = len(kernel)
    auto = n.expect("auto_pad", "NOTSET", "NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER")
    if auto in ("NOTSET", ""):
        pads = tuple(n.attr("pads", (0,) * (2 * count)))
        if len(pads) != 2 * count or any(p < 0 for p in pads):
            raise n.unsupported(f"pads={pads} for an input of {count} spatial dimensions")
        return list(zip(pads[:count], pads[count:], strict=True))
    if auto == "VALID":
        return [(0, 0)] * count
    out = []
    for size, k, s, d in zip(t.shape[2:], kernel, strides, dilation, strict=True):
        # with stride 1 the padding does not depend on the size
        if not isinstance(size, int) and s != 1:
            raise n.unsupported(f"auto_pad={auto!r} and the symbolic size {size}; use shapes=...")
        steps = (-(-size // s) - 1) * s - size if isinstance(size, int) else -1
        total = max(0, steps + (k - 1) * d + 1)
        small, large = total // 2, total - total // 2
        out.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return out


def two(values: Sequence[int], fill: int) -> Pair:
    """A 1-D setting as that of a 2-D window of height 1."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


@dataclass(frozen=True)
class Windows:
    """How a window moves along every spatial axis; `pads` are (before, after)."""

    kernel: Sequence[int]
    strides: Sequence[int]
    dilation: Sequence[int]
    pads: Sequence[Pair]

    def attrs(self, axes: int = 2) -> dict[str, Any]:
        """As attributes of an operator of so many axes: of more, the last ones; of fewer, others
        come first, of length 1. Padding is what is before every axis, then what is behind."""
        more = max(0, axes - len(self.kernel))
        pads = [(0, 0)] * more + list(self.pads[-axes:])
        return {
            "strides": (1,) * more + tuple(self.strides[-axes:]),
            "padding": (*(before for before, _ in pads), *(after for _, after in pads)),
            "dilation": (1,) * more + tuple(self.dilation[-axes:]),
        }


def windows(n: Node, t: TensorType, kernel: Sequence[int]) -> Windows:
    """The windows of `kernel` over data of type `t` that the node's attributes describe."""
    count = len(kernel)
    strides = spatial(n, "strides", count, 1)
    dilation = spatial(n, "dilations", count, 1)
    return Windows(kernel, strides, dilation, padding(n, t, kernel, strides, dilation))


def expanded(n: Node, a: Atom) -> Atom:
    """A tensor with an axis of length 1 at position 2 (a 1-D signal as an image of height 1)."""
    if isinstance(a, Constant):
        return Constant(np.expand_dims(a.data, 2), a.dtype)
    return n.step("expand_dims", a, axes=(2,))
