"""Look-ups in small tables: permutations of registers where the target has them, else loads."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from compiler.codegen.llvm import jit
from compiler.codegen.llvm.backend import lower_primfunc
from compiler.interpret import loop_nests
from compiler.lowering.tables import table
from compiler.target.registry import Target
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import Buffer, Gather, cast, maximum
from compiler.tensor.stmt import For, PrimFunc
from compiler.types.dtypes import INT64, Array, DType
from compiler.types.names import digest

HOST = "llvm"
TARGETS = (HOST, "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2")
needs_avx512 = pytest.mark.skipif(
    "avx512bw" not in Target.parse(HOST).enabled, reason="no AVX-512 here"
)


def in_vectors(f: PrimFunc) -> PrimFunc:
    """The same with its inner loop, of two, in one vector."""
    (outer,) = f.body
    assert isinstance(outer, For)
    (inner,) = outer.body
    assert isinstance(inner, For)
    inner.kind = "vector"
    return f


def looked_up(entries: Buffer, position: str, lanes: int, masked: bool = True) -> PrimFunc:
    """out[i] = entries[at[i] & (size - 1)], vectorized; without the mask if not `masked`."""
    assert entries.data is not None
    b, dtype = PrimBuilder("look"), DType.parse(position)
    at = b.input("at", (64,), dtype)
    size = int(entries.data.size)
    out = b.buffer("out", (64,), entries.dtype)

    def body(i: Any, j: Any) -> Any:
        where = i * lanes + j
        place = at[where] & (size - 1) if masked else at[where]
        return (where,), Gather(entries, cast(place, INT64))

    b.stage(out, {"i": 64 // lanes, "j": lanes}, body)
    return in_vectors(b.finish([out]))


def run(f: PrimFunc, entries: Buffer, at: Array, target: str) -> tuple[Array, str]:
    """Result of the machine code, and the LLVM text."""
    chosen = Target.parse(target)
    (stage,) = lower_primfunc(f, [entries], chosen)
    symbol = f"look_{digest(stage.text, target)}"
    text = stage.text.replace(f"@{stage.symbol}(", f"@{symbol}(")
    address = jit.compile_text(text, symbol, chosen)
    assert entries.data is not None
    out = np.zeros(64, entries.dtype.storage)
    arrays = [at, out, entries.data]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(address)(*(a.ctypes.data for a in arrays))
    return out, text


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("size", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint16", "int32"])
@pytest.mark.parametrize("position", ["int32", "int64"])
def test_look_ups_equal_the_interpreter(
    dtype: str, size: int, lanes: int, target: str, position: str
) -> None:
    rng = np.random.default_rng(size)
    entries = table("entries", (rng.integers(0, 2**15, size)).astype(dtype))
    f = looked_up(entries, position, lanes)
    at = rng.integers(-(2**31), 2**31, 64).astype(position)
    want = np.zeros(64, dtype)
    loop_nests.run(f, [at, want])
    got, _ = run(f, entries, at, target)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "lanes"), [("float64", 9), ("float64", 17), ("float32", 33)])
def test_vectors_have_any_number_of_lanes(dtype: str, lanes: int, target: str) -> None:
    """Also one lane more than two registers."""
    entries = table("entries", np.arange(16).astype(dtype))
    f, at = looked_up(entries, "int64", lanes), np.arange(64)[::-1].copy()
    want = np.zeros(64, dtype)
    loop_nests.run(f, [at, want])
    np.testing.assert_array_equal(run(f, entries, at, target)[0], want)


@needs_avx512
@pytest.mark.parametrize(
    ("dtype", "size", "lanes"),
    [
        ("float32", 16, 16),
        ("float32", 32, 16),
        ("float64", 8, 8),
        ("float64", 16, 8),
        ("float64", 8, 16),
        ("float64", 16, 16),
    ],
)
def test_small_tables_are_permuted_without_loads(dtype: str, size: int, lanes: int) -> None:
    entries = table("entries", np.arange(size).astype(dtype))
    position = "int32" if lanes == 16 else "int64"
    f = looked_up(entries, position, lanes)
    _, text = run(f, entries, np.arange(64).astype(position), HOST)
    assert ".permvar." in text or ".vpermi2var." in text
    loads = [line for line in text.splitlines() if "load" in line]
    assert len(loads) == 1, "only the positions are loaded"
    assert " and <" not in text, "the permutation masks the positions itself"


@needs_avx512
@pytest.mark.parametrize("size", [33, 59, 64, 65, 97, 115, 128])
def test_parts_of_longer_tables_are_permuted(size: int) -> None:
    entries = table("entries", np.arange(size).astype("float32"))
    f = looked_up(entries, "int32", 16, masked=False)
    for first in (0, size - 64):
        at = np.maximum(np.arange(first, first + 64, dtype=np.int32) % size, 0)
        got, text = run(f, entries, at, HOST)
        np.testing.assert_array_equal(got, at)
    assert text.count("call <16 x float> @llvm.x86.avx512.vpermi2var.ps.512") >= 2
    assert "gather" not in text


def looked_up_in_bits(entries: Buffer, number: str, place: int, floor: int = 0) -> PrimFunc:
    """out[i] = entries[(at[i] >> place) & (size - 1)], in vectors of 64 bytes; with a `floor`,
    entries[max((at[i] >> place) & 255, floor) & (size - 1)]."""
    assert entries.data is not None
    b, dtype = PrimBuilder("look"), DType.parse(number)
    lanes, last = 512 // dtype.bits, int(entries.data.size) - 1
    at = b.input("at", (64,), dtype)
    out = b.buffer("out", (64,), entries.dtype)

    def body(i: Any, j: Any) -> Any:
        where = i * lanes + j
        bits = at[where] >> place
        bits = maximum(bits & 255, floor) if floor else bits
        return (where,), Gather(entries, cast(bits & last, INT64))

    b.stage(out, {"i": 64 // lanes, "j": lanes}, body)
    return in_vectors(b.finish([out]))


def alike_in_both_halves(size: int) -> Buffer:
    halves = np.random.default_rng(1).integers(0, 0x7F00, size).astype(np.uint32)
    return table("entries", (halves | halves << 16).view(np.float32))


NO_VBMI = "llvm -mcpu=skylake-avx512"


@pytest.mark.sampled(36)
@pytest.mark.parametrize("target", [*TARGETS, NO_VBMI])
@pytest.mark.parametrize("number", ["int32", "uint32", "int64"])
@pytest.mark.parametrize("floor", [0, 100, 192])
@pytest.mark.parametrize("place", [0, 5, 23, 24, 26, 27])
@pytest.mark.parametrize("size", [8, 16, 32, 64, 128])
def test_positions_inside_numbers(
    size: int, place: int, floor: int, number: str, target: str
) -> None:
    if not Target.anywhere(target).enabled <= Target.parse(HOST).enabled:
        pytest.skip("this machine cannot run it")
    rng = np.random.default_rng(place)
    numbers = rng.integers(0, 2**63, 64).astype(number)
    floats = "float64" if number == "int64" else "float32"
    for entries in (table("entries", rng.random(size).astype(floats)), alike_in_both_halves(size)):
        f = looked_up_in_bits(entries, number, place, floor)
        want = np.zeros(64, entries.dtype.storage)
        loop_nests.run(f, [numbers, want])
        got, _ = run(f, entries, numbers, target)
        np.testing.assert_array_equal(got, want)


@needs_avx512
@pytest.mark.parametrize("target", [HOST, NO_VBMI])
@pytest.mark.parametrize("floor", [0, 192])
@pytest.mark.parametrize("size", [64, 128])
def test_tables_of_words_are_permuted_by_words(size: int, floor: int, target: str) -> None:
    f = looked_up_in_bits(alike_in_both_halves(size), "uint32", 23, floor)
    _, text = run(f, alike_in_both_halves(size), np.arange(64, dtype=np.uint32), target)
    found = [line for line in text.splitlines() if "call" in line and ".vpermi2var.hi." in line]
    assert len(found) == size // 64
    assert (".pmultishift." in text) == ("avx512vbmi" in Target.parse(target).enabled)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_long_tables_are_gathered(dtype: str) -> None:
    entries = table("entries", np.arange(256).astype(dtype))
    out, text = run(looked_up(entries, "int32", 16), entries, np.arange(64, dtype=np.int32), HOST)
    assert "llvm.masked.gather" in text
    np.testing.assert_array_equal(out, np.arange(64))
