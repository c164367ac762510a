"""Code for other machines: object files of four architectures, and what runs here without them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.codegen import linking
from compiler.codegen.linking import missing
from compiler.errors import ModelError, UnsupportedError
from compiler.target.registry import Target

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from test_c_networks import dense, images, network, rows

MACHINES = {"x86_64-linux": 62, "aarch64-linux": 183, "riscv64-linux": 243}
"""Triples, and e_machine of their ELF files."""
DOUBLE_FLOAT_ABI = 4
"""Of riscv64, in e_flags."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("triple", MACHINES)
def test_object_files(tmp_path: Path, triple: str) -> None:
    compiler.export(dense(), f"llvm -mtriple={triple}", tmp_path / "x")
    code = (tmp_path / "x" / "net.o").read_bytes()
    assert (code[:4], code[18]) == (b"\x7fELF", MACHINES[triple])
    assert b"net_run\0" in code
    if triple == "riscv64-linux":
        assert code[48] & 6 == DOUBLE_FLOAT_ABI


def test_names_of_one_machine_share_their_kernels(tmp_path: Path) -> None:
    names = (
        "llvm -mcpu=x86-64",
        "llvm -mtriple=x86_64-linux",
        "llvm -mtriple=x86_64-linux -mcpu=x86-64",
    )
    for k, target in enumerate(names):
        compiler.export(dense(), target, tmp_path / str(k))
        assert b"net_run\0" in (tmp_path / str(k) / "net.o").read_bytes()


@pytest.mark.thorough
def test_webassembly(tmp_path: Path) -> None:
    target = Target.anywhere("llvm -mtriple=wasm32")
    assert (target.pointer_bytes, target.isa, target.runnable) == (4, "simd128", False)
    compiler.export(dense(), target, tmp_path / "x")
    assert (tmp_path / "x" / "net.o").read_bytes()[:8] == b"\0asm\1\0\0\0"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("llvm -mtriple=aarch64-linx", "unknown target triple .*; did you mean 'aarch64-linux'"),
        ("llvm -mtriple=wasm32 -mcpu=haswell", "haswell is a CPU of x86_64, not of wasm32"),
        ("llvm -mtripel=wasm32", "unknown option 'mtripel'; did you mean 'mtriple'"),
        ("llvm -mtriple=riscv64-linux -mcpu=generic-rv65", "unknown target CPU"),
    ],
)
def test_targets_that_there_are_not(tmp_path: Path, target: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        compiler.export(dense(), target, tmp_path / "x")


def test_kinds_that_only_run_here() -> None:
    with pytest.raises(UnsupportedError, match="needs simd128, which this CPU lacks"):
        compiler.build(dense(), target="c -mcpu=simd128")


@pytest.mark.thorough
@pytest.mark.parametrize("triple", ["aarch64-linux", "riscv64-linux"])
def test_libraries(tmp_path: Path, triple: str) -> None:
    """Linked by zig."""
    target = Target.anywhere(f"llvm -mtriple={triple}")
    if why := missing(target):
        pytest.skip(why)
    done = compiler.export(dense(), target, tmp_path / "x")
    assert {"net.o", "libnet.a", "libnet.so"} <= set(done.files)
    code = done.library.read_bytes()
    assert (code[:4], code[18]) == (b"\x7fELF", MACHINES[triple])
    assert b"net_run\0" in code
    assert (tmp_path / "x" / "libnet.a").read_bytes().startswith(b"!<arch>")
    with pytest.raises(ModelError, match="is for another CPU"):
        compiler.load(done.library)


def test_a_module_of_webassembly(tmp_path: Path) -> None:
    target = Target.anywhere("wasm32")
    if why := missing(target):
        pytest.skip(why)
    done = compiler.export(dense("posit8_es2"), target, tmp_path / "x")
    assert done.library.name == "net.wasm"
    code = done.library.read_bytes()
    assert code[:8] == b"\0asm\1\0\0\0"
    assert b"net_run" in code
    assert b"__heap_base" in code


def test_a_module_of_webassembly_is_called(tmp_path: Path) -> None:
    """As its header says, by whoever has nothing but the files."""
    wasmtime = pytest.importorskip("wasmtime")
    target = Target.anywhere("wasm32")
    if why := missing(target):
        pytest.skip(why)
    mod, x = dense("posit8_es2"), rows(3)
    done = compiler.export(mod, target, tmp_path / "x")
    header = (tmp_path / "x" / "net.h").read_text()
    assert "int64_t *dims, void *arena);" in header
    store = wasmtime.Store()
    module = wasmtime.Module(store.engine, done.library.read_bytes())
    assert not module.imports
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory, run = exports["memory"], exports["net_run"]
    base = -(-int(exports["__heap_base"].value(store)) // 64) * 64
    tables, given, made, arena = (base + k for k in (0, 64, 512, 1024))
    memory.grow(store, 1)
    pointers = np.array([given, made], np.uint32).tobytes() + np.array([3], np.int64).tobytes()
    memory.write(store, pointers, tables)
    memory.write(store, x.tobytes(), given)
    assert run(store, tables, tables + 4, tables + 8, arena) == 0
    got = np.frombuffer(memory.read(store, made, made + 4 * 21), np.float32).reshape(3, 7)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, x))


def test_libraries_without_a_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "zig", lambda: "")
    target = "llvm -mtriple=aarch64-linux"
    assert "libnet.so" not in compiler.export(dense(), target, tmp_path / "x").files
    with pytest.raises(UnsupportedError, match=r"form 'shared' .*pip install 'dtypelab\[cross\]'"):
        compiler.export(dense(), target, tmp_path / "y", forms=["shared"])
    monkeypatch.setenv(linking.VARIABLE, "no-such-cc -O2")
    with pytest.raises(UnsupportedError, match="'no-such-cc', which is not installed"):
        compiler.export(dense(), target, tmp_path / "y", forms=["shared"])
    assert not (tmp_path / "y").exists()


RUN = """const {WASI} = require('wasi'), fs = require('fs');
const args = ['main', ...process.argv.slice(3)];
const wasi = new WASI({version: 'preview1', args, preopens: {'/': '/'}, returnOnExit: true});
(async () => {
  const module = await WebAssembly.compile(fs.readFileSync(process.argv[2]));
  process.exitCode = wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject()));
})();
"""


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["float32", "int8", "posit16_es1", "float8_e4m3fn"])
@pytest.mark.parametrize("target", ["c", "llvm -mtriple=wasm32"])
def test_in_node(tmp_path: Path, target: str, fmt: str) -> None:
    """C compiled by zig's clang for 32-bit pointers, and LLVM's code, linked by it."""
    if importlib.util.find_spec("ziglang") is None or shutil.which("node") is None:
        pytest.skip("ziglang or node is not installed")
    folder, mod, x = tmp_path / "x", network("mnist_mlp", fmt), images(100, 2)
    compiler.export(mod, target, folder)
    (folder / "run.js").write_text(RUN)
    x.tofile(folder / "x.bin")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-wasi", "-std=c11", "-O2", "-w"]
    code = folder / ("net.c" if target == "c" else "net.o")
    flags = ["-ffp-contract=off", "-fno-strict-aliasing", "-o", folder / "main.wasm"]
    subprocess.run([*zig, *flags, folder / "main.c", code, "-lm"], check=True)
    given = [
        "node",
        "--no-warnings",
        folder / "run.js",
        folder / "main.wasm",
        "2",
        folder / "x.bin",
    ]
    said = subprocess.run(given, capture_output=True, text=True, check=True).stdout
    got, want = (
        np.array(said.split(), np.float32),
        np.asarray(compiler.evaluate(mod, x)).reshape(-1),
    )
    if fmt == "float32":
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, want)
