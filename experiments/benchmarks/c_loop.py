"""The loop that the library lowering stands for, written in C and compiled by the system's
compiler."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from datatypes import encode, get
from datatypes.c_libraries import softposit

_SOURCE = """
#include <stdint.h>
typedef struct { uint32_t v; } quire8;
typedef struct { uint64_t v[2]; } quire16;
typedef quire8 (*add8)(quire8, uint8_t, uint8_t);
typedef uint8_t (*round8)(quire8);
typedef quire16 (*add16)(quire16, uint16_t, uint16_t);
typedef uint16_t (*round16)(quire16);
#define EXACT(name, code, quire, add, round) \
    void name(add fdp, round last, const code *x, const code *w, code *y, long rows, long size) { \
        for (long i = 0; i < rows; i++) \
            for (long j = 0; j < size; j++) { \
                quire acc = {0}; \
                for (long k = 0; k < size; k++) \
                    acc = fdp(acc, x[i * size + k], w[j * size + k]); \
                y[i * size + j] = last(acc); \
            } \
    }
EXACT(exact8, uint8_t, quire8, add8, round8)
EXACT(exact16, uint16_t, quire16, add16, round16)
typedef uint16_t (*function)(uint16_t, uint16_t);
void loop(function mul, function add, const uint16_t *x, const uint16_t *w, uint16_t *y,
          long rows, long size) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < size; j++) {
            uint16_t acc = 0;
            for (long k = 0; k < size; k++)
                acc = add(acc, mul(x[i * size + k], w[j * size + k]));
            y[i * size + j] = acc;
        }
}
"""


def posit16(rows: int, size: int) -> Callable[[], object] | None:
    """A call that multiplies rows x size by size x size posits (es=1) with SoftPosit's functions;
    None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = _compiled(compiler)
    rng = np.random.default_rng(1)
    x = encode("posit16_es1", rng.normal(size=(rows, size)))
    w = encode("posit16_es1", rng.normal(size=(size, size)) / np.sqrt(size))
    y = np.zeros((rows, size), np.uint16)
    mul, add = (
        ctypes.cast(softposit.function(f"p16_{op}"), ctypes.c_void_p) for op in ("mul", "add")
    )
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, w, y)]
    sizes = [ctypes.c_long(rows), ctypes.c_long(size)]

    def call(keep: object = (x, w, y)) -> object:
        return library.loop(mul, add, *pointers, *sizes)

    return call


def exact(fmt: str, rows: int, size: int) -> Callable[[], object] | None:
    """The same with the quires of posit8_es0 or posit16_es1."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    bits = get(fmt).nbits
    rng = np.random.default_rng(1)
    x = encode(fmt, rng.normal(size=(rows, size)))
    w = encode(fmt, rng.normal(size=(size, size)) / np.sqrt(size))
    y = np.zeros((rows, size), x.dtype)
    names = (f"q{bits}_fdp_add", f"q{bits}_to_p{bits}")
    softposit.load()
    library = ctypes.CDLL(softposit.library_path())
    functions = [ctypes.cast(getattr(library, n), ctypes.c_void_p) for n in names]
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (x, w, y)]
    sizes = [ctypes.c_long(rows), ctypes.c_long(size)]
    loop = getattr(_compiled(compiler), f"exact{bits}")

    def call(keep: object = (x, w, y)) -> object:
        return loop(*functions, *pointers, *sizes)

    return call


def _compiled(compiler: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-O3", "-shared", "-fPIC", source, "-o", library], check=True)
        return ctypes.CDLL(str(library))
