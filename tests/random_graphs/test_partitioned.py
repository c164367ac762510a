"""Random ONNX graphs of every operator, of which engines are handed what chance says: the same
bits, whether the module is interpreted, or built with engines that interpret their regions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.engines.engine import Engine, register_engine, remove_engine
from compiler.errors import DtypelabError
from compiler.interpret.graph import evaluate
from compiler.ir.expr import Function, IRModule
from compiler.ir.regions import regions
from compiler.op.opdef import OpDef
from compiler.pattern import CompositePattern
from compiler.pattern.patterns import op_that
from compiler.transform import PassContext, VerifyInstrument
from random_graphs.comparing import identical, importable, listed, stored
from random_graphs.drawing import Drawn, Graph, drawn_graph
from random_graphs.running import first_seed
from random_graphs.whole import imported


def interpreted(f: Function, name: str) -> Any:
    mod = IRModule({"main": f})

    def run(*arrays: Any) -> None:
        with np.errstate(all="ignore"):
            outs = listed(evaluate(mod, *arrays[: len(f.params)]))
        for to, out in zip(arrays[len(f.params) :], outs, strict=True):
            np.copyto(to, out)

    return run


@contextmanager
def engines(seed: int) -> Iterator[list[str]]:
    """Two engines, each of which takes about half of all operators, and pairs of these."""
    names = []
    for k in range(2):

        def taken(op: OpDef, k: int = k) -> bool:
            return bool(np.random.default_rng([seed, k, *op.name.encode()]).integers(2))

        one = op_that("what chance took", taken)
        pair = op_that("what chance took", taken)(one.once())
        table = (
            CompositePattern("pair", pair, custom=True),
            CompositePattern("one", one, custom=True),
        )
        names.append(f"chance{k}")
        register_engine(Engine(names[-1], table, interpreted), override=True)
    try:
        yield names
    finally:
        for name in names:
            remove_engine(name)


def check(seed: int, nodes: int, build: bool) -> int:
    """Compare a graph; how many regions it had, -1 if it cannot be imported whole."""
    drawn, _ = drawn_graph(seed, nodes)
    g = drawn.of([n for n in importable(drawn, {}) if isinstance(n, Drawn)])
    mod = imported(g, g.ends) if g.nodes else None
    if mod is None:
        return -1
    feeds = {p.name: stored(g.arrays[p.name]) for p in mod.main.params}
    with np.errstate(all="ignore"):
        try:
            want = listed(compiler.evaluate(compiler.transform.prepare(mod), feeds))
        except DtypelabError:
            return -1
        with engines(seed) as names:
            with PassContext(instruments=[VerifyInstrument()]):
                out = compiler.partition(mod, names)
            same(g, want, listed(compiler.evaluate(out, feeds)))
            if build:
                # What stays ours is fused otherwise; sums of floats may be formed in another order.
                got = listed(compiler.build(out)(**feeds))
                assert [a.shape for a in got] == [a.shape for a in want]
                assert [a.dtype for a in got] == [a.dtype for a in want]
    return len(regions(out))


def same(g: Graph, want: list[Any], got: list[Any]) -> None:
    for name, a, b in zip(g.ends, got, want, strict=True):
        assert identical(np.asarray(a), np.asarray(b)).all(), f"seed {g.seed}: {name}"


def test_a_few_graphs() -> None:
    start = first_seed(500)
    counts = [check(seed, 8, build=False) for seed in range(start, start + 3)]
    assert any(c > 0 for c in counts)


@pytest.mark.thorough
def test_many_graphs() -> None:
    start = first_seed(1000)
    counts = [check(seed, 12, build=seed % 5 == 0) for seed in range(start, start + 60)]
    assert sum(c > 0 for c in counts) >= 30
