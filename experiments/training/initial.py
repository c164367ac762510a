"""Weights to begin with: drawn by a seed, the same ones on every machine and in every version."""

from __future__ import annotations

import math

import numpy as np

from compiler.arithmetic.stochastic import node_number

from .network import BIAS, GAIN, VARIANCE, WEIGHT, Floats, Network, Parameter


def initial(network: Network, seed: int) -> dict[str, Floats]:
    """Name -> values of all parameters, drawn by `seed`.

    Weights and biases of contractions are uniform within 1 / sqrt(fan in), as those of torch's
    linear and convolutional layers are by default (Kaiming He et al. 2015, with a = sqrt(5)); what
    is added elsewhere begins at 0, gains and variances at 1, shifts and means at 0.
    """
    return {p.name: _drawn(p, seed) for p in network.parameters}


def _drawn(p: Parameter, seed: int) -> Floats:
    if p.kind in (WEIGHT, BIAS) and p.fan_in:
        bound = 1 / math.sqrt(p.fan_in)
        drawn = (2 * uniform(seed, p.name, p.value.size) - 1) * bound
        return drawn.reshape(p.value.shape).astype(np.float32)
    value = 1 if p.kind in (GAIN, VARIANCE) else 0
    return np.full(p.value.shape, value, np.float32)


def uniform(seed: int, name: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`count` numbers in (0, 1), by the hash that stochastic rounding uses."""
    from datatypes.formats.randomness import random_bits

    bits = random_bits(seed, node_number(name), np.arange(count), 0)
    return (bits.astype(np.float64) + 0.5) / 2.0**32


def draw(seed: int, step: int) -> int:
    """The draw of random bits of a step: 32 bits of (seed, step) alone."""
    from datatypes.formats.randomness import random_bits

    return int(random_bits(seed, node_number("draws of steps"), step, 0))


def order(seed: int, epoch: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The order of `count` examples in an epoch: a permutation, of (seed, epoch) alone."""
    return np.argsort(uniform(seed, f"order of epoch {epoch}", count), kind="stable")


def moved(x: Floats, seed: int, step: int, most: int) -> Floats:
    """Images [n, channels, height, width] of a step, each moved by up to `most` pixels along both
    axes, by a hash of (seed, step); what comes in is the pixel at the edge."""
    drawn = uniform(seed, f"shifts of step {step}", 2 * len(x)).reshape(-1, 2)
    by = np.floor(drawn * (2 * most + 1)).astype(np.int64)
    height, width = x.shape[2:]
    wide = np.pad(x, ((0, 0), (0, 0), (most, most), (most, most)), mode="edge")
    return np.stack(
        [w[:, i : i + height, j : j + width] for w, (i, j) in zip(wide, by, strict=True)]
    )


def mirrored(x: Floats, seed: int, step: int) -> Floats:
    """Images [n, channels, height, width] of a step, every other one on average as in a mirror that
    stands beside it, by a hash of (seed, step)."""
    drawn = uniform(seed, f"mirrors of step {step}", len(x)) < 0.5
    return np.ascontiguousarray(np.where(drawn.reshape(-1, 1, 1, 1), x[..., ::-1], x))
