"""DFT and STFT as products with matrices of cosines and sines."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.frontend.choices import axes_of, each_value, same_rank
from compiler.frontend.node import Node, converts
from compiler.frontend.run_time import found, integers, number, positions
from compiler.frontend.values import Imported, constant_of
from compiler.ir.expr import Atom, tensor_type
from compiler.symbolic import Dim
from compiler.types.dtypes import Array


@converts("DFT")
@each_value(2, axes_of(same_rank, 2))
def dft(n: Node) -> Imported:
    """Along one axis; the last axis holds real and imaginary parts, or real ones alone.

    Definition: the ONNX standard, whose results are those of numpy's fft, ifft and irfft.
    """
    t, inverse, onesided = n.type(0), bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    axis = int(n.known(2, "axis").reshape(())) if n.has(2) else n.attr("axis", -2)
    axis = n.front(axis if n.opset >= 20 else n.attr("axis", 1), t.rank)
    size = t.shape[axis]
    if not isinstance(size, int) or axis == t.rank - 1:
        raise n.unsupported(f"axis {axis} of {t}; use shapes=...")
    length = 2 * (size - 1) if inverse and onesided else size
    if n.has(1):
        length = int(n.known(1, "dft_length").reshape(()))
    order = [k for k in range(t.rank) if k != axis]
    x = n.step("transpose", n.atom(0), axes=(*order, axis))  # ..., 1 or 2, size
    y = _transformed(n, x, length, inverse, onesided)
    back = [*order, axis]
    return n.call("transpose", y, axes=tuple(back.index(k) for k in range(t.rank)))


@converts("STFT")
def stft(n: Node) -> Imported:
    """The DFTs of overlapping frames, [batch, frames, frequencies, 2]."""
    t, (step,) = n.type(0), integers(n, 1)
    window = n.type(2).shape[0] if n.has(2) else None
    length = int(n.known(3, "frame_length").reshape(())) if n.has(3) else window
    signal = t.shape[1]
    if not isinstance(length, int) or window not in (None, length):
        raise n.unsupported(f"a window of {window} for frames of {length}")
    if isinstance(signal, int) and isinstance(step, int):
        if step < 1 or not 0 < length <= signal:
            raise n.unsupported(f"frames of {length} every {step} of a signal of {signal}")
        frames: Dim = 1 + (signal - length) // step
    else:
        frames = _frames(n, signal, length, number(n, step))
    first = n.step("multiply", positions(n, frames), number(n, step))
    at = n.step("add", n.step("expand_dims", first, axes=(1,)), positions(n, length))
    x = n.atom(0) if t.rank == 3 else n.step("expand_dims", n.atom(0), axes=(2,))
    x = n.step("take", x, at, axis=1)
    x = n.step("transpose", x, axes=(0, 1, 3, 2))  # batch, frames, 1 or 2, length
    if n.has(2):
        x = n.step("multiply", x, n.atom(2))
    y = _transformed(n, x, length, inverse=False, onesided=bool(n.attr("onesided", 1)))
    return n.call("transpose", y, axes=(0, 1, 3, 2))


def _frames(n: Node, signal: Dim, length: int, step: Atom) -> Dim:
    """How many frames a signal has; where it has none, or the step is not positive, a size of -1 is
    refused."""
    zero, one = number(n, 0), number(n, 1)
    span = n.step("subtract", number(n, signal), number(n, length))
    count = n.step("add", n.step("divide", span, n.step("maximum", step, one)), one)
    ahead = n.step("logical_and", n.step("greater_equal", span, zero), n.step("less", zero, step))
    return found(n, n.step("where", ahead, count, number(n, -1)))


def _transformed(n: Node, x: Atom, length: int, inverse: bool, onesided: bool) -> Atom:
    """[..., parts, frequencies] of [..., parts, size], which is cut or continued with zeros."""
    t = tensor_type(x)
    parts, size = t.shape[-2:]
    if not isinstance(parts, int) or not isinstance(size, int) or parts > 2 or length < 1:
        raise n.unsupported(f"{parts} parts of a number and a length of {length}")
    if parts == 2 and onesided and not inverse:
        raise n.unsupported("onesided=1 of complex numbers")
    half = length // 2 + 1
    used = min(size, half if inverse and onesided else length)
    n.reserve(2, length, used)
    if used < size:
        x = n.step("strided_slice", x, begin=(0,), end=(used,), axes=(t.rank - 1,))
    cosines, sines = _waves(length, used, half if onesided and not inverse else length)
    if inverse:
        cosines, sines = cosines / length, -sines / length
        if onesided:  # each frequency but the ends stands for two
            twice = np.where((np.arange(used) == 0) | (2 * np.arange(used) == length), 1.0, 2.0)
            cosines, sines = cosines * twice, sines * twice
    rows = [
        n.step("strided_slice", x, begin=(k,), end=(k + 1,), axes=(t.rank - 2,))
        for k in range(parts)
    ]

    def product(k: int, matrix: Array) -> Atom:
        return n.step("nn.dense", rows[k], constant_of(matrix, t.dtype))

    real, imaginary = product(0, cosines), None if inverse and onesided else product(0, -sines)
    if parts == 2:
        real = n.step("add", real, product(1, sines))
        imaginary = None if imaginary is None else n.step("add", imaginary, product(1, cosines))
    if imaginary is None:
        return real
    return n.step("concatenate", real, imaginary, axis=t.rank - 2)


def _waves(length: int, size: int, count: int) -> Sequence[Array]:
    """cos and sin of 2 pi f k / length, [count of f, size of k]; the angle is reduced exactly."""
    turns = np.outer(np.arange(count), np.arange(size)) % length
    angle = turns * (2 * math.pi / length)
    return np.cos(angle), np.sin(angle)
