"""Partition of random graphs: the same results, no cycles between regions, every annotated node in
exactly one, and none that could be merged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import PLANS, Plan, inputs, outputs, program
from toy_engines import toy_engines

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule, Var, operands
from compiler.ir.regions import REGION, composite_of, engine_of, regions
from compiler.pattern import CompositePattern, is_op
from compiler.pattern.tables import register_pattern_table, remove_pattern_table
from compiler.transform import (
    AnnotateTarget,
    MergeCompilerRegions,
    PartitionGraph,
    PassContext,
    Sequential,
    VerifyInstrument,
)

OPS = ("add", "nn.relu", "exp", "negative", "multiply", "split")
Drawn = list[tuple[int, int, int, bool]]
GRAPHS: st.SearchStrategy[Drawn] = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(0, 12), st.booleans()),
    min_size=1,
    max_size=12,
)
"""Nodes: the operator, two earlier values, and whether it is a result."""
ORDERS = st.sampled_from([("left",), ("right",), ("left", "right"), ("right", "left")])


@pytest.fixture(autouse=True, scope="module")
def _engines() -> Iterator[None]:
    with toy_engines():
        yield


def partitioned(mod: IRModule, order: tuple[str, ...]) -> IRModule:
    """What `compiler.partition` makes of a module that needs no simplification."""
    passes = [AnnotateTarget(order), MergeCompilerRegions(), PartitionGraph()]
    return Sequential(passes)(mod)


def graph(drawn: Drawn) -> IRModule:
    """A random acyclic graph; values that nobody reads are results."""
    b = FunctionBuilder()
    values: list[Var] = [b.param("x", (4,)), b.param("y", (4,))]
    kept = []
    for op, i, j, result in drawn:
        x, y = values[i % len(values)], values[j % len(values)]
        name = OPS[op]
        if name == "split":
            halves = b.call("split", x, sizes=(2, 2))
            v = b.call("concatenate", b.get(halves, j % 2), b.get(halves, 1 - j % 2), axis=0)
        elif name == "multiply":
            v = b.call("multiply", x, b.const(np.float32(0.5)))
        else:
            v = b.call(name, x, y) if name == "add" else b.call(name, x)
        values.append(v)
        if result:
            kept.append(v)
    return IRModule({"main": b.finish(*dict.fromkeys([*kept, values[-1]]))})


def sample() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(-1, 1, 4).astype(np.float32) for _ in range(2)]


def results(mod: IRModule) -> list[np.ndarray]:
    out = compiler.evaluate(mod, *sample())
    return out if isinstance(out, list) else [out]


def groups(f: Function) -> dict[str, set[int]]:
    """Region (or a binding that is in none) -> its bindings, found by walking the text's order."""
    place = {b.var: k for k, b in enumerate(f.bindings)}
    out: dict[str, set[int]] = {}
    where: dict[int, str] = {}
    for k, b in enumerate(f.bindings):
        c = composite_of(b.value)
        name = f"own {k}" if c is None else f"{engine_of(c)} {c.attrs[REGION]}"
        reads = [place[a] for a in operands(b.value) if isinstance(a, Var) and a in place]
        if len(reads) == 1 and hasattr(b.value, "index"):  # a field of a composite's tuple
            behind = composite_of(f.bindings[reads[0]].value)
            name = where[reads[0]] if behind is not None else name
        where[k] = name
        out.setdefault(name, set()).add(k)
    return out


def edges(f: Function, parts: dict[str, set[int]]) -> set[tuple[str, str]]:
    of = {k: name for name, members in parts.items() for k in members}
    place = {b.var: k for k, b in enumerate(f.bindings)}
    return {
        (of[place[a]], of[k])
        for k, b in enumerate(f.bindings)
        for a in operands(b.value)
        if isinstance(a, Var) and a in place and of[place[a]] != of[k]
    }


def cyclic(links: set[tuple[str, str]]) -> bool:
    """Whether what is left is not empty as nodes go that nothing leads to."""
    left = set(links)
    while True:
        free = {a for a, _ in left} - {b for _, b in left}
        if not free:
            return bool(left)
        left = {(a, b) for a, b in left if a not in free}


def check_regions(drawn: Drawn, order: tuple[str, ...]) -> None:
    """No circle of regions, and none if any two neighbours were one."""
    mod = graph(drawn)
    merged = Sequential([AnnotateTarget(order), MergeCompilerRegions()])(mod)
    f = merged.main
    parts = groups(f)
    links = edges(f, parts)
    assert not cyclic(links)
    for a, b in combinations(parts, 2):  # by trying: merging any two neighbours makes a circle
        engine = a.split()[0]
        if engine == "own" or engine != b.split()[0] or not {(a, b), (b, a)} & links:
            continue
        name = {a: "both", b: "both"}
        joined = {(name.get(p, p), name.get(q, q)) for p, q in links} - {("both", "both")}
        assert cyclic(joined), f"{a} and {b} could be one region:\n{merged}"


def check_partition(drawn: Drawn, order: tuple[str, ...]) -> None:
    """Every annotated node is in one region, results are the same, and texts read back."""
    mod = graph(drawn)
    annotated = AnnotateTarget(order)(compiler.transform.InferType()(mod))
    names = [b.var.name for b in annotated.main.bindings if composite_of(b.value)]
    with PassContext(instruments=[VerifyInstrument()]):
        out = partitioned(mod, order)
    inside = Counter(
        b.var.name
        for r in regions(out)
        for b in out[r.name].bindings
        if composite_of(b.value) is not None
    )
    assert inside == Counter(names)
    assert not any(composite_of(b.value) for b in out.main.bindings)
    for r in regions(out):  # of its own engine alone
        made = [composite_of(b.value) for b in out[r.name].bindings]
        assert {engine_of(c) for c in made if c} == {r.engine}
        calls = [b for b in out.main.bindings if r.name in str(getattr(b.value, "op", ""))]
        assert len(calls) == 1
    for got, want in zip(results(out), results(mod), strict=True):
        np.testing.assert_array_equal(got, want)
    text = out.astext(show_meta_data=True)
    again = compiler.parse(text)
    assert compiler.structural_equal(again, out)
    assert again.astext(show_meta_data=True) == text


@settings(max_examples=40, deadline=None)
@given(drawn=GRAPHS, order=ORDERS)
def test_regions_are_acyclic_and_maximal(drawn: Drawn, order: tuple[str, ...]) -> None:
    check_regions(drawn, order)


@settings(max_examples=30, deadline=None)
@given(drawn=GRAPHS, order=ORDERS)
def test_every_annotated_node_is_in_one_region(drawn: Drawn, order: tuple[str, ...]) -> None:
    check_partition(drawn, order)


@pytest.mark.thorough
@settings(max_examples=1000, deadline=None)
@given(drawn=GRAPHS, order=ORDERS)
def test_partitions_of_many_graphs(drawn: Drawn, order: tuple[str, ...]) -> None:
    check_regions(drawn, order)
    check_partition(drawn, order)


@settings(max_examples=12, deadline=None)
@given(plan=PLANS, extra=st.integers(0, 9), order=ORDERS)
def test_programs_with_control_flow_keep_their_results(
    plan: Plan, extra: int, order: tuple[str, ...]
) -> None:
    mod = program(plan, extra)
    with PassContext(instruments=[VerifyInstrument()]):
        out = partitioned(mod, order)
        again = partitioned(out, order)
    assert compiler.structural_equal(again, out)
    for n, flag in ((1, True), (2, False)):
        for want, got in zip(outputs(mod, n, flag), outputs(out, n, flag), strict=True):
            np.testing.assert_array_equal(got, want)


@settings(max_examples=3, deadline=None)
@given(plan=PLANS, extra=st.integers(0, 9))
def test_builds_run_the_engines(plan: Plan, extra: int) -> None:
    mod = program(plan[:5], extra)
    exe = compiler.build(mod, engines=["left", "right"])
    for n, flag in ((1, True), (2, False)):
        got = exe(*inputs(n, flag))
        for a, b in zip(
            outputs(mod, n, flag), got if isinstance(got, list) else [got], strict=True
        ):
            assert np.abs(a - b).max() <= 1e-4 * max(1, np.abs(a).max())


def test_patterns_that_overlap_say_which_one_was_asked_first() -> None:
    mod = compiler.transform.InferType()(
        compiler.parse(
            """
def @main(%x: Tensor[(4,), float32]) {
  %a = add(%x, %x);
  %b = nn.relu(%a);
  %c = exp(%b);
  %c
}
"""
        )
    )
    for order, said in (
        ("left", "%b: left.relu does not apply: %b is in a composite left.add_relu, which was"),
        (("left", "right"), "%c: right.relu_exp does not apply: %b is in a composite left.add_"),
        (("right", "left"), "%b: left.add_relu does not apply: %a is in a composite right.add,"),
    ):
        reasons = [str(r) for r in AnnotateTarget(order).explain(mod)]
        assert any(r.startswith(said) for r in reasons), reasons
        found = AnnotateTarget(order).overlaps(mod)
        assert {str(r) for r in found} == {r for r in reasons if "asked first" in r}
        assert all(r.taken in str(r) for r in found)
    assert [(r.rule, r.value, r.taken) for r in AnnotateTarget("left").overlaps(mod)] == [
        ("left.relu", "b", "left.add_relu"),
        ("left.add", "a", "left.add_relu"),
    ]


def test_a_table_has_no_pattern_twice() -> None:
    relu = is_op("nn.relu")
    for second, said in (
        (CompositePattern("relu", is_op("exp")), "several patterns called 'relu'"),
        (CompositePattern("other", relu), "one pattern as 'relu' and 'other', which would never"),
    ):
        with pytest.raises(compiler.ConfigError, match=said):
            register_pattern_table("twice", [CompositePattern("relu", relu), second])
    with pytest.raises(compiler.ConfigError, match="unknown engine 'twice'"):
        AnnotateTarget("twice")


def test_a_check_says_why_not() -> None:
    relu = CompositePattern("relu", is_op("nn.relu"), lambda found: "only on Sundays")
    register_pattern_table("picky", [relu])
    try:
        mod = graph([(1, 0, 0, True)])
        pass_ = AnnotateTarget("picky")
        assert compiler.structural_equal(pass_(mod), mod)
        (reason,) = pass_.explain(mod)
        assert str(reason).endswith("picky.relu does not apply: only on Sundays")
    finally:
        remove_pattern_table("picky")


def numbered(mod: IRModule) -> IRModule:
    """With all composites in one region, as nothing but a person would have it."""
    text = re.sub(r'composite="[^"]*"', r"\g<0>, region=0", mod.astext(show_meta_data=True))
    return compiler.transform.InferType()(compiler.parse(text))


def test_a_region_that_waits_for_itself_is_refused() -> None:
    mod = AnnotateTarget("left")(graph([(1, 0, 0, False), (2, 2, 0, False), (0, 2, 3, True)]))
    with pytest.raises(compiler.VerifyError, match="waits for what waits for it: number regions"):
        PartitionGraph()(numbered(mod))


@pytest.mark.parametrize("number", ['"x"', "[1, 2]", "-1", "0.5"])
def test_a_region_that_is_no_number_is_refused(number: str) -> None:
    mod = AnnotateTarget("left")(graph([(1, 0, 0, True)]))
    text = mod.astext(show_meta_data=True).replace('.relu"', f'.relu", region={number}')
    with pytest.raises(compiler.VerifyError, match="region is a number of 0 or more, not"):
        PartitionGraph()(compiler.transform.InferType()(compiler.parse(text)))


def test_composites_of_two_engines_are_not_one_region() -> None:
    mod = AnnotateTarget(("left", "right"))(graph([(1, 0, 0, True), (2, 2, 0, True)]))
    with pytest.raises(compiler.VerifyError, match="in a region of left and right"):
        PartitionGraph()(numbered(mod))


def test_annotated_programs_that_are_not_partitioned_are_built_as_they_were() -> None:
    mod = graph([(1, 0, 0, False), (2, 2, 0, True)])
    annotated = AnnotateTarget("left")(mod)
    assert any(composite_of(b.value) for b in annotated.main.bindings)
    assert any(isinstance(b.value, Call) for b in annotated.main.bindings)
    np.testing.assert_array_equal(
        compiler.build(annotated)(*sample()), compiler.build(mod)(*sample())
    )


def test_an_engine_is_named_once_and_known() -> None:
    mod = graph([(1, 0, 0, True)])
    with pytest.raises(compiler.InputError, match="engine 'left' is named twice"):
        compiler.partition(mod, ["left", "left"])
    with pytest.raises(compiler.ConfigError, match="unknown engine 'rigth'; did you mean 'right'"):
        compiler.build(mod, engines=["rigth"])
