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

from datatypes import encode, softposit

_SOURCE = """
#include <stdint.h>
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


def _compiled(compiler: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-O3", "-shared", "-fPIC", source, "-o", library], check=True)
        return ctypes.CDLL(str(library))
