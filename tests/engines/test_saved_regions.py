"""Programs with regions in files: the engine makes them again where they are loaded; regions that
were written in C need no engine."""

import gc
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_kinds import ADD, DENSE_RELU, SPLIT, needs_c, network, registered, runtime, write

import compiler
from compiler.boundary.external import _functions
from compiler.engines.accelerator import cost
from compiler.engines.c_source import c_engine
from compiler.engines.engine import Engine
from compiler.engines.json_graph import json_engine
from compiler.ir.expr import Function
from compiler.ir.regions import regions
from compiler.symbolic import Var
from compiler.types.dtypes import Array
from experiments import zoo
from experiments.data import datasets

X = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
READING = json_engine("reading", [DENSE_RELU, ADD, SPLIT], runtime)
WRITTEN = c_engine("written", [DENSE_RELU, ADD], write)


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_engine_makes_its_regions_again(tmp_path: Path) -> None:
    path = tmp_path / "a name with späces.exe"
    mod = network(Var("N"), split=True)
    with registered(READING):
        exe = compiler.build(mod, engines=["reading"])
        exe.save(path)
        want = exe(X)
    with pytest.raises(compiler.ModelError, match=r"@reading_0 of engine 'reading', which is not"):
        compiler.load(path)
    with registered(READING):
        again = compiler.load(path)
        assert again.regions == exe.regions
        assert again.signature() == exe.signature()
        same(again(X), want)
        same(again(X[:1]), exe(X[:1]))
        again.save(tmp_path / "twice")
        del exe
        gc.collect()
        same(compiler.load(tmp_path / "twice")(X), want)
        del again
        gc.collect()
        assert not [f for f in _functions if f.startswith("reading/")]


def test_another_engine_of_that_name_is_refused(tmp_path: Path) -> None:
    with registered(READING):
        compiler.build(network(2), engines=["reading"]).save(tmp_path / "exe")
    with registered(json_engine("reading", [ADD], runtime)):
        said = "is reading.dense_relu, not of its patterns: add"
        with pytest.raises(compiler.UnsupportedError, match=said):
            compiler.load(tmp_path / "exe")
    lacking = Engine("reading", READING.patterns, READING.compile, lambda: "buy it")
    said = "'reading' cannot run here: buy it"
    with registered(lacking), pytest.raises(compiler.UnsupportedError, match=said):
        compiler.load(tmp_path / "exe")


@needs_c
@pytest.mark.parametrize("rows", [3, pytest.param(Var("N"), marks=pytest.mark.thorough)])
def test_regions_in_c_need_no_engine(rows: Any, tmp_path: Path) -> None:
    with registered(WRITTEN):
        exe = compiler.build(network(rows), engines=["written"])
        exe.save(tmp_path / "exe")
    same(compiler.load(tmp_path / "exe")(X), exe(X))
    assert compiler.load(tmp_path / "exe").regions == exe.regions


@needs_c
@pytest.mark.thorough
def test_in_another_process(tmp_path: Path) -> None:
    with registered(WRITTEN):
        exe = compiler.build(network(3), engines=["written"])
        exe.save(tmp_path / "exe")
    np.save(tmp_path / "x.npy", X)
    text = "import sys, numpy as np, compiler; " \
        "np.savez(sys.argv[3], *compiler.load(sys.argv[1])(np.load(sys.argv[2])))"  # fmt: skip
    files = [str(tmp_path / name) for name in ("exe", "x.npy", "out.npz")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", text, *files], check=True, env=env, timeout=120)
    with np.load(tmp_path / "out.npz") as out:
        same([out[k] for k in out.files], exe(X))


BRANCH = """
def @part(%x: Tensor[(N,), float32], engine="halves") {
  %y = nn.relu(%x);
  %y
}

def @main(%x: Tensor[(N,), float32], %go: Tensor[(), bool]) {
  %z = if (%go) {
    %a = @part(%x);
    %a
  } else {
    %x
  };
  %z
}
"""


def _halves(_: Function, name: str) -> Any:
    def run(x: Array, out: Array) -> None:
        out[...] = x / 2

    return run


def test_regions_in_bytecode(tmp_path: Path) -> None:
    x = np.array([4, 2], np.float32)
    with registered(Engine("halves", (), _halves)):
        compiler.build(compiler.parse(BRANCH)).save(tmp_path / "exe")
        exe = compiler.load(tmp_path / "exe")
        assert [exe(x, np.array(go)).tolist() for go in (True, False)] == [[2, 1], [4, 2]]


def test_files_that_are_damaged(tmp_path: Path) -> None:
    with registered(READING):
        compiler.build(network(2), engines=["reading"]).save(tmp_path / "exe")
        with zipfile.ZipFile(tmp_path / "exe") as archive:
            parts = {n: archive.read(n) for n in archive.namelist()}
        manifest = json.loads(parts["manifest.json"])
        part, _ = manifest["regions"]["functions"]
        damaged: list[dict[str, bytes]] = [
            {n: p for n, p in parts.items() if n != part},
            parts | {part: b"def @main(" + parts[part][10:]},
            parts | {part: parts[part][:50]},
            *(
                parts | {"manifest.json": json.dumps(manifest | {"regions": bad}).encode()}
                for bad in (1, {}, [], {**manifest["regions"], "names": []})
            ),
            parts | {"manifest.json": json.dumps(manifest | {"accelerator": "llvm"}).encode()},
        ]
        for k, wrong in enumerate(damaged):
            path = tmp_path / f"damaged{k}"
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in wrong.items():
                    archive.writestr(name, content)
            with pytest.raises(compiler.ModelError, match=f"damaged{k}"):
                compiler.load(path)


@pytest.mark.thorough
def test_programs_for_an_accelerator(tmp_path: Path) -> None:
    import quantize

    digits = datasets.load("mnist1k")
    mod = compiler.from_onnx(zoo.FOLDER / "mnist_mlp.onnx")
    mod = quantize.quantize(mod, [digits.calibration[:20]])
    exe = compiler.build(mod, target="accel -block=8 -input=1024")
    exe.save(tmp_path / "exe")
    want = exe(digits.x[:2])
    again = compiler.load(tmp_path / "exe")
    np.testing.assert_array_equal(again(digits.x[:2]), want)
    assert str(again.target) == str(exe.target)
    assert again.emulated == exe.emulated
    costs = cost(again), cost(exe)
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].cycles == costs[1].cycles


def test_what_a_loaded_program_knows_of_its_nodes(tmp_path: Path) -> None:
    with registered(READING):
        exe = compiler.build(network(2), engines=["reading"])
        exe.save(tmp_path / "exe")
        assert [r.nodes for r in compiler.load(tmp_path / "exe").regions] == [("Add_0",)]
        assert regions(compiler.partition(network(2), ["reading"])) == exe.regions
