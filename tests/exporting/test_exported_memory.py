"""Exported programs touch the memory that is given to them and no other: shipped networks and some
of random shapes, in C under sanitizers of addresses, undefined behaviour and threads, as machine
code between pages that cannot be touched, and under valgrind. Two threads at once call them over
arenas of their own, of as many bytes as the header says; in 100,000 calls nothing is lost."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from drawn_networks import FORMATS, Drawn, networks
from guarded_calls import THREADS, UNDEFINED, Calls, program
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "codegen"))

from c_programs import listed, needs_compiler
from test_c_networks import dense, images, network, rows

from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array

pytestmark = needs_compiler
MANY = 50_000
"""Calls in each of two threads."""
NO_CPU = "llvm -mcpu=generic"
NO_AVX512 = "llvm -mcpu=haswell"
"""What valgrind knows."""


def compiled(mod: IRModule, target: str, inputs: Sequence[Array]) -> list[Array]:
    """What code for a target makes of inputs, in this process."""
    return [np.asarray(a) for a in listed(compiler.build(mod, target=target)(*inputs))]


def calls_of(
    folder: Path,
    mod: IRModule,
    target: str,
    inputs: Sequence[Array],
    dims: Mapping[str, int],
    flags: Sequence[str] = ("-O1",),
    wanted: Sequence[Array] | None = None,
    weights: str = "inside",
) -> Calls:
    """A program that calls an exported module, which must give what it gives in this process, C
    what LLVM's code for no CPU gives."""
    form = "source" if target == "c" else "object"
    compiler.export(mod, target, folder, forms=[form], weights=weights, force=True)
    if wanted is None:
        wanted = compiled(mod, NO_CPU if target == "c" else target, inputs)
    return program(folder, inputs, wanted, dims, flags)


def guarded(make: Callable[..., Calls], *args: object, calls: int = 3, **how: object) -> None:
    """Between pages, in two threads."""
    made = make(*args, **how)
    for mode in ("behind", "before"):
        made.run(mode, calls, 2)


# ---- shipped networks and a layer ----------------------------------------------------------------
@pytest.mark.thorough
@pytest.mark.parametrize(
    "fmt",
    [
        "posit8_es2",
        pytest.param("float32", marks=pytest.mark.thorough),
        pytest.param("bfloat16", marks=pytest.mark.thorough),
    ],
)
def test_a_layer_under_sanitizers(tmp_path: Path, fmt: str) -> None:
    flags = ("-O2", UNDEFINED)
    calls_of(tmp_path / "x", dense(fmt), "c", [rows(5)], {"n": 5}, flags).run("exact", 20, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ["float32", "int8", "posit16_es1", "float8_e4m3fn"])
def test_networks_under_sanitizers(tmp_path: Path, fmt: str) -> None:
    mod, x = network("mnist_resnet8", fmt), images(7, 1)
    flags = ("-O1", UNDEFINED)  # with -O2, GCC takes minutes for all these checks
    calls_of(tmp_path / "x", mod, "c", [x], {"N": 1}, flags).run("exact", 2, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ["float32", "int8", "posit8_es1"])
def test_two_threads_write_nothing_in_common(tmp_path: Path, fmt: str) -> None:
    mod, x = network("mnist_resnet8", fmt), images(7, 1)
    calls_of(tmp_path / "x", mod, "c", [x], {"N": 1}, ("-O2", THREADS)).run("exact", 2, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["c", "llvm"])
def test_a_layer_between_pages(tmp_path: Path, target: str) -> None:
    """With its weights in a file, which lie between pages, too."""
    for fmt in ("float32", "posit8_es2"):
        guarded(
            calls_of, tmp_path / fmt, dense(fmt), target, [rows(5)], {"n": 5}, weights="file"
        )  # fmt: skip


@pytest.mark.parametrize(
    "target", ["llvm", *(pytest.param(t, marks=pytest.mark.thorough) for t in ("c", NO_AVX512))]
)
def test_a_network_between_pages(tmp_path: Path, target: str) -> None:
    mod = network("mnist_mlp", "int8")
    guarded(calls_of, tmp_path / "x", mod, target, [images(7, 1)], {"N": 1}, weights="file")


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ["float32", "int8", "posit8_es1", "float8_e4m3fn"])
@pytest.mark.parametrize("name", ["mnist_resnet8", "mnist_dwsep"])
@pytest.mark.parametrize("target", ["llvm", NO_AVX512])
def test_convolutional_networks_between_pages(
    tmp_path: Path, target: str, name: str, fmt: str
) -> None:
    for count in (1, 3):
        given = [images(7, count)]
        guarded(
            calls_of, tmp_path / "x", network(name, fmt), target, given, {"N": count},
            weights="file",
        )  # fmt: skip


# ---- networks of random shapes -------------------------------------------------------------------
def check_drawn(folder: Path, drawn: Drawn, flags: Sequence[str]) -> None:
    """C under sanitizers; its results are the interpreter's, of float32 those of LLVM's code, which
    are nearly the interpreter's."""
    shutil.rmtree(folder, ignore_errors=True)
    wanted = [np.asarray(a) for a in listed(compiler.evaluate(drawn.mod, *drawn.inputs))]
    if drawn.fmt == "float32":
        near, wanted = wanted, compiled(drawn.mod, NO_CPU, drawn.inputs)
        for a, b in zip(wanted, near, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(b).max()))
    made = calls_of(folder, drawn.mod, "c", drawn.inputs, drawn.dims, flags, wanted)
    made.run("exact", 2, 2)


def check_between_pages(folder: Path, drawn: Drawn, target: str) -> None:
    """Machine code; its results are the interpreter's."""
    shutil.rmtree(folder, ignore_errors=True)
    wanted = None
    if drawn.fmt != "float32":
        wanted = [np.asarray(a) for a in listed(compiler.evaluate(drawn.mod, *drawn.inputs))]
    guarded(calls_of, folder, drawn.mod, target, drawn.inputs, drawn.dims, wanted=wanted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=2)
@given(data=st.data())
def test_some_random_networks_under_sanitizers(folder: Path, fmt: str, data: st.DataObject) -> None:
    check_drawn(folder, data.draw(networks(fmt)), ("-O0", UNDEFINED))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=25)
@given(data=st.data())
def test_random_networks_under_sanitizers(folder: Path, fmt: str, data: st.DataObject) -> None:
    check_drawn(folder, data.draw(networks(fmt)), ("-O1", UNDEFINED))


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=5)
@given(data=st.data())
def test_some_random_networks_between_pages(folder: Path, fmt: str, data: st.DataObject) -> None:
    check_between_pages(folder, data.draw(networks(fmt)), "llvm")


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("target", ["llvm", NO_AVX512])
@settings(max_examples=25)
@given(data=st.data())
def test_random_networks_between_pages(
    folder: Path, target: str, fmt: str, data: st.DataObject
) -> None:
    check_between_pages(folder, data.draw(networks(fmt)), target)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one network at a time."""
    return tmp_path_factory.mktemp("drawn") / "x"


# ---- many calls ----------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("sanitizers", "calls"), [(UNDEFINED, MANY), (THREADS, MANY // 10)])
@pytest.mark.parametrize("fmt", ["float32", "int8", "posit8_es1"])
def test_many_calls_under_sanitizers(tmp_path: Path, fmt: str, sanitizers: str, calls: int) -> None:
    mod, x = network("mnist_mlp", fmt), images(7, 1)
    made = calls_of(tmp_path / "x", mod, "c", [x], {"N": 1}, ("-O2", sanitizers))
    made.run("exact", calls, 2)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["float32", "int8"])
def test_many_calls_of_machine_code_under_valgrind(tmp_path: Path, fmt: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    words = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=7"]
    mod, x = network("mnist_mlp", fmt), images(7, 1)
    calls_of(tmp_path / "x", mod, NO_AVX512, [x], {"N": 1}).run("exact", MANY, 2, words)


# ---- what all that finds -------------------------------------------------------------------------
FAULTS = {
    "arena[NET_ARENA_BYTES] = 1": ("exact", "behind"),
    "arena[-1] = 1": ("exact", "before"),
    "y[3] = x[3]": ("exact", "behind"),
    "y[0] = x[-1]": ("exact", "before"),
    "y[3] = 1": ("exact", "behind"),
    "((float *)x)[0] = 1": ("behind", "before"),
    "keep(malloc(8))": ("exact",),
    "y[0] = 2": ("exact", "behind", "before"),
}
"""What a program could do, and how that is found: y is 3 numbers, x, too."""
FAULTY = """#include <stdlib.h>
#include "net.h"
void keep(void *p);
void keep(void *p) {{ (void)p; }}
int net_run(const void *const *inputs, void *const *outputs, const int64_t *dims,
            void *memory) {{
  const volatile float *x = inputs[0];
  volatile float *y = outputs[0];
  volatile char *arena = memory;
  for (int k = 0; k < 3; ++k) y[k] = x[k];
  (void)arena, (void)dims;
  {fault};
  return 0;
}}
"""
SAID = "#include <stdint.h>\n#define NET_ALIGN 64\n#define NET_ARENA_BYTES 64\n"


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=pytest.mark.thorough if k else ()) for k, f in enumerate(FAULTS)],
)
def test_faults_are_found(tmp_path: Path, fault: str) -> None:
    (tmp_path / "net.h").write_text(SAID)
    x = np.ones(3, np.float32)
    for code in ("(void)0", fault):
        (tmp_path / "net.c").write_text(FAULTY.format(fault=code))
        for mode in FAULTS[fault]:
            flags = ("-O0", UNDEFINED) if mode == "exact" else ("-O0",)
            made = program(tmp_path, [x], [x], {}, flags)
            if code != fault:
                made.run(mode)
                continue
            with pytest.raises(AssertionError, match=mode):
                made.run(mode)


@pytest.mark.thorough
def test_memory_in_common_is_found(tmp_path: Path) -> None:
    (tmp_path / "net.h").write_text(SAID)
    fault = "static volatile int count; count = count + 1"
    (tmp_path / "net.c").write_text(FAULTY.format(fault=fault))
    x = np.ones(3, np.float32)
    with pytest.raises(AssertionError, match="data race"):
        program(tmp_path, [x], [x], {}, ("-O0", THREADS)).run("exact", 100, 2)
