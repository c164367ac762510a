"""Which device computes what: the fewest bytes are copied, of all ways that there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ir.devices import HOST
from compiler.transform.device_assignment import OUTSIDE, Net, assigned, copied_bytes
from compiler.transform.min_cut import Pipes

Case = tuple[int, dict[int, str], list[set[str]], list[Net]]


def fewest(case: Case) -> int:
    """By trying all ways."""
    count, fixed, possible, nets = case
    choices = [[fixed[k]] if k in fixed else [HOST, *sorted(possible[k])] for k in range(count)]
    return min(copied_bytes(nets, where) for where in itertools.product(*choices))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A program of up to eight operators: each reads values of earlier ones, or parameters."""
    devices = [f"d{k}" for k in range(draw(st.integers(1, 3)))]
    count = draw(st.integers(1, 8 if len(devices) == 1 else 6))
    read: dict[int, set[int]] = {-1 - k: set() for k in range(1, 3)}  # parameters: -2, -3
    for k in range(count):
        for v in draw(st.sets(st.sampled_from([*read]), min_size=1, max_size=3)):
            read[v].add(k)
        read[k] = set()
    for k in range(count):
        if not read[k] or draw(st.booleans()):
            read[k].add(OUTSIDE)
    sizes = st.sampled_from([0, 1, 2, 3, 5, 8])
    nets = [Net(max(v, OUTSIDE), tuple(sorted(r)), draw(sizes)) for v, r in read.items() if r]
    some = st.sets(st.sampled_from(devices))
    possible = [draw(some) for _ in range(count)]
    where = st.sampled_from([HOST, *devices])
    fixed = draw(st.dictionaries(st.integers(0, count - 1), where, max_size=count))
    for k, d in fixed.items():
        possible[k].add(d)
    return count, fixed, possible, nets


def check(case: Case) -> None:
    count, fixed, possible, nets = case
    where = assigned(count, fixed, possible, nets)
    assert all(where[k] == d for k, d in fixed.items())
    assert all(where[k] == HOST or where[k] in possible[k] for k in range(count))
    assert copied_bytes(nets, where) == fewest(case)


@settings(max_examples=40)
@given(cases())
def test_nothing_copies_less(case: Case) -> None:
    check(case)


@pytest.mark.thorough
@settings(max_examples=2000)
@given(cases())
def test_nothing_copies_less_in_many_programs(case: Case) -> None:
    check(case)


def chain(*sizes: int) -> list[Net]:
    """Operators one after another; sizes of the parameter and of each result."""
    last = len(sizes) - 2
    return [
        Net(k - 1 if k else OUTSIDE, (k if k <= last else OUTSIDE,), n) for k, n in enumerate(sizes)
    ]


GRAPHS: dict[str, tuple[int, dict[int, str], list[Net], list[str], int]] = {
    "a chain is cut where it is narrow": (
        4, {1: "d"}, chain(8, 4, 4, 2, 8), ["host", "d", "d", "host"], 4 + 2,
    ),
    "what lies between two goes along": (
        3, {0: "d", 2: "d"}, chain(4, 4, 4, 4), ["d", "d", "d"], 8,
    ),
    "what is wide between two devices goes to one": (
        3, {0: "d", 2: "e"}, chain(1, 9, 2, 1), ["d", "d", "e"], 1 + 2 * 2 + 1,
    ),
    "a value is copied once, however many read it": (
        4, {0: "d"},
        [Net(OUTSIDE, (0,), 2), Net(0, (1, 2, 3), 6), Net(1, (OUTSIDE,), 5), Net(2, (OUTSIDE,), 5),
         Net(3, (OUTSIDE,), 5)],
        ["d", "host", "host", "host"], 2 + 6,
    ),
    "a shortcut around a block": (
        4, {0: "d", 2: "d"},
        [Net(OUTSIDE, (0,), 4), Net(0, (1, 3), 4), Net(1, (2,), 4), Net(2, (3,), 4),
         Net(3, (OUTSIDE,), 4)],
        ["d", "d", "d", "d"], 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    count, fixed, nets, where, copied = GRAPHS[name]
    every = [{"d", "e"} for _ in range(count)]
    found = assigned(count, fixed, every, nets)
    assert found == where
    assert copied_bytes(nets, found) == copied == fewest((count, fixed, every, nets))


def test_least_cuts_are_least() -> None:
    """Of random graphs, beside all ways to cut them; the side of the source is the smallest."""

    @settings(max_examples=40)
    @given(st.lists(st.tuples(*[st.integers(0, 5)] * 2, st.integers(0, 9)), max_size=14))
    def check(edges: list[tuple[int, int, int]]) -> None:
        pipes = Pipes(6)
        for a, b, room in edges:
            pipes.add(a, b, room)
        total, side = pipes.least_cut(0, 5)
        ways = []
        for some in itertools.product([False, True], repeat=4):
            near = {0, *(k + 1 for k in range(4) if some[k])}
            ways.append((sum(c for a, b, c in edges if a in near and b not in near), len(near)))
        assert (total, len(side)) == min(ways)

    check()


def test_deep_networks_take_no_deep_recursion() -> None:
    n = 20_000
    where = assigned(n, {0: "d", n - 1: "d"}, [{"d"}] * n, chain(*[3] * (n + 1)))
    assert where == ["d"] * n
