"""Regions that are made by hand: functions of a module that an engine computes."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
import quantize
from compiler.boundary.external import _functions
from compiler.build import compiled
from compiler.engines.engine import Engine, register_engine, remove_engine
from compiler.interpret.graph import evaluate
from compiler.ir.expr import Function, IRModule
from compiler.ir.regions import Region, regions
from compiler.pattern import CompositePattern, is_op
from compiler.transform import AnnotateTarget, InferType
from compiler.types.dtypes import Array

TEXT = """
def @first(%x: Tensor[(N, 4), float32], %y: Tensor[(N, 4), float32], engine="{0}") {{
  %a = add(%x, %y);
  %b = nn.relu(%a);
  %c = multiply(%b, 2.0float32);
  (%b, %c)
}}

def @main(%x: Tensor[(N, 4), float32], %w: Tensor[(4, 4), float32]) {{
  %d = nn.dense(%x, %w);
  %r = @first(%d, %x);
  %b = %r.0;
  %c = %r.1;
  %out = subtract(%c, %b);
  (%out, %c)
}}
"""


class Walking:
    """An engine whose runner interprets its region; it remembers what it was given."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.lacks = ""

    def compile(self, f: Function, name: str) -> Any:
        assert f.type is not None
        self.compiled.append(name)
        mod = IRModule({"main": f})

        def run(*arrays: Array) -> None:
            given, filled = arrays[: len(f.params)], arrays[len(f.params) :]
            self.shapes.append(given[0].shape)
            outs = evaluate(mod, *given)
            for to, out in zip(filled, outs if isinstance(outs, list) else [outs], strict=True):
                np.copyto(to, out)

        return run


@pytest.fixture
def walking() -> Iterator[Walking]:
    made = Walking()
    register_engine(Engine("walking", (), made.compile, lambda: made.lacks))
    yield made
    remove_engine("walking")


def inputs(rows: int = 3) -> tuple[Array, Array]:
    rng = np.random.default_rng(rows)
    return (
        rng.normal(size=(rows, 4)).astype(np.float32),
        rng.normal(size=(4, 4)).astype(np.float32),
    )


def same(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_a_region_is_computed_by_its_engine(walking: Walking, target: str) -> None:
    mod = compiler.parse(TEXT.format("walking"))
    exe = compiler.build(mod, target)
    assert walking.compiled == ["first"]
    assert [(r.name, r.engine) for r in exe.regions] == [("first", "walking")]
    for rows in (3, 5):
        same(exe(*inputs(rows)), compiler.evaluate(mod, *inputs(rows)))
    assert walking.shapes == [(3, 4), (5, 4)]  # evaluating the module asks no engine


def test_a_partitioned_module_prints_and_parses_back() -> None:
    mod = compiler.transform.InferType()(compiler.parse(TEXT.format("walking")))
    text = mod.astext(show_meta_data=True)
    assert 'engine="walking"' in text
    again = compiler.parse(text)
    assert compiler.structural_equal(mod, again)
    assert [str(r) for r in regions(again)] == ["@first by walking"]
    compiler.verify(mod)


def test_a_region_prints_some_of_its_nodes() -> None:
    nodes = tuple(f"n{k}" for k in range(8))
    assert str(Region("r", "e", nodes[:6])) == "@r by e: n0, n1, n2, n3, n4, n5"
    assert str(Region("r", "e", nodes)) == "@r by e: n0, n1, n2, n3, n4, n5 and 2 more"
    assert str(Region("r", "e")) == "@r by e"


@pytest.mark.thorough
def test_runners_go_with_their_executable(walking: Walking) -> None:
    before = set(_functions)
    exe = compiler.build(compiler.parse(TEXT.format("walking")))
    (added,) = set(_functions) - before
    assert added.startswith("walking/first#")
    del exe
    gc.collect()
    assert set(_functions) == before


def test_a_region_in_a_branch(walking: Walking) -> None:
    mod = compiler.parse(
        """
def @twice(%x: Tensor[(2,), float32], engine="walking") {
  %y = add(%x, %x);
  %y
}

def @main(%x: Tensor[(2,), float32], %flag: Tensor[(), bool]) {
  %b = if (%flag) {
    %2 = @twice(%x);
    %2
  } else {
    %x
  };
  %b
}
"""
    )
    exe = compiler.build(mod)
    x = np.array([1, 2], np.float32)
    assert list(exe(x, np.array(True))) == [2, 4]
    assert list(exe(x, np.array(False))) == [1, 2]
    assert walking.shapes == [(2,)]


def test_a_runner_may_be_a_c_function() -> None:
    """A function pointer is called with a DLTensor for each array."""
    seen: list[int] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def pointer(*tensors: int) -> None:
        seen.append(len(tensors))

    register_engine(Engine("pointing", (), lambda f, name: pointer))
    try:
        compiler.build(compiler.parse(TEXT.format("pointing")))(*inputs())
    finally:
        remove_engine("pointing")
    assert seen == [4]


def test_what_a_runner_raises_names_engine_and_region() -> None:
    def compile_(f: Function, name: str) -> Any:
        def run(*arrays: Array) -> None:
            raise RuntimeError("the library is not in the mood")

        return run

    register_engine(Engine("moody", (), compile_))
    try:
        exe = compiler.build(compiler.parse(TEXT.format("moody")))
        said = r"engine 'moody' failed at region @first: RuntimeError: the library is not in"
        with pytest.raises(compiler.DtypelabError, match=said):
            exe(*inputs())
    finally:
        remove_engine("moody")


def test_what_a_library_lacks_is_said(walking: Walking) -> None:
    walking.lacks = "install it with `pip install walking`"
    said = r"engine 'walking' cannot run here: install it with `pip install walking`"
    with pytest.raises(compiler.UnsupportedError, match=said):
        compiler.build(compiler.parse(TEXT.format("walking")))


def test_numbers_that_an_engine_does_not_know_are_not_handed_to_it(walking: Walking) -> None:
    """Neither by patterns, nor where a module was partitioned for an engine that knew them."""
    relu = CompositePattern("relu", is_op("nn.relu"))
    knowing = CompositePattern("relu", is_op("nn.relu"), custom=True)
    mod = compiler.parse("def @main(%x: Tensor[(4,), float32]) { %y = nn.relu(%x); %y }")
    changed = datatypes.change_dtype(mod, "float32", "posit8_es1")
    for pattern, count in ((relu, 0), (knowing, 1)):
        register_engine(Engine("walking", (pattern,), walking.compile), override=True)
        out = compiler.partition(changed, "walking")
        assert len(regions(out)) == count
        x = np.array([1, -1, 0.3, -2], np.float32)
        np.testing.assert_array_equal(compiler.build(out)(x), compiler.evaluate(changed, x))
    register_engine(Engine("walking", (relu,), walking.compile), override=True)
    reasons = [str(r) for r in AnnotateTarget("walking").explain(InferType()(changed))]
    assert any("is of custom[posit8_es1]8, which the engine does not know" in r for r in reasons)
    said = r"'walking', region @walking_0: %\w+ is no relu any more: .* does not know"
    with pytest.raises(compiler.UnsupportedError, match=said):
        compiler.build(out)
    with pytest.raises(compiler.UnsupportedError, match="before optimizing or partitioning"):
        datatypes.change_dtype(compiler.partition(mod, "walking"), "float32", "posit8_es1")


def test_an_unknown_engine_names_the_nearest(walking: Walking) -> None:
    with pytest.raises(compiler.ConfigError, match="unknown engine 'walkin'; did you mean 'walk"):
        compiler.build(compiler.parse(TEXT.format("walkin")))


@pytest.mark.parametrize("wrong", [None, 3, Engine("walking", (), lambda f, name: lambda *a: None)])
def test_engines_are_given_by_name(walking: Walking, wrong: object) -> None:
    with pytest.raises(compiler.ConfigError, match="an engine is called by its name, such as"):
        compiler.build(compiler.parse(TEXT.format("walking")), engines=[wrong])  # type: ignore[list-item]


def test_costs_of_no_engine_are_refused(walking: Walking) -> None:
    with pytest.raises(compiler.InputError, match="costs='measured' measures engines, and none"):
        compiler.build(compiler.parse(TEXT.format("walking")), costs="measured")


def test_engines_are_registered_once(walking: Walking) -> None:
    engine = Engine("walking", (), walking.compile)
    with pytest.raises(compiler.ConfigError, match="already registered: pass override=True"):
        register_engine(engine)
    assert register_engine(engine, override=True) is engine
    with pytest.raises(compiler.ConfigError, match="letters, digits and '_', not 'a b'"):
        register_engine(Engine("a b", (), walking.compile))


def test_what_cannot_hold_regions_says_so(walking: Walking, tmp_path: Path) -> None:
    mod = compiler.parse(TEXT.format("walking"))
    said = "region @first is computed by engine 'walking'"
    with pytest.raises(compiler.UnsupportedError, match=f"{said}.*cannot be exported"):
        compiler.export(mod, "c", tmp_path / "out")
    with pytest.raises(compiler.UnsupportedError, match=f"{said}.*cannot be quantized"):
        quantize.quantize(mod, [dict(zip("xw", inputs(), strict=True))])
    with pytest.raises(compiler.UnsupportedError, match=f"{said}.*part of a decoder"):
        compiler.decoder(mod)
    with pytest.raises(compiler.UnsupportedError, match=r"this process, and target .*wasm32'"):
        compiled(mod, compiler.Target.parse("wasm32"), 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ('def @r(%x: Tensor[(2,), float32], engine="walking") {\n  %y = @q(%x);\n  %y\n}',
         "@r, which engine 'walking' computes, calls @q"),
        ('def @r(%x: Tensor[(2,), float32], engine="walking") {\n  %y = (%x, %x);\n  %y\n}',
         "takes and gives tensors, and its result is"),
    ],
)  # fmt: skip
def test_what_is_no_region_is_refused(walking: Walking, region: str, message: str) -> None:
    mod = compiler.parse(
        f"""
def @q(%x: Tensor[(2,), float32]) {{
  %y = nn.relu(%x);
  %y
}}

{region}

def @main(%x: Tensor[(2,), float32]) {{
  %y = @r(%x);
  %y
}}
"""
    )
    with pytest.raises(compiler.UnsupportedError, match=message):
        compiler.build(mod)


def test_a_batch_of_nothing(walking: Walking) -> None:
    mod = compiler.parse(TEXT.format("walking"))
    exe = compiler.build(mod)
    given = inputs(0)
    for got, want in zip(exe(*given), compiler.evaluate(mod, *given), strict=True):
        assert got.shape == want.shape == (0, 4)
    assert walking.shapes == []  # engines are made for tensors with elements


def test_calls_from_several_threads(walking: Walking) -> None:
    mod = compiler.parse(TEXT.format("walking"))
    exe = compiler.build(mod)
    rows = list(range(1, 9)) * 4
    wanted = {n: compiler.evaluate(mod, *inputs(n)) for n in set(rows)}
    with ThreadPoolExecutor(4) as pool:
        for n, got in zip(rows, pool.map(lambda n: exe(*inputs(n)), rows), strict=True):
            same(got, wanted[n])
