"""Operands that are copied to shared memory without waiting: the results of the interpreter,
whatever the shapes; what is forgotten is found; banks do not meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grid_interpreter import interpreted
from hypothesis import given, settings
from hypothesis import strategies as st
from test_grid_consumers import numbers
from test_mma_products import dense

import compiler
from compiler.build import compile_program
from compiler.codegen.ptx.assembler import assemble, assembler
from compiler.errors import DtypelabError, LoweringError
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_tir
from compiler.runtime.cuda.device import opened
from compiler.scheduling.grid import schedule_grids
from compiler.scheduling.grids import warp_tiles
from compiler.scheduling.grids.warp_tiles import WarpTile
from compiler.symbolic import Index
from compiler.target.intrinsics import named_intrinsics
from compiler.target.registry import Target
from compiler.tensor.parser import parse_primfunc
from compiler.tensor.stmt import PrimFunc
from compiler.types.tensor_types import TensorType

RNG = np.random.default_rng(0)


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], dtype: str = "float32", **attrs: Any
) -> IRModule:
    b = FunctionBuilder()
    if dtype == "int8":
        attrs["out_dtype"] = "int32"
    y = b.call("nn.conv2d", b.param("x", x, dtype), b.const(numbers(RNG, dtype, w)), **attrs)
    return IRModule({"main": b.finish(b.call("nn.relu", y))})


def product(m: int, n: int, k: int, constant: bool) -> IRModule:
    """Rows as they lie in memory, k by n, are copied; of m by k, steps are neighbours."""
    b = FunctionBuilder()
    x = b.param("x", (m, k), "float32")
    w = b.const(numbers(RNG, "float32", (k, n))) if constant else b.param("w", (k, n), "float32")
    return IRModule({"main": b.finish(b.call("nn.relu", b.call("nn.matmul", x, w)))})


def check(mod: IRModule, *args: np.ndarray) -> str:
    """On the CPU and by the interpreter of PTX; the text of the loop nests."""
    want = compiler.evaluate(mod, *args)
    for runner in ("simt", "ptx"):
        exe = compiler.build(mod, target=f"cuda -arch=sm_80 -runner={runner}")
        if want.dtype == np.float32:  # in one rounding a step, where the interpreter has two
            np.testing.assert_allclose(exe(*args), want, rtol=1e-4, atol=1e-4)
        else:
            np.testing.assert_array_equal(exe(*args), want)
    return str(exe.as_text())


def test_rows_that_lie_as_they_are_multiplied() -> None:
    x = numbers(RNG, "float32", (16, 24)), numbers(RNG, "float32", (24, 12))
    text = check(product(16, 12, 24, False), *x)
    assert "columns.copy" in text


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(8, 90),
    n=st.integers(8, 90),
    k=st.integers(8, 90),
    constant=st.booleans(),
)
def test_products(m: int, n: int, k: int, constant: bool) -> None:
    args = [numbers(RNG, "float32", (m, k))]
    args += [] if constant else [numbers(RNG, "float32", (k, n))]
    check(product(m, n, k, constant), *args)


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 2),
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    channels=st.tuples(st.sampled_from([3, 8, 16]), st.sampled_from([8, 12, 20])),
    groups=st.sampled_from([1, 1, 2]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 2),
    dtype=st.sampled_from(["float32", "float32", "int8"]),
)
def test_convolutions(
    batch: int,
    size: tuple[int, int],
    channels: tuple[int, int],
    groups: int,
    kernel: int,
    stride: int,
    pad: int,
    dtype: str,
) -> None:
    out = [(n + 2 * pad - kernel) // stride + 1 for n in size]
    if min(out) < 1:
        return
    x = (batch, channels[0] * groups, *size)
    w = (channels[1] * groups, channels[0], kernel, kernel)
    attrs = {"groups": groups, "padding": (pad,) * 4, "strides": (stride,) * 2}
    check(convolution(x, w, dtype, **attrs), numbers(RNG, dtype, x))


@pytest.mark.thorough
def test_what_lies_in_the_padding_is_zeros() -> None:
    x, w = (1, 16, 7, 6), (12, 16, 3, 3)
    mod = convolution(x, w, padding=(1, 1, 1, 1))
    data = numbers(RNG, "float32", x)
    assert "rows.copy" in check(mod, data) or "columns.copy" in check(mod, data)
    (text, *_) = [
        k.code.decode() for k in compile_program(mod, "cuda").kernels if b"cp.async" in k.code
    ]
    assert "cp.async.ca.shared.global" in text
    np.testing.assert_allclose(
        interpreted(mod)(data), compiler.evaluate(mod, data), rtol=1e-4, atol=1e-4
    )


# ---- what is forgotten ---------------------------------------------------------------------------
MATMUL = """
primfunc @f(a: {dtype}[{m}, {k}], b: {dtype}[{shape}]) -> (c: {of}[{m}, {n}]) {{
  for i in {m}:
    for j in {n}:
      for k in {k}:
        mac: c[i, j] += ({a} * {b})  (init {of}(0))
}}
"""


def scheduled(dtype: str, m: int, n: int, k: int) -> PrimFunc:
    """Bytes, all of which are copied; or floats, whose rows are turned on their way if k goes by
    fours."""
    if dtype == "int8":
        at = {"shape": f"{n}, {k}", "a": "int32(a[i, k])", "b": "int32(b[j, k])", "of": "int32"}
    else:
        at = {"shape": f"{k}, {n}", "a": "a[i, k]", "b": "b[k, j]", "of": "float32"}
    f = parse_primfunc(MATMUL.format(dtype=dtype, m=m, n=n, k=k, **at))
    schedule_grids(f, Target.parse("cuda"))
    return f


def test_how_operands_go() -> None:
    text = str(scheduled("float32", 1024, 1024, 1024))
    assert "rows.fetch" in text
    assert "rows.copy" not in text
    assert "columns.copy" in text
    assert "columns.fetch" not in text
    text = str(scheduled("int8", 1024, 1024, 1024))
    assert "fetch" not in text
    text = str(scheduled("int8", 64, 64, 64))  # in one part
    assert "fetch" not in text
    assert "wait 0" in text
    for dtype in ("int8", "float32"):
        text = str(scheduled(dtype, 64, 64, 96))
        assert str(parse_primfunc(text, named_intrinsics())) == text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["wait", "barrier"])
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_what_is_forgotten_is_found(what: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By both interpreters."""
    monkeypatch.setattr(warp_tiles, "STEPS", (8,))
    monkeypatch.setattr(warp_tiles, "ROWS", (32,))
    m, n, k = (32, 32, 96) if dtype == "int8" else (8, 16, 192)
    f, shapes = scheduled(dtype, m, n, k), [(m, k), (n, k) if dtype == "int8" else (k, n)]
    lines = str(f).splitlines()
    kept = [x for x in lines if not x.strip().startswith(what)]
    assert len(kept) == len(lines) - 1
    f = parse_primfunc("\n".join(kept), named_intrinsics())
    args = [numbers(RNG, dtype, s) for s in shapes]
    out = np.zeros([n.const for n in f.params[-1].shape], f.params[-1].dtype.storage)
    b = FunctionBuilder()
    given_ = [b.param(f"p{k}", x.shape, dtype) for k, x in enumerate(args)]
    made = b.bind(call_tir("f", given_, TensorType.of(out.shape, f.params[-1].dtype)))
    mod = IRModule({"main": b.finish(made), "f": f})
    monkeypatch.setattr(opened("ptx").driver, "races", True)
    exe = compiler.build(mod, target="cuda -arch=sm_80 -runner=ptx")
    with pytest.raises(LoweringError, match=r"before its copy|reads what another|meet in an"):
        loop_nests.run(f, [*args, out])
    with pytest.raises(DtypelabError, match=r"barrier between|was not waited for"):
        exe(*args)


# ---- banks ---------------------------------------------------------------------------------------
def banks(t: WarpTile, places: list[tuple[int, int]]) -> int:
    """Different stretches of 16 bytes that some accesses, to rows and bytes of a tile, take of the
    eight that shared memory has banks for."""
    at = [row * t.steps * 4 + int(t.swizzled(row, byte).value({})) for row, byte in places]
    assert all(x % 16 == 0 for x in at)
    return len({x // 16 % 8 for x in at})


@pytest.mark.parametrize("steps", warp_tiles.STEPS)
def test_banks_do_not_meet(steps: int) -> None:
    t = WarpTile(128, 128, steps, 3, (64, 64))
    row = steps * 4
    stretches = row // 16
    every = {(r, int(t.swizzled(r, byte).value({}))) for r in range(8) for byte in range(row)}
    assert every == {(r, byte) for r in range(8) for byte in range(row)}  # each once
    for first in range(0, 32, 8):  # a matrix of ldmatrix: rows of 16 bytes
        for k in range(stretches):
            assert banks(t, [(first + r, 16 * k) for r in range(8)]) == 8
    for number in range(0, 16 * stretches, 8):  # copies of eight neighbouring threads
        assert (
            banks(t, [(x // stretches, x % stretches * 16) for x in range(number, number + 8)]) == 8
        )
    assert Index.of(0) == t.swizzled(0, 0)


# ---- what chips take -----------------------------------------------------------------------------
@pytest.mark.skipif(not assembler(), reason="ptxas (package nvidia-cuda-nvcc) is not installed")
@pytest.mark.thorough
@pytest.mark.parametrize("chip", ["sm_75", "sm_80", "sm_90", "sm_90a"])
def test_ptxas_takes_them(chip: str) -> None:
    padded = convolution((8, 64, 28, 28), (64, 64, 3, 3), padding=(1, 1, 1, 1))
    for mod in (padded, product(1024, 1024, 1024, False)):
        kernels = compile_program(mod, f"cuda -arch={chip}").kernels
        found = [(k.code.decode(), x) for k in kernels for x in assemble(k.code, chip)[0]]
        assert any("cp.async" in text for text, _ in found) == (chip != "sm_75")
        assert all(x.spills == x.stack == 0 for _, x in found)


@pytest.mark.parametrize(
    ("chip", "shared"),
    [
        pytest.param("sm_75", 48, marks=pytest.mark.thorough),
        ("sm_80", 99),
        pytest.param("sm_90a", 99, marks=pytest.mark.thorough),
    ],
)
def test_large_products_of_bytes(chip: str, shared: int) -> None:
    """Eight warps of 64 by 64, and several parts on their way where chips copy without waiting."""
    (kernel,) = compile_program(dense(8192, 8192, 8192), f"cuda -arch={chip}").kernels
    ((stage,),) = [kernel.stages]
    assert stage.launch is not None
    assert stage.launch.threads == (256, 1, 1)
    assert stage.launch.blocks[0] == 8192 // 128 * (8192 // 256)
    assert stage.launch.shared <= shared << 10
    text = kernel.code.decode()
    assert text.count("mma.sync") >= 64
    assert ("cp.async.wait_group" in text) == (chip != "sm_75")
