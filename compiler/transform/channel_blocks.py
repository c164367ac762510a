"""Channels in blocks: where they lie, constants laid out like them, and channel shuffles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compiler.ir.expr import Atom, Binding, Call, Constant, Function, Var, operands, tensor_type
from compiler.op.layout import filled_channels
from compiler.op.opdef import OpDef
from compiler.op.shapes import RESHAPE, TRANSPOSE
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType


class Blocks(NamedTuple):
    """How channels lie in NCHW[x]c: `size` a block, in `groups` that are filled up to blocks."""

    size: int
    groups: int = 1

    def at(self, channels: int) -> Array:
        """Position of every channel."""
        per, c = channels // self.groups, np.arange(channels)
        return c // per * (-(-per // self.size) * self.size) + c % per

    def held(self, channels: int) -> int:
        """Channels, filling included."""
        return filled_channels(channels, self.size, self.groups)


def blocks_of(channels: int, size: int, groups: int) -> Blocks:
    """The blocks of grouped channels; groups of whole blocks are as good as no groups."""
    return Blocks(size, groups if channels // groups % size else 1)


def filled(c: Constant, sizes: dict[int, int]) -> Constant:
    """The constant with axes filled up to `sizes` with zeros."""
    widths = [(0, sizes.get(k, n) - n) for k, n in enumerate(c.data.shape)]
    if not any(w for _, w in widths):
        return c
    return Constant(np.pad(c.data, widths), c.dtype)


def merged(weight: Constant, groups: int, most: int) -> tuple[Constant, int]:
    """(weights, groups) with as many neighbouring groups as have at most `most` outputs made one:
    what they do not share is zero. Exact for integers; zero times infinity is not."""
    outputs, inputs, *kernel = weight.data.shape
    per = outputs // groups
    m = max((k for k in range(1, groups + 1) if groups % k == 0 and k * per <= most), default=1)
    if m == 1:
        return weight, groups
    data = np.zeros((groups // m, m, per, m, inputs, *kernel), weight.data.dtype)
    for k in range(m):
        data[:, k, :, k] = weight.data.reshape(groups // m, m, per, inputs, *kernel)[:, k]
    return Constant(data.reshape(outputs, m * inputs, *kernel), weight.dtype), groups // m


def placed(c: Constant, channels: int, blocks: Blocks) -> Constant:
    """The constant with its first axis, channels, laid out in blocks; filling is zero."""
    held = blocks.held(channels)
    if held == channels:
        return c
    data = np.zeros((held, *c.data.shape[1:]), c.data.dtype)
    data[blocks.at(channels)] = c.data
    return Constant(data, c.dtype)


def channels_of(a: Atom) -> int:
    """Channels of NCHW data."""
    return int(str(tensor_type(a).shape[1]))


def shuffles(f: Function) -> dict[Var, tuple[Binding, Binding, int]]:
    """First reshape of a channel shuffle -> (its transpose, its last reshape, groups)."""
    uses: dict[Atom, int] = {}
    for a in [*f.results, *(a for b in f.bindings for a in operands(b.value))]:
        uses[a] = uses.get(a, 0) + 1
    calls = {
        b.var: b for b in f.bindings if isinstance(b.value, Call) and isinstance(b.value.op, OpDef)
    }
    found = {}
    for last in calls.values():
        chain = [last]
        for op in (RESHAPE, TRANSPOSE, RESHAPE):
            v = chain[-1].value
            assert isinstance(v, Call)
            if v.op is not op:
                break
            if len(chain) == 3:
                groups = _shuffled(chain[2], chain[1], last)
                if groups and uses[chain[2].var] == uses[chain[1].var] == 1:
                    found[chain[2].var] = (chain[1], last, groups)
                break
            (x,) = v.args
            producer = calls.get(x) if isinstance(x, Var) else None
            if producer is None:
                break
            chain.append(producer)
    return found


def _shuffled(first: Binding, between: Binding, last: Binding) -> int:
    """Groups of the channel shuffle that reshape, transpose and reshape make; 0 if they do not."""
    assert isinstance(first.value, Call)
    assert isinstance(between.value, Call)
    (x,), axes = first.value.args, tuple(k % 5 for k in between.value.attrs.axes or ())
    old, new = tensor_type(x).shape, tensor_type(first.var).shape
    fits = len(old) == 4 and len(new) == 5 and axes == (0, 2, 1, 3, 4)
    if not fits or tensor_type(last.var).shape != old or not isinstance(old[1], int):
        return 0
    same = new[0] == old[0] and new[3:] == old[2:]
    return new[1] if same and isinstance(new[1], int) else 0


def broadcast(a: Constant, v: Call, out: TensorType, block: Blocks) -> Constant | None:
    """A constant operand of an elementwise operator as it broadcasts to blocked data."""
    data = a.data
    if data.ndim == 0 or data.size == 1:
        return Constant(data.reshape(()), a.dtype)
    channels = out.shape[1]
    if data.ndim == 1 and getattr(v.attrs, "axis", None) in (1, -3):
        data = data.reshape(-1, 1, 1)
    if data.ndim == 4 and data.shape[0] == 1:
        data = data[0]
    if data.ndim != 3 or data.shape[0] != channels or data.shape[1:] != (1, 1):
        return None
    flat = data.reshape(-1)
    # Filling repeats the last channel: zeros could divide.
    full = np.full(block.held(flat.size), flat[-1], flat.dtype)
    full[block.at(flat.size)] = flat
    return Constant(np.ascontiguousarray(full.reshape(1, -1, 1, 1, block.size)), a.dtype)
