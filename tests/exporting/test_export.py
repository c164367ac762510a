"""Exported programs: what is in the folder, that others can call it, and that it gives the bits of
what runs here."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.boundary.external import register_func, remove_func
from compiler.codegen.c import system_compiler
from compiler.errors import (
    ConfigError,
    DtypelabError,
    InputError,
    LoweringError,
    ModelError,
    UnsupportedError,
)
from compiler.exporting import FORMS
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_packed
from compiler.tensor.packed_arrays import aligned_empty
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import needs_compiler, same_bits
from test_c_networks import dense, images, network, rows

pytestmark = needs_compiler
STRICT = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-pedantic", "-Werror")


def run_main(folder: Path, *inputs: Array, sizes: tuple[int, ...] = (), more: str = "") -> Array:
    """What the program that comes along prints."""
    subprocess.run(["make", "-s", "-C", folder, "main"], check=True)
    words = [str(folder / "main"), *map(str, sizes)]
    for k, a in enumerate(inputs):
        a.tofile(folder / f"{k}.bin")
        words.append(str(folder / f"{k}.bin"))
    words += [str(folder / more)] if more else []
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return np.array(done.stdout.split(), np.float64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["llvm", "c"])
def test_a_folder_is_compiled_and_run_by_itself(tmp_path: Path, target: str) -> None:
    """Of a layer of any number of rows, in float32."""
    done = compiler.export(dense(), target, tmp_path / "layer", name="layer")
    made = {p.name for p in (tmp_path / "layer").iterdir()}
    assert made == set(done.files)
    got = run_main(tmp_path / "layer", rows(5), sizes=(5,))
    built = compiler.build(dense(), target="c -mcpu=generic" if target == "c" else "llvm")
    np.testing.assert_array_equal(got.astype(np.float32), built(rows(5)).reshape(-1))


@pytest.mark.thorough
@pytest.mark.parametrize(("target", "fmt"), [("llvm", "float32"), ("c", "posit8_es2")])
def test_a_shared_library_loads_back(tmp_path: Path, target: str, fmt: str) -> None:
    mod = dense(fmt)
    done = compiler.export(mod, target, tmp_path / "x", forms=["shared"])
    exe = compiler.load(done.library)
    assert exe.signature() == compiler.build(mod).signature()
    for n in (1, 6):
        assert same_bits(exe(rows(n)), compiler.build(mod, target=done.target)(rows(n)))
    if fmt != "float32":
        assert same_bits(exe(rows(3)), compiler.evaluate(mod, rows(3)))
    with pytest.raises(InputError, match="must be float32"):
        exe(rows(3).astype(np.complex64))
    with pytest.raises(UnsupportedError, match="does not hold the source"):
        _ = exe.source
    with pytest.raises(ModelError, match="cannot be saved"):
        exe.save(tmp_path / "again.exe")


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["llvm", "c"])
def test_weights_in_a_file_of_their_own(tmp_path: Path, target: str) -> None:
    done = compiler.export(
        dense(), target, tmp_path / "x", weights="file", forms=["object", "shared"]
    )
    assert (tmp_path / "x" / "net_weights.bin").stat().st_size == done.weights_bytes > 0
    want = compiler.build(dense(), target=done.target)(rows(2))
    assert same_bits(compiler.load(done.library)(rows(2)), want)
    got = run_main(tmp_path / "x", rows(2), sizes=(2,), more="net_weights.bin")
    np.testing.assert_array_equal(got.astype(np.float32), want.reshape(-1))
    (tmp_path / "x" / "net_weights.bin").unlink()
    with pytest.raises(ModelError, match="needs its weights in"):
        compiler.load(done.library)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["c", "llvm"])
@pytest.mark.parametrize("fmt", ["float32", "int8", "posit16_es1", "float8_e4m3fn"])
@pytest.mark.parametrize("name", ["mnist_mlp", "mnist_dwsep", "mnist_resnet8"])
def test_networks_give_the_same_bits(tmp_path: Path, name: str, fmt: str, target: str) -> None:
    mod, x = network(name, fmt), images(100, 3)
    done = compiler.export(mod, target, tmp_path / "x", forms=["shared"])
    got = compiler.load(done.library)(x)
    if fmt == "float32":
        np.testing.assert_allclose(got, compiler.evaluate(mod, x), rtol=1e-4, atol=1e-4)
        assert same_bits(got, compiler.build(mod, target=done.target)(x))
    else:
        assert same_bits(got, compiler.evaluate(mod, x))


def test_the_c_file_is_strict_and_has_nothing_of_the_system(tmp_path: Path) -> None:
    """And gives the same bits whatever is optimized, also where GNU's C contracts."""
    mod = dense("float8_e4m3fn")
    compiler.export(mod, "c", tmp_path / "x")
    source = tmp_path / "x" / "net.c"
    text = source.read_text()
    assert not re.search(r"\b(malloc|free|fopen|printf|pthread\w*)\b", text)
    assert set(re.findall(r"#include <(\w+)\.h>", text)) <= {"fenv", "math", "stdint", "string"}
    out = tmp_path / "net.so"
    call = [*system_compiler.command(), "-O3", "-march=native", "-std=gnu11", *STRICT]
    subprocess.run([*call, "-fPIC", "-shared", "-o", out, source, "-lm"], check=True)
    assert same_bits(compiler.load(out)(rows(4)), compiler.evaluate(mod, rows(4)))
    fast = [*system_compiler.command(), "-Ofast", "-c", "-o", tmp_path / "x.o", source]
    refused = subprocess.run(fast, capture_output=True, text=True, check=False)
    assert "without -ffast-math" in refused.stderr


def test_two_programs_in_one(tmp_path: Path) -> None:
    """Their headers, names and static libraries do not get into each other's way."""
    for name in ("first", "second"):
        compiler.export(dense(), "llvm", tmp_path / name, name=name, forms=["static"])
    main = tmp_path / "main.c"
    main.write_text(
        '#include <stdio.h>\n#include "first/first.h"\n#include "second/second.h"\n'
        "int main(void) {\n"
        "  static _Alignas(64) char arena[1 << 16];\n"
        "  float x[18] = {0}, y[14], z[14];\n"
        "  x[3] = 0.5f;\n"
        "  if (first_arena_bytes(2) > 1 << 16 || second_arena_bytes(0) != -1) return 9;\n"
        "  if (first(x, y, 0, arena) != 1 || first(x, y, 2, arena + 1) != 2) return 8;\n"
        "  if (first(x, y, 2, arena) || second(x, z, 2, arena)) return 7;\n"
        "  return y[5] != z[5] || y[5] == 0;\n}\n"
    )
    libraries = [tmp_path / n / f"lib{n}.a" for n in ("first", "second")]
    call = [*system_compiler.command(), "-std=c11", *STRICT, "-o", tmp_path / "main", main]
    subprocess.run([*call, *libraries, "-lm"], check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0


def test_two_threads_with_two_arenas(tmp_path: Path) -> None:
    mod = dense("posit8_es2")
    done = compiler.export(mod, "c", tmp_path / "x", forms=["shared"])
    run = ctypes.CDLL(str(done.library)).net
    inputs = [rows(64) * k for k in (1, 3)]
    wrong: list[int] = []

    def work(x: Array, want: Array) -> None:
        arena = aligned_empty((1 << 16,), np.dtype(np.uint8))
        for _ in range(20):
            y = np.zeros((64, 7), np.float32)
            given = [ctypes.c_void_p(a.ctypes.data) for a in (x, y)]
            failed = run(*given, ctypes.c_int64(64), ctypes.c_void_p(arena.ctypes.data))
            wrong.append(failed or not same_bits(y, want))

    threads = [threading.Thread(target=work, args=(x, compiler.evaluate(mod, x))) for x in inputs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == [False] * 40


def test_float16_and_functions_of_the_c_library(tmp_path: Path) -> None:
    b = FunctionBuilder()
    x = b.param("x", (16,), "float16")
    y = b.call("sin", b.call("multiply", x, x))
    mod = IRModule({"main": b.finish(y)})
    values = np.linspace(-3, 3, 16).astype(np.float16)
    for target in ("llvm", "llvm -mcpu=x86-64", "c"):
        done = compiler.export(mod, target, tmp_path / target, forms=["shared"])
        assert same_bits(compiler.load(done.library)(values), compiler.build(mod)(values)), target


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    def refused(error: type[DtypelabError], match: str, mod: IRModule, **how: object) -> None:
        given = {"target": "c", "path": tmp_path / "new", **how}
        with pytest.raises(error, match=match):
            compiler.export(mod, **given)
        assert not (tmp_path / "new").exists()

    (tmp_path / "there").mkdir()
    refused(ConfigError, "is there already: give force=True", dense(), path=tmp_path / "there")
    refused(ConfigError, "there is no folder", dense(), path=tmp_path / "a" / "b")
    refused(ConfigError, "cannot be the name of", dense(), name="double")
    refused(ConfigError, "unknown place of weights", dense(), weights="outside")
    refused(ConfigError, "unknown form of code", dense(), forms=["sharde"])
    refused(ConfigError, "form of code for target 'llvm' 'source'", dense(), target="llvm",
            forms=["source"])  # fmt: skip
    refused(UnsupportedError, "run on one thread", dense(), threads=2)
    refused(UnsupportedError, "did you mean 'haswell'", dense(), target="llvm -mcpu=hasswell")
    refused(LoweringError, r"the C function \w+ is in a library", dense("posit8_es0"),
            dtype_lowering="library")  # fmt: skip
    refused(LoweringError, r"the C function \w+ is in a library", dense("posit8_es0"),
            dtype_lowering="library", target="llvm")  # fmt: skip
    x, times = compiler.var("x", (4,)), compiler.var("times", (), "int64")
    _, out = compiler.while_loop(lambda k, s: k < times, lambda k, s: (k + 1, s + x),
                                 init=(compiler.const(0), x))  # fmt: skip
    loop = IRModule({"main": compiler.function([x, times], out)})
    refused(UnsupportedError, "runs on the virtual machine", loop)
    register_func("of_this_process", lambda a, out: None)
    try:
        b = FunctionBuilder()
        x = b.param("x", (3,), "float32")
        y = b.bind(call_packed("of_this_process", [x], TensorType.of((3,), "float32")))
        refused(UnsupportedError, "'of_this_process' is part", IRModule({"main": b.finish(y)}))
    finally:
        remove_func("of_this_process")


@pytest.mark.thorough
def test_force_leaves_nothing_of_an_earlier_export(tmp_path: Path) -> None:
    """A library of another network would be linked or loaded for the new one."""
    folder = tmp_path / "x"
    compiler.export(dense(), "llvm", folder, weights="file", forms=["object", "static", "shared"])
    (folder / "mine.o").write_text("mine")
    done = compiler.export(dense("bfloat16"), "c", folder, force=True)
    assert {p.name for p in folder.iterdir()} == {*done.files, "mine.o"}
    other = compiler.export(dense(), "llvm", folder, name="other", force=True)
    assert {p.name for p in folder.iterdir()} == {*done.files, *other.files, "mine.o"}


@pytest.mark.thorough
def test_force_writes_over_an_earlier_export(tmp_path: Path) -> None:
    """And the new one is loaded, though the old one still is, too."""
    first = compiler.export(dense(), "llvm", tmp_path / "x")
    old = compiler.load(first.library)
    (tmp_path / "x" / "mine.txt").write_text("stays")
    second = compiler.export(dense("bfloat16"), "llvm", tmp_path / "x", force=True)
    assert first.files == second.files
    for mod, exe in ((dense(), old), (dense("bfloat16"), compiler.load(second.library))):
        assert same_bits(exe(rows(3)), compiler.build(mod)(rows(3)))
    assert "bfloat16" in (tmp_path / "x" / "README.md").read_text()
    assert (tmp_path / "x" / "mine.txt").read_text() == "stays"


def test_names_of_a_model_stay_in_comments_and_strings(tmp_path: Path) -> None:
    called = 'a */ "b" ??/ \\ é\n\u202e int'
    x = compiler.var(called, (3,))
    mod = IRModule({"main": compiler.function([x], compiler.call("exp", x))})
    for target in ("c", "llvm"):
        done = compiler.export(mod, target, tmp_path / target, forms=["object", "shared"])
        exe = compiler.load(done.library)
        assert list(exe.inputs) == [called]
        np.testing.assert_array_equal(run_main(done.folder, np.zeros(3, np.float32)), 1)


def test_sizes_that_do_not_fit_are_refused_in_c(tmp_path: Path) -> None:
    x = compiler.var("x", ("n", 6))
    halves = compiler.call("exp", compiler.call("reshape", x, newshape=(-1, 4)))
    mod = IRModule({"main": compiler.function([x], halves)})
    for target in ("c", "llvm"):
        done = compiler.export(mod, target, tmp_path / target, forms=["object", "shared"])
        folder = done.folder
        assert run_main(folder, np.zeros((4, 6), np.float32), sizes=(4,)).tolist() == [1] * 24
        np.zeros((3, 6), np.float32).tofile(folder / "0.bin")
        asked = [folder / "main", "3", folder / "0.bin"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert (said.returncode, said.stderr) == (1, "sizes that do not fit, or no memory\n")
        with pytest.raises(InputError, match=r"n = 3 .* does not fit"):
            compiler.load(done.library)(np.zeros((3, 6), np.float32))


def test_what_is_no_library_of_ours_is_not_loaded(tmp_path: Path) -> None:
    done = compiler.export(dense(), "llvm", tmp_path / "x", forms=["shared"])
    held = done.library.read_bytes()
    for change in (
        (b'"format":3', b'"format":1'),
        (b"x86_64", b"x99_64"),
        (b'"plan":', b'"plum":'),
    ):
        done.library.write_bytes(held.replace(*change))
        with pytest.raises(ModelError, match="export the"):
            compiler.load(done.library)
    other = tmp_path / "other.so"
    other.write_bytes(system_compiler.shared_library("int f(void) { return 1; }"))
    with pytest.raises(ModelError, match=r"no library that compiler\.export has written"):
        compiler.load(other)


def test_another_machine_gets_an_object_file(tmp_path: Path) -> None:
    done = compiler.export(dense("posit8_es2"), "llvm -mcpu=neoverse-n1", tmp_path / "x")
    code = (tmp_path / "x" / "net.o").read_bytes()
    assert set(FORMS).isdisjoint(done.files)
    assert (code[:4], code[18]) == (b"\x7fELF", 183)  # EM_AARCH64
    assert b"net_run" in code


CONTRACT = r"""#include "net.h"
#include <stdio.h>
_Static_assert(NET_INPUTS == 1 && NET_OUTPUTS == 1 && NET_DIMS == 1 && NET_ALIGN == 64, "counts");
int (*const run)(const void *const *, void *const *, const int64_t *, void *) = net_run;
int main(void) {
  static float x[NET_INPUTS][18], y[NET_OUTPUTS][14];
  static _Alignas(NET_ALIGN) char arena[1 << 16];
  const void *const inputs[NET_INPUTS] = {x};
  void *const outputs[NET_OUTPUTS] = {y};
  const int64_t dims[NET_DIMS] = {2};
  for (int k = 0; k < 18; ++k) x[0][k] = (float)k / 9;
  if (net_arena_bytes(2) > (int64_t)sizeof arena || run(inputs, outputs, dims, arena)) return 1;
  for (int k = 0; k < 14; ++k) printf("%.9g\n", (double)y[0][k]);
  return 0;
}
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_the_function_of_tables(tmp_path: Path, target: str) -> None:
    """Its parameters, and how many inputs, outputs and sizes there are, as the header says."""
    folder = compiler.export(dense("posit8_es2"), target, tmp_path / "x").folder
    (folder / "contract.c").write_text(CONTRACT)
    code = folder / ("net.c" if target == "c" else "net.o")
    words = [*system_compiler.command(), "-std=c11", "-Wall", "-Werror", "-ffp-contract=off"]
    out = folder / "contract"
    subprocess.run([*words, "-o", out, folder / "contract.c", code, "-lm"], check=True)
    said = subprocess.run([out], capture_output=True, text=True, check=True).stdout
    x = (np.arange(18, dtype=np.float32) / np.float32(9)).reshape(2, 9)
    want = np.asarray(compiler.evaluate(dense("posit8_es2"), x))
    np.testing.assert_array_equal(np.array(said.split(), np.float32).reshape(2, 7), want)
