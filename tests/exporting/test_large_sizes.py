"""Sizes whose products no int64 holds: refused by what is exported, not computed with."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from compilers import STRICT

import compiler
from compiler.codegen.c import system_compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var

sys.path.append(str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import needs_compiler

pytestmark = needs_compiler
LARGE = [(2**60, 1), (1, 2**62), (2**31, 2**31), (2**32, 2**32), (2**63 - 1, 2**63 - 1)]
SANITIZED = ("-fsanitize=signed-integer-overflow", "-fno-sanitize-recover=all")


def softmax() -> IRModule:
    """Of rows of any length, twice."""
    b, n, w = FunctionBuilder(), Var("n"), Var("w")
    x = b.param("x", (n, w), "float32")
    wide = b.call("concatenate", x, x, axis=1)
    return IRModule({"main": b.finish(b.call("nn.softmax", wide, axis=1))})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_they_do_not_fit(tmp_path: Path, target: str) -> None:
    compiler.export(softmax(), target, tmp_path / "x", name="rows", forms=["source", "shared"]
                    if target == "c" else ["object", "shared"])  # fmt: skip
    checks = [f"rows(x, x, {n}, {w}, x) != 1 || rows_arena_bytes({n}, {w}) != -1"
              for n, w in LARGE]  # fmt: skip
    fits = f"rows_arena_bytes({2**20}, {2**20}) < 0"
    main = tmp_path / "use.c"
    main.write_text(
        '#include "x/rows.h"\nint main(void) {\n  static _Alignas(64) float x[64];\n'
        f"  return {' || '.join([*checks, fits])};\n}}\n"
    )
    code = tmp_path / "x" / ("rows.c" if target == "c" else "rows.o")
    call = [*system_compiler.command(), "-std=c11", *STRICT, *SANITIZED, "-o", tmp_path / "use"]
    subprocess.run([*call, main, code, "-lm"], check=True)
    done = subprocess.run([tmp_path / "use"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_that_comes_along_says_so(tmp_path: Path) -> None:
    compiler.export(softmax(), "c", tmp_path / "x", name="rows")
    call = [*system_compiler.command(), "-std=c11", "-O1", *SANITIZED, "-o", tmp_path / "main"]
    subprocess.run([*call, tmp_path / "x" / "main.c", tmp_path / "x" / "rows.c", "-lm"], check=True)
    for n, w in LARGE:
        words = [tmp_path / "main", str(n), str(w), "x.bin"]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, "sizes that do not fit, or no memory\n")


def test_sizes_of_c_are_those_of_the_program(tmp_path: Path) -> None:
    done = compiler.export(softmax(), "c", tmp_path / "x", name="rows", forms=["shared"])
    size = ctypes.CDLL(str(done.library)).rows_arena_bytes
    size.restype, size.argtypes = ctypes.c_int64, [ctypes.c_int64, ctypes.c_int64]
    program = compiler.build(softmax(), target="c").program
    for n, w in [(1, 1), (3, 7), (2**30, 5), (5, 2**40)]:
        want = int(program.workspace.value(dict(zip(program.dims, (n, w), strict=True))))
        assert size(n, w) == want
