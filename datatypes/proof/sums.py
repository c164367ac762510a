"""Sums of products: `nn.dense` and `nn.conv2d` as compiled, against the sequence that defines them.

The sequence: acc = +0; by input channel, kernel row and kernel column, acc = rnd(acc + rnd(a * w)),
or acc = rnd(acc + a * w) where it is fused; what lies in the padding contributes nothing. Vectors
are ordinary numbers beside adversarial ones: saturating, vanishing, cancelling, with NaN (NaR) and
infinities, or any codes at all. In a lowering that defers what it is not sure of, these make it
compute tiles again, and leave others alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Constant
from compiler.types.dtypes import Array
from datatypes.formats import Format
from datatypes.proof import samples
from datatypes.proof.judge import Judge
from datatypes.proof.report import Operands, Row, compared
from datatypes.proof.subject import Subject


@dataclass(frozen=True)
class Conv:
    """A convolution: shapes of data (NCHW) and weight (OIHW), and attributes."""

    name: str
    data: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


CONVOLUTIONS = (
    Conv("conv2d", (1, 17, 9, 10), (33, 17, 3, 3), padding=(1, 1, 1, 1)),
    Conv("strided and dilated conv2d", (2, 3, 12, 11), (16, 3, 3, 2), (2, 1), (3, 1, 2, 2), (2, 3)),
    Conv("grouped conv2d", (1, 32, 7, 7), (32, 16, 3, 3), padding=(1, 1, 1, 1), groups=2),
    Conv("depthwise conv2d", (1, 19, 11, 11), (19, 1, 3, 3), (2, 2), (1, 1, 1, 1), groups=19),
)
PRODUCTS = ((24, 97, 70), (31, 5, 66))
"""Rows, terms and units of matrix products: in long sums small errors may drown."""


def vectors(fmt: Format, rng: np.random.Generator, count: int, size: int) -> Array:
    """`count` vectors of codes: first ordinary ones, then one adversarial kind after the other."""
    rows = samples.ordinary(fmt, rng, count * size).reshape(count, size)
    kinds = adversarial(fmt, rng, size)
    for row in range((count + 1) // 2, count):
        rows[row] = next(kinds)
    return rows


def adversarial(fmt: Format, rng: np.random.Generator, size: int) -> Iterator[Array]:
    """Vectors that break sums, for ever."""
    ends = samples.extremes(fmt)
    while True:
        yield samples.anything(fmt, rng, size)
        yield rng.choice(ends, size)
        mixed = samples.ordinary(fmt, rng, size)
        for codes in (  # saturating, vanishing, cancelling
            [fmt.highest, fmt.code(fmt.lowest)],
            [fmt.code(1), fmt.code(-1), fmt.zero(False), fmt.zero(True)],
            [fmt.highest, 1, fmt.code(fmt.lowest), fmt.encode_exact(1)],
        ):
            yield rng.choice(np.array(codes, fmt.storage), size)
        yield np.where(rng.random(size) < 0.04, rng.choice(ends, size), mixed).astype(fmt.storage)
        single = mixed.copy()
        single[rng.integers(size)] = fmt.nan_code
        yield single
        yield np.full(size, fmt.zero(True), fmt.storage)


def dense(
    subject: Subject, judge: Judge, rng: np.random.Generator, accumulate: str = "sequential"
) -> Iterator[Row]:
    """Matrix products with constant weights; `sequential` or `fma`."""
    # Fractions are slow: of fused sums without a judge in integers, the short ones do.
    for shape in PRODUCTS if accumulate == "sequential" or judge.integer else PRODUCTS[1:]:
        yield _product(shape, accumulate, subject, judge, rng)


def _product(
    shape: tuple[int, int, int],
    accumulate: str,
    subject: Subject,
    judge: Judge,
    rng: np.random.Generator,
) -> Row:
    fmt, (count, terms, units) = subject.fmt, shape
    x, results = vectors(fmt, rng, count, terms), list[tuple[Array, Array]]()
    for w in _weights(fmt, rng, (units, terms)):
        b = FunctionBuilder()
        data, weight = b.param("x", x.shape, subject.dtype), Constant(w, subject.dtype)
        run = subject.build(b, b.call("nn.dense", data, weight, accumulate=accumulate))
        acc = np.full((count, units), fmt.zero(False), fmt.storage)
        for k in range(terms):
            acc = step(judge, acc, x[:, None, k], w[None, :, k], accumulate == "fma")
        results.append((run(x), acc))
    fused = "fused " if accumulate == "fma" else ""
    return _row(f"{fused}nn.dense, {terms} terms", results, judge, subject)


def convolution(
    conv: Conv, subject: Subject, judge: Judge, rng: np.random.Generator
) -> Iterator[Row]:
    """A convolution with constant weights."""
    fmt, results = subject.fmt, list[tuple[Array, Array]]()
    images = [_image(fmt, rng, conv.data), _adversarial_image(fmt, rng, conv.data)]
    for w in _weights(fmt, rng, conv.weight):
        b = FunctionBuilder()
        data, weight = b.param("x", conv.data, subject.dtype), Constant(w, subject.dtype)
        attrs = {name: getattr(conv, name) for name in ("strides", "padding", "dilation", "groups")}
        run = subject.build(b, b.call("nn.conv2d", data, weight, **attrs))
        for x in images:
            got = run(x)
            results.append((got, _convolved(conv, judge, x, w, got.shape)))
    terms = int(np.prod(conv.weight[1:]))
    yield _row(f"{conv.name}, {terms} terms", results, judge, subject)


def _convolved(conv: Conv, judge: Judge, x: Array, w: Array, shape: tuple[int, ...]) -> Array:
    """The convolution by the sequence that defines it."""
    height, width = conv.data[2:]
    outputs, inner, rows, columns = conv.weight
    acc = np.full(shape, judge.fmt.zero(False), judge.fmt.storage)
    out_y, out_x = np.indices(shape[2:])
    source = np.arange(outputs) // (outputs // conv.groups) * inner
    for channel, row, column in np.ndindex(inner, rows, columns):
        y = out_y * conv.strides[0] + row * conv.dilation[0] - conv.padding[0]
        z = out_x * conv.strides[1] + column * conv.dilation[1] - conv.padding[1]
        inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
        picked = x[:, source + channel][:, :, y.clip(0, height - 1), z.clip(0, width - 1)]
        weight = w[None, :, channel, row, column, None, None]
        acc = np.where(inside, step(judge, acc, picked, weight), acc)
    return acc


def _weights(fmt: Format, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Ordinary weights, which leave tiles as they were first computed, and adversarial ones."""
    outputs, terms = shape[0], int(np.prod(shape[1:]))
    plain = samples.ordinary(fmt, rng, outputs * terms)
    return plain.reshape(shape), vectors(fmt, rng, outputs, terms).reshape(shape)


def _image(fmt: Format, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Ordinary numbers, and one extreme."""
    image = samples.ordinary(fmt, rng, int(np.prod(shape)))
    image[rng.integers(image.size)] = rng.choice(samples.extremes(fmt))
    return image.reshape(shape)


def _adversarial_image(
    fmt: Format, rng: np.random.Generator, shape: tuple[int, int, int, int]
) -> Array:
    images, channels, height, width = shape
    planes = vectors(fmt, rng, images * channels, height * width)
    return rng.permuted(planes.reshape(images, channels, -1), axis=1).reshape(shape)


def step(judge: Judge, acc: Array, a: Array, w: Array, fused: bool = False) -> Array:
    """rnd(acc + rnd(a * w)), or rnd(acc + a * w), of arrays of codes that broadcast."""
    if fused:
        return judge.arithmetic("Fma", a, w, acc)
    return judge.arithmetic("Add", acc, judge.arithmetic("Mul", a, w))


def _row(name: str, results: Sequence[tuple[Array, Array]], judge: Judge, subject: Subject) -> Row:
    got, want = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
    places: Operands = [(None, np.asarray(index)) for index in np.indices(got.shape)]
    return compared(name, places, subject.fmt, got, want, judge.name, subject.target)
