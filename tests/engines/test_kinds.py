"""The three kinds of engines: a runtime that reads JSON, a C source, a library."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.engines.c_source import c_engine, c_type
from compiler.engines.engine import Engine, register_engine, remove_engine
from compiler.engines.json_graph import graph_json, json_engine
from compiler.engines.library import LibraryFunction, library_engine
from compiler.engines.sequence import Routine, routine_engine
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Function, IRModule, tensor_type
from compiler.ir.regions import regions
from compiler.pattern import CompositePattern, constant, is_op, wildcard
from compiler.pattern.search import Found
from compiler.symbolic import IntLike, Var
from compiler.types.dtypes import Array

SYSTEM_C = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_c = pytest.mark.skipif(SYSTEM_C is None, reason="no C compiler is installed")

DENSE = is_op("nn.dense")(wildcard("x"), constant("w")).bind("dense")
DENSE_RELU = CompositePattern("dense_relu", is_op("nn.relu")(DENSE.once()))
ADD = CompositePattern("add", is_op("add")(wildcard("x"), wildcard("y")))
SPLIT = CompositePattern("split", is_op("split"))


def network(rows: IntLike, split: bool = False) -> IRModule:
    """Two dense layers beside each other and their sum; a softmax, which is ours, behind."""
    b = FunctionBuilder()
    rng = np.random.default_rng(0)
    x = b.param("x", (rows, 6))
    made = []
    for k in range(2):
        w = rng.normal(size=(4, 6)).astype(np.float32)
        made.append(b.call("nn.relu", b.call("nn.dense", x, b.const(w)), name=f"r{k}"))
    y = b.call("add", *made, name="sum", origins=["Add_0"])
    if split:
        halves = b.call("split", y, axis=1, sizes=(2, 2), name="halves")
        y = b.call("add", b.get(halves, 0), b.get(halves, 1), name="folded")
    return IRModule({"main": b.finish(b.call("nn.softmax", y, name="p"), made[1])})


@contextmanager
def registered(engine: Engine) -> Iterator[None]:
    register_engine(engine)
    try:
        yield
    finally:
        remove_engine(engine.name)


def check(name: str, rows: IntLike, split: bool = False, count: int = 1) -> None:
    """What is built with the engine gives what the interpreter gives, for several sizes."""
    mod = network(rows, split)
    exe = compiler.build(mod, engines=[name])
    assert len(exe.regions) == count
    for n in [rows] if isinstance(rows, int) else [1, 5, 3]:
        x = np.random.default_rng(1).normal(size=(n, 6)).astype(np.float32)
        for got, want in zip(exe(x), compiler.evaluate(mod, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# ---- a runtime that reads JSON -------------------------------------------------------------------
OPERATORS: dict[str, Callable[..., Any]] = {
    "nn.dense": lambda x, w, _: x @ w.T,
    "nn.relu": lambda x, _: np.maximum(x, 0),
    "add": lambda x, y, _: x + y,
    "split": lambda x, a: np.split(x, np.cumsum(a["sizes"])[:-1], axis=a["axis"]),
}


def runtime(text: str, constants: Sequence[Array]) -> Callable[..., None]:
    graph = json.loads(text)
    assert graph["version"] == 1
    assert [list(c.shape) for c in constants] == [c["shape"] for c in graph["constants"]]

    def run(*arrays: Array) -> None:
        given = arrays[: len(graph["inputs"])]

        def walk(nodes: list[Any], given: Sequence[Array]) -> list[Any]:
            made: list[Any] = []

            def at(ref: list[Any]) -> Any:
                out = {"input": given, "constant": constants, "node": made}[ref[0]][ref[1]]
                return out[ref[2]] if isinstance(out, list) else out

            for n in nodes:
                operands = [at(r) for r in n["inputs"]]
                inside = n.get("inside")
                if inside is None:
                    made.append(OPERATORS[n["op"]](*operands, n["attrs"]))
                else:
                    made.append(walk(inside, operands)[-1])
            return made

        made = walk(graph["nodes"], given)
        for (_, k, *field), out in zip(graph["outputs"], arrays[len(given) :], strict=True):
            found = made[k]
            np.copyto(out, found[field[0]] if isinstance(found, list) else found)

    return run


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("rows", [2, Var("N")])
def test_a_runtime_reads_json(rows: IntLike, split: bool) -> None:
    with registered(json_engine("reading", [DENSE_RELU, ADD, SPLIT], runtime)):
        check("reading", rows, split)


def test_the_text_of_a_graph() -> None:
    with registered(json_engine("reading", [DENSE_RELU, ADD, SPLIT], runtime)):
        mod = compiler.partition(network(Var("N"), True), ["reading"])
    (r,) = regions(mod)
    text, constants = graph_json(mod[r.name], r.name)
    graph = json.loads(text)
    rows = {"shape": ["N", 4], "dtype": "float32"}
    half = {"shape": ["N", 2], "dtype": "float32"}
    assert graph["inputs"] == [{"shape": ["N", 6], "dtype": "float32"}]
    assert graph["constants"] == [{"shape": [4, 6], "dtype": "float32"}] * 2
    assert [c.shape for c in constants] == [(4, 6)] * 2
    composites = [n["composite"] for n in graph["nodes"]]
    assert composites == ["dense_relu", "dense_relu", "add", "split", "add"]
    first, *_, split, last = graph["nodes"]
    assert first["inputs"] == [["input", 0]]
    assert [n["op"] for n in first["inside"]] == ["nn.dense", "nn.relu"]
    assert first["inside"][0]["inputs"] == [["input", 0], ["constant", 0]]
    assert first["inside"][1]["inputs"] == [["node", 0, 0]]
    assert first["outputs"] == [rows]
    assert split["inside"][0]["attrs"] == {"axis": 1, "sizes": [2, 2]}
    assert split["outputs"] == [half, half]
    assert last["inputs"] == [["node", 3, 0], ["node", 3, 1]]
    assert graph["outputs"] == [["node", 1, 0], ["node", 4, 0]]


# ---- a C source ----------------------------------------------------------------------------------
def write(found: Found, f: Function, symbol: str) -> str:
    t = c_type(tensor_type(f.results[0]))
    head = f"static void {symbol}(void *const *v, const int64_t *const *s) {{\n"
    if "w" not in found:
        return (
            f"{head}  const {t} *x = v[0], *y = v[1];\n  {t} *z = v[2];\n"
            "  for (int64_t i = 0; i < s[2][0] * s[2][1]; i++) z[i] = x[i] + y[i];\n}"
        )
    return f"""{head}  const {t} *x = v[0], *w = v[1];
  {t} *y = v[2];
  for (int64_t i = 0; i < s[0][0]; i++)
    for (int64_t j = 0; j < s[1][0]; j++) {{
      {t} sum = 0;
      for (int64_t k = 0; k < s[1][1]; k++) sum += x[i * s[1][1] + k] * w[j * s[1][1] + k];
      y[i * s[1][0] + j] = fmaxf(sum, 0);
    }}
}}"""


@needs_c
@pytest.mark.parametrize("rows", [2, Var("N")])
def test_a_c_source_is_compiled(rows: IntLike) -> None:
    with registered(c_engine("written", [DENSE_RELU, ADD], write)):
        check("written", rows)


@needs_c
def test_c_that_is_wrong_is_said() -> None:
    engine = c_engine("written", [DENSE_RELU, ADD], lambda found, f, symbol: "static int;;x")
    with registered(engine), pytest.raises(compiler.LoweringError, match=r"rejects the generated"):
        compiler.build(network(2), engines=["written"])


def test_c_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with registered(c_engine("written", [ADD], write)):
        said = "engine 'written' cannot run here: it needs a C compiler: install gcc"
        with pytest.raises(compiler.UnsupportedError, match=said):
            compiler.build(network(2), engines=["written"])


@needs_c
def test_tuples_are_not_for_c() -> None:
    with registered(c_engine("written", [SPLIT], write)):
        said = "engine 'written', region @written_0: a composite gives a tuple, which C sources"
        with pytest.raises(compiler.UnsupportedError, match=said):
            compiler.build(network(2, True), engines=["written"])


# ---- a library -----------------------------------------------------------------------------------
LIBRARY = """
#include <stdint.h>
typedef struct {
  float *data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes;
  int64_t *shape, *strides; uint64_t offset;
} Tensor;

int add(const Tensor *x, const Tensor *y, Tensor *z) {
  for (int64_t i = 0; i < z->shape[0] * z->shape[1]; i++) z->data[i] = x->data[i] + y->data[i];
  return 0;
}

int dense(const Tensor *x, const Tensor *w, Tensor *y, float least) {
  if (w->shape[1] != x->shape[1]) return 7;
  for (int64_t i = 0; i < x->shape[0]; i++)
    for (int64_t j = 0; j < w->shape[0]; j++) {
      float sum = 0;
      for (int64_t k = 0; k < w->shape[1]; k++)
        sum += x->data[i * w->shape[1] + k] * w->data[j * w->shape[1] + k];
      y->data[i * w->shape[0] + j] = sum > least ? sum : least;
    }
  return 0;
}

int failing(const Tensor *x, const Tensor *y, Tensor *z) { return 3; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if SYSTEM_C is None:
        pytest.skip("no C compiler is installed")
    folder = tmp_path_factory.mktemp("library")
    (folder / "own.c").write_text(LIBRARY)
    out = folder / "libown.so"
    subprocess.run([SYSTEM_C, "-shared", "-fPIC", "-o", out, folder / "own.c"], check=True)
    return out


def functions(*names: str) -> list[LibraryFunction]:
    every = {
        "dense": LibraryFunction(DENSE_RELU, "dense", lambda found: (ctypes.c_float(0),)),
        "add": LibraryFunction(ADD, "add"),
        "failing": LibraryFunction(ADD, "failing"),
        "absent": LibraryFunction(ADD, "absent"),
    }
    return [every[n] for n in names]


@pytest.mark.parametrize("rows", [2, Var("N")])
def test_a_library_is_called(library: Path, rows: IntLike) -> None:
    with registered(library_engine("own", library, functions("dense", "add"), "make it")):
        check("own", rows)


def test_what_a_library_returns_and_lacks_is_said(library: Path) -> None:
    x = np.zeros((2, 6), np.float32)
    with registered(library_engine("own", library, functions("failing"), "make it")):
        exe = compiler.build(network(2), engines=["own"])
        with pytest.raises(compiler.DtypelabError, match="failing returned 3"):
            exe(x)
    with (
        registered(library_engine("own", library, functions("absent"), "make it")),
        pytest.raises(compiler.UnsupportedError, match=r"region @own_0: .* no function 'absent'"),
    ):
        compiler.build(network(2), engines=["own"])


def test_a_library_that_is_not_there_says_what_to_install(tmp_path: Path) -> None:
    said = "engine 'own' cannot run here: its library is not there: pip install own"
    for path in (tmp_path / "libown.so", lambda: None):
        with (
            registered(library_engine("own", path, functions("add"), "pip install own")),
            pytest.raises(compiler.UnsupportedError, match=said),
        ):
            compiler.build(network(2), engines=["own"])
    (tmp_path / "libown.so").write_text("no library")
    with (
        registered(library_engine("own", tmp_path / "libown.so", functions("add"), "x")),
        pytest.raises(compiler.UnsupportedError, match="its library cannot be loaded"),
    ):
        compiler.build(network(2), engines=["own"])


# ---- what an engine lacks ------------------------------------------------------------------------
def test_an_operator_that_an_engine_lacks_is_named() -> None:
    """A region that somebody wrote by hand, or that is from another version of an engine."""

    def compute(found: Found, f: Function) -> Callable[..., None]:
        return lambda x, y, out: np.add(x, y, out=out)

    with registered(routine_engine("adding", [Routine(ADD, compute)])):
        check("adding", 3)
        text = compiler.partition(network(2), ["adding"]).astext(show_meta_data=True)
        for old, new, said in (
            ("adding.add", "adding.sub", "%sum is adding.sub, not of its patterns: add"),
            ("= add(", "= multiply(", "%sum is no add any more: %sum is multiply, not add"),
            (', composite="adding.add"', "", "%sum is call, and no composite of the engine's"),
        ):
            mod = compiler.parse(text.replace(old, new))
            with pytest.raises(compiler.UnsupportedError, match=rf"'adding', region.*: {said}"):
                compiler.build(mod)
