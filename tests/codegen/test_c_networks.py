"""Programs in C: networks give the bits of the LLVM backend, and what is besides kernels works."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from c_programs import needs_compiler, same_bits

import compiler
import datatypes
import quantize
from compiler.boundary.external import register_func, remove_func
from compiler.codegen import cache
from compiler.codegen.c import system_compiler
from compiler.codegen.c.backend import C
from compiler.errors import InputError, LoweringError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.ir.function_calls import call_packed
from compiler.runtime import object_code
from compiler.runtime.profile import profile
from compiler.target.registry import Target
from compiler.tensor.stmt import For
from compiler.types.dtypes import Array
from compiler.types.tensor_types import TensorType
from experiments import zoo

pytestmark = needs_compiler
VIT = Path(__file__).parents[2].parent / "shared" / "data" / "mnist_vit.onnx"
IMAGES = np.load(zoo.FOLDER / "mnist1k.npz")
NETS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8", "mnist_vit")
FORMATS = ("float32", "int8", "posit16_es1", "float8_e4m3fn")

FIRST = (("mnist_mlp", "int8"), ("mnist_mlp", "posit16_es1"))
"""The networks of the first tier."""


def images(first: int, count: int) -> Array:
    """Some digits, as networks take them."""
    key = next(k for k in IMAGES.files if k.startswith("x"))
    return np.asarray(IMAGES[key][first : first + count], np.float32).reshape(count, 1, 28, 28)


def network(name: str, fmt: str) -> IRModule:
    """A network for digits, in a format."""
    path = VIT if name == "mnist_vit" else zoo.FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{name} is not here")
    mod = compiler.from_onnx(path)
    if fmt == "float32":
        return mod
    if fmt == "int8":
        return quantize.quantize(mod, [images(8 * k, 8) for k in range(4)], quantize.QConfig())
    return datatypes.change_dtype(mod, "float32", fmt)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(n, f, marks=() if (n, f) in FIRST else pytest.mark.thorough)
        for n in NETS
        for f in FORMATS
    ],
)
def test_networks_give_the_bits_of_llvm(name: str, fmt: str) -> None:
    mod = network(name, fmt)
    x = images(100, 3)
    got = compiler.build(mod, target="c")(x)
    assert same_bits(got, compiler.build(mod)(x))
    if fmt != "float32":  # of its sums of products the reference rounds every product
        assert same_bits(got, compiler.evaluate(mod, x))
    else:
        np.testing.assert_allclose(got, compiler.evaluate(mod, x), rtol=1e-4, atol=1e-4)


def dense(fmt: str = "float32", **how: str) -> IRModule:
    """A small layer on any number of rows of 9."""
    x = compiler.var("x", ("n", 9))
    w = np.random.default_rng(1).normal(size=(7, 9)).astype(np.float32)
    layer = compiler.call("tanh", compiler.call("nn.dense", x, w))
    mod = IRModule({"main": compiler.function([x], layer)})
    return mod if fmt == "float32" else datatypes.change_dtype(mod, "float32", fmt, **how)


def rows(count: int) -> Array:
    """What `dense` takes."""
    return np.random.default_rng(0).normal(size=(count, 9)).astype(np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fmt", "accumulate", "lowering"),
    [
        ("posit8_es0", "", "library"),
        ("posit8_es2", "exact", None),
        pytest.param("posit8_es0", "", "table", marks=pytest.mark.thorough),
        pytest.param("float8_e5m2", "fma", None, marks=pytest.mark.thorough),
        pytest.param("bfloat16", "float64", None, marks=pytest.mark.thorough),
    ],
)
def test_lowerings_and_sums_of_formats(fmt: str, accumulate: str, lowering: str | None) -> None:
    mod = dense(fmt, **({"accumulate": accumulate} if accumulate else {}))
    c, llvm = (compiler.build(mod, target=t, dtype_lowering=lowering) for t in ("c", "llvm"))
    assert same_bits(c(rows(5)), llvm(rows(5)))
    assert same_bits(c(rows(5)), compiler.evaluate(mod, rows(5)))


def test_a_cpu_without_fused_multiply_add() -> None:
    exe = compiler.build(dense(), target="c -mcpu=x86-64")
    assert same_bits(exe(rows(5)), compiler.build(dense(), target="llvm -mcpu=x86-64")(rows(5)))


def test_the_second_way_runs_only_if_the_first_one_rounds() -> None:
    b = FunctionBuilder()
    x = b.param("x", (4, 6), "float64")
    quick = b.call("add", x, b.const(np.ones(())))
    sure = b.call("add", b.call("multiply", x, b.const(np.ones(()))), b.const(np.array(1000.0)))
    exe = compiler.build(IRModule({"main": b.finish(b.call("if_exact", quick, sure))}), target="c")
    data = np.arange(24.0).reshape(4, 6)
    for value, added in ((2.0, 1), (2.0**54 + 4, 1000), (3.0, 1)):
        data[2, 3] = value
        np.testing.assert_array_equal(exe(data), data + added)


def test_registered_functions_and_copies() -> None:
    def twice(a: Array, out: Array) -> None:
        out[:] = 2 * a

    register_func("twice_in_c", twice)
    try:
        b = FunctionBuilder()
        x = b.param("x", (3,), "float32")
        y = b.bind(call_packed("twice_in_c", [b.call("add", x, x)], TensorType.of((3,), "float32")))
        exe = compiler.build(IRModule({"main": b.finish(b.call("add", y, x), x)}), target="c")
        got, same = exe(np.arange(3, dtype=np.float32))
    finally:
        remove_func("twice_in_c")
    np.testing.assert_array_equal(got, [0, 5, 10])
    np.testing.assert_array_equal(same, [0, 1, 2])


def test_programs_with_loops_and_rows_of_nothing() -> None:
    x, times = compiler.var("x", ("n", 4)), compiler.var("times", (), "int64")
    _, out = compiler.while_loop(
        lambda k, state: k < times,
        lambda k, state: (k + 1, state + x),
        init=(compiler.const(0), x),
    )
    exe = compiler.build(IRModule({"main": compiler.function([x, times], out)}), target="c")
    for n in (3, 0):
        ones = np.ones((n, 4), np.float32)
        np.testing.assert_array_equal(exe(ones, np.asarray(4)), 5 * ones)


def test_a_saved_program_is_the_same(tmp_path: Path) -> None:
    exe = compiler.build(dense("posit8_es0"), target="c", dtype_lowering="library")
    exe.save(tmp_path / "program.exe")
    again = compiler.load(tmp_path / "program.exe")
    assert (again.source, str(again.target)) == (exe.source, "c")
    assert same_bits(again(rows(4)), exe(rows(4)))


def test_a_source_file_stands_alone(tmp_path: Path) -> None:
    """`net_run` needs nothing but the constants and memory."""
    exe = compiler.build(dense(), target="c")
    source = tmp_path / "net.c"
    source.write_text(exe.source)
    call = [
        "-std=c11",
        "-O2",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
        "-Wno-unused-parameter",
        "-pedantic",
        "-Werror",
    ]
    out = tmp_path / "net.so"
    subprocess.run(
        [*system_compiler.command(), *call, "-fPIC", "-shared", "-o", out, source, "-lm"],
        check=True,
    )
    assert not re.search(r"\b(malloc|free|fopen|printf)\b", exe.source)
    library = ctypes.CDLL(str(out))
    held = exe.program.constants
    table = (ctypes.c_void_p * len(held)).in_dll(library, "net_constants")
    table[:] = [a.ctypes.data for a in held]
    x, y = rows(6), np.zeros((6, 7), np.float32)
    pointers = [(ctypes.c_void_p * 1)(a.ctypes.data) for a in (x, y)]
    arena = np.zeros(exe.workspace_bytes(n=6) + 64, np.uint8)
    dims = (ctypes.c_int64 * 1)(6)
    assert library.net_run(*pointers, dims, ctypes.c_void_p(arena.ctypes.data)) == 0
    assert same_bits(y, compiler.build(dense())(x))


def test_the_source_is_for_people() -> None:
    text = compiler.build(dense(), target="c").source
    assert "/* nn.dense, tanh */" in text
    assert "static inline float tanh_f32(float x)" in text
    assert "fma_f32(x0[" in text


def test_stages_are_not_measured_alone(tmp_path: Path) -> None:
    exe = compiler.build(dense(), target="c")
    with pytest.raises(InputError, match="stages of target 'c' cannot be called one by one"):
        profile(exe, rows(3))
    with pytest.raises(UnsupportedError, match="cannot be timed one by one"):
        compiler.tune(dense(), target="c", log=tmp_path / "log.jsonl", budget_s=1)


def test_names_of_a_model_stay_in_comments() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,), "float32")
    y = b.call("exp", x, origins=("a */ int evil; /*", "b\nc \u202e"))
    exe = compiler.build(IRModule({"main": b.finish(y)}), target="c")
    assert "/* a * / int evil; / *, b\\nc \\u202e */" in exe.source
    np.testing.assert_array_equal(exe(np.zeros(3, np.float32)), np.ones(3))


def test_what_cannot_be_done_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="programs in C run on one thread: build with threads=1"):
        compiler.build(dense(), target="c", threads=2)
    func = next(iter(compiler.build(dense(), target="c").kernels)).func
    loop = next(s for s in func.body if isinstance(s, For))
    monkeypatch.setattr(loop, "kind", "strange")
    with pytest.raises(
        LoweringError, match=r"dense_tanh \(nn.dense, tanh\): C has no loops of kind"
    ):
        C.kernel(func, [], Target.parse("c"))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(LoweringError, match="needs a C compiler, but no-such-compiler is not"):
        compiler.build(dense("bfloat16"), target="c")
    monkeypatch.delenv("CC")
    with pytest.raises(LoweringError, match=r"rejects the generated C: .*error"):
        system_compiler.shared_library("int main(void) { return x; }")


def test_what_was_compiled_before_is_taken_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.build(dense("posit8_es0"), target="c", dtype_lowering="library")
    monkeypatch.setattr(object_code, "_objects", {})  # what this process holds
    before = cache.statistics()
    compiler.build(dense("posit8_es0"), target="c", dtype_lowering="library")
    after = cache.statistics()
    assert after["compiled"] == before["compiled"]
    assert after["loaded"] == before["loaded"] + 1
