"""Which device computes what, so that the fewest bytes are copied.

Copies go through the host: a value that is computed on a device, and read anywhere else, is copied
to the host once, and from there once to each other device that reads it. So what is copied is a sum
over the devices but the host, of the values that are touched both on that device and elsewhere: for
each device, the cut of a hypergraph whose edges are values. A sum is no less than the sum of its
least terms, and all of these can be had at once: the fewest nodes that attain one device's least
cut have nothing in common with another's (cuts of hypergraphs are symmetric and submodular, so that
taking each other's nodes away from two such sets makes neither cut larger), and what is in none of
them is the host's, which all nodes may be. So the result is exact for any number of devices. Least
cuts are found by flows, where an edge of a hypergraph is two nodes (E. Lawler, 1973).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compiler.ir.devices import HOST
from compiler.transform.min_cut import WIDE, Pipes

OUTSIDE = -1
"""Stands for the host in `Net`: of parameters, as what computes them, and of results, as what reads
them."""


@dataclass(frozen=True)
class Net:
    """A value: the node that computes it, those that read it, and its size."""

    producer: int
    readers: tuple[int, ...]
    bytes: int


def copied_bytes(nets: Iterable[Net], where: Sequence[str]) -> int:
    """Bytes that are copied from device to device where node k is computed on `where[k]`."""
    total = 0
    for net in nets:
        touched = {HOST if k == OUTSIDE else where[k] for k in (net.producer, *net.readers)}
        total += net.bytes * len(touched - {HOST}) if len(touched) > 1 else 0
    return total


def assigned(
    count: int,
    fixed: Mapping[int, str],
    possible: Sequence[Collection[str]],
    nets: Sequence[Net],
) -> list[str]:
    """The device of each of `count` nodes, so that `copied_bytes` is least; the host, where that is
    no more. `fixed`: those that are given; `possible`: on which devices but the host a node can be
    computed."""
    where = [fixed.get(k, HOST) for k in range(count)]
    for device in sorted(set(fixed.values()) - {HOST}):
        for k in _least(count, device, fixed, possible, nets):
            where[k] = device
    return where


def _least(
    count: int,
    device: str,
    fixed: Mapping[int, str],
    possible: Sequence[Collection[str]],
    nets: Sequence[Net],
) -> list[int]:
    """The fewest nodes on a device for which the least is copied from and to it."""
    pipes = Pipes(count)
    source, sink = pipes.node(), pipes.node()
    for k in range(count):
        if fixed.get(k) == device:
            pipes.add(source, k, WIDE)
        elif k in fixed or device not in possible[k]:
            pipes.add(k, sink, WIDE)
    for net in nets:
        ends = {sink if k == OUTSIDE else k for k in (net.producer, *net.readers)}
        if len(ends) < 2 or not net.bytes:
            continue
        first, last = pipes.node(), pipes.node()
        pipes.add(first, last, net.bytes)
        for k in ends:
            pipes.add(k, first, WIDE)
            pipes.add(last, k, WIDE)
    _, side = pipes.least_cut(source, sink)
    return sorted(k for k in side if k < count)
