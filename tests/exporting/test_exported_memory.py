"""Exported programs in a loop, in C: nothing is leaked, and nothing but what is given is touched;
two threads at once run them over arenas of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.codegen.c import system_compiler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import needs_compiler
from test_c_networks import dense, images, network, rows

from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

pytestmark = needs_compiler

LOOP = """#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"
enum { IN = %(given)d, OUT = %(made)d, N = %(rows)d, CALLS = %(calls)d };
static float want[OUT];
static void *exactly(size_t bytes) { /* at a multiple of 64, and nothing behind it */
  void *p = 0;
  return posix_memalign(&p, 64, bytes ? bytes : 1) ? 0 : p;
}
static void *work(void *given) {
  float *x = exactly(sizeof(float[IN])), *y = exactly(sizeof(float[OUT]));
  void *arena = exactly((size_t)net_arena_bytes(N));
  memcpy(x, given, sizeof(float[IN]));
  size_t wrong = 0;
  for (int k = 0; k < CALLS; ++k) {
    memset(y, 0xff, sizeof(float[OUT]));
    wrong += net(x, y, N, arena) || memcmp(y, want, sizeof want);
  }
  free(x), free(y), free(arena);
  return (void *)wrong;
}
int main(int argc, char **argv) {
  static float x[IN];
  FILE *file = fopen(argv[argc - 1], "rb");
  if (!file || fread(x, sizeof x, 1, file) != 1 || fread(want, sizeof want, 1, file) != 1) return 9;
  fclose(file);
  pthread_t threads[2];
  void *wrong[2];
  for (int k = 0; k < 2; ++k) if (pthread_create(&threads[k], 0, work, x)) return 8;
  for (int k = 0; k < 2; ++k) pthread_join(threads[k], &wrong[k]);
  return wrong[0] || wrong[1];
}
"""


def prepared(folder: Path, mod: IRModule, target: str, x: Array, calls: int) -> list[str]:
    """A program of two threads that each call an exported network so many times; returns the words
    that compile it, but for flags. The results must be those of `compiler.load`."""
    forms = ["shared", "source"] if target == "c" else ["shared", "object"]
    done = compiler.export(mod, target, folder, forms=forms)
    want = np.asarray(compiler.load(done.library)(x))
    sizes = {"given": x.size, "made": want.size, "rows": len(x), "calls": calls}
    (folder / "loop.c").write_text(LOOP % sizes)
    (folder / "data.bin").write_bytes(x.tobytes() + want.tobytes())
    code = "net.c" if target == "c" else "net.o"
    parts = [str(folder / "loop.c"), str(folder / code)]
    flags = ["-std=c11", "-g", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread"]
    return [*system_compiler.command(), *flags, "-o", str(folder / "loop"), *parts, "-lm"]


def sanitized(folder: Path, mod: IRModule, x: Array, calls: int) -> None:
    """C source under the sanitizers of addresses, leaks and undefined behaviour."""
    words = prepared(folder, mod, "c", x, calls)
    more = ["-O2", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = subprocess.run([*words, *more], capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"the compiler has no sanitizers: {built.stderr.splitlines()[0]}")
    done = subprocess.run(
        [folder / "loop", folder / "data.bin"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "fmt",
    [
        "posit8_es2",
        pytest.param("float32", marks=pytest.mark.thorough),
        pytest.param("bfloat16", marks=pytest.mark.thorough),
    ],
)
def test_a_layer_under_sanitizers(tmp_path: Path, fmt: str) -> None:
    sanitized(tmp_path / "x", dense(fmt), rows(5), 20)


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ["float32", "int8", "posit16_es1", "float8_e4m3fn"])
def test_networks_under_sanitizers(tmp_path: Path, fmt: str) -> None:
    sanitized(tmp_path / "x", network("mnist_resnet8", fmt), images(7, 1), 2)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["float32", "int8"])
def test_many_calls_under_sanitizers(tmp_path: Path, fmt: str) -> None:
    sanitized(tmp_path / "x", network("mnist_mlp", fmt), images(7, 1), 50_000)


@pytest.mark.slow
def test_many_calls_of_machine_code_under_valgrind(tmp_path: Path) -> None:
    """Of AVX2, as valgrind knows no AVX-512."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    subprocess.run(
        prepared(tmp_path / "x", dense(), "llvm -mcpu=haswell", rows(5), 50_000), check=True
    )
    words = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=7"]
    given = [tmp_path / "x" / "loop", tmp_path / "x" / "data.bin"]
    done = subprocess.run([*words, *given], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
