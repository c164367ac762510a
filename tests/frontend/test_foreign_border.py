"""How a graph is divided into our nodes and onnxruntime's, on random graphs; and values that are no
tensors, as bytes and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from compiler.boundary.packed import pack, unpack
from compiler.errors import InputError
from compiler.frontend.foreign.border import Border, Unit
from compiler.frontend.foreign.kinds import no_tensor


@st.composite
def graphs(draw: Any) -> tuple[Any, dict[str, Any], set[int]]:
    """A graph of up to 9 nodes, the types of its values that are no tensors, and the nodes that we
    refuse."""
    count = draw(st.integers(1, 9))
    nodes = []
    for k in range(count):
        before = ["x", *(f"v{j}" for j in range(k))]
        reads = draw(st.lists(st.sampled_from(before), min_size=1, max_size=2, unique=True))
        nodes.append(helper.make_node("Any", reads, [f"v{k}"], f"n{k}"))
    kinds = {f"v{k}": no_tensor() for k in range(count) if draw(st.integers(0, 4)) == 0}
    seeds = {k for k in range(count) if draw(st.integers(0, 4)) == 0}
    graph = SimpleNamespace(node=nodes, sparse_initializer=[], initializer=[])
    return graph, kinds, seeds


def smallest(graph: Any, kinds: dict[str, Any], seeds: set[int]) -> set[frozenset[int]]:
    """The regions, by their definition: sets of what must be together, joined as long as two need
    each other."""
    nodes = graph.node
    reads = [[int(v[1:]) for v in n.input if v != "x"] for n in nodes]
    foreign = {int(v[1:]) for v in kinds}
    mine = {k for k in range(len(nodes)) if k in seeds or k in foreign or foreign & {*reads[k]}}
    sets = [{k} for k in range(len(nodes))]

    def of(k: int) -> int:
        return next(i for i, s in enumerate(sets) if k in s)

    def join(a: int, b: int) -> None:
        i, j = sorted((of(a), of(b)))
        if i != j:
            sets[i] |= sets.pop(j)

    for k in range(len(nodes)):
        for j in reads[k]:
            if j in foreign:
                join(j, k)
    while True:
        edges = {(of(j), of(k)) for k in range(len(nodes)) for j in reads[k] if of(j) != of(k)}
        reached = set(edges)
        while more := {(a, d) for a, b in reached for c, d in edges if b == c} - reached:
            reached |= more
        circle = next(((a, b) for a, b in reached if a < b and (b, a) in reached), None)
        if circle is None:
            break
        join(min(sets[circle[0]]), min(sets[circle[1]]))
    return {frozenset(s) for s in sets if s & mine}


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_regions_are_the_smallest_that_can_be_computed(drawn: Any) -> None:
    graph, kinds, seeds = drawn
    units = Border(graph, kinds, lambda n: int(n.name[1:]) in seeds).units()
    got = {frozenset(int(n.name[1:]) for n in u.nodes) for u in units if u.foreign}
    assert got == smallest(graph, kinds, seeds)
    assert sorted(n.name for u in units for n in u.nodes) == sorted(n.name for n in graph.node)
    there = {"x"}
    for u in units:  # every value is there when it is read, and crosses a border as a tensor
        assert set(u.reads) <= there
        assert not {v for v in u.reads if v in kinds}
        there |= set(u.writes)


def test_values_that_subgraphs_see_are_read() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Neg", ["c"], ["d"])],
        "inner", [helper.make_tensor_value_info("a", 1, None)],
        [helper.make_tensor_value_info("d", 1, None), helper.make_tensor_value_info("e", 1, None)],
    )  # fmt: skip
    node = helper.make_node("Any", ["x", ""], ["y", ""], body=inner)
    assert Unit((node,)).reads == ["x", "b", "e"]
    assert Unit((node,)).writes == ["y"]


TEXT = st.text(max_size=6).filter(lambda s: s.isprintable() or "\0" in s)


@given(st.lists(TEXT, max_size=4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_strings_come_back(texts: list[str], column: bool) -> None:
    a = np.array(texts, object).reshape((-1, 1) if column else (-1,))
    held = pack(a, "tensor(string)", "it")
    assert held.dtype == np.uint8
    assert held.shape[:-1] == a.shape
    back = unpack(held, "tensor(string)")
    assert back.shape == a.shape
    assert back.tolist() == a.tolist()


ARRAYS = st.builds(
    lambda shape, seed: np.random.default_rng(seed).standard_normal(shape).astype(np.float32),
    st.lists(st.integers(0, 3), max_size=3), st.integers(0, 9),
)  # fmt: skip


@given(st.lists(st.one_of(st.none(), st.lists(ARRAYS, max_size=3)), max_size=3))
@settings(max_examples=60, deadline=None)
def test_nested_values_come_back(value: Any) -> None:
    kind = "seq(optional(seq(tensor(float))))"
    back = unpack(pack(value, kind, "it"), kind)
    assert [None if x is None else len(x) for x in back] == [
        None if x is None else len(x) for x in value
    ]
    for got, wanted in zip(back, value, strict=True):
        for g, w in zip(got or [], wanted or [], strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_array_equal(g, w)


def test_maps_and_lists_of_them_come_back() -> None:
    kind = "seq(map(int64,float))"
    value = [{3: 0.5, -1: 2.0}, {}]
    assert unpack(pack(value, kind, "it"), kind) == value
    kind = "map(string,tensor(string))"
    back = unpack(pack({"a": np.array(["b", "cc"])}, kind, "it"), kind)
    assert back["a"].tolist() == ["b", "cc"]


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_nothing_are_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="bytes that hold no value of the type"):
        unpack(np.frombuffer(data, np.uint8), "seq(tensor(float))")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.zeros(2), "seq(tensor(float))"),
        ([np.zeros(2)], "seq(tensor(float))"),
        ({1: 2}, "seq(tensor(float))"),
        ([1], "map(int64,float)"),
        ([[1.0]], "seq(tensor(bfloat16))"),
        (["a", 1], "tensor(string)"),
    ],
)
def test_values_of_other_types_are_refused(value: Any, kind: str) -> None:
    with pytest.raises(InputError, match="'it'"):
        pack(value, kind, "input 'it'")
