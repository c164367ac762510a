"""oneDNN as an engine: random layers and blocks against the reference, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from engines.onednn_graphs import DRAWN, drawn, explained, feeds, handed

import compiler
from compiler.engines.onednn.contractions import exact_bytes
from compiler.engines.onednn.library import missing
from compiler.engines.onednn.operators import POSTS
from compiler.errors import UnsupportedError
from compiler.interpret.graph import evaluate
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.op.library import get_op
from compiler.types.dtypes import Array

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "oneDNN is there")


def need_bytes(dtype: str) -> None:
    """Skip what is refused on this CPU."""
    if dtype != "float32" and not exact_bytes():
        pytest.skip("this CPU has no AVX512-VNNI")


def same(got: Array, want: Array, steps: int = 0) -> None:
    """float32 within rounding; integers the same, or for few of them so many steps away."""
    assert got.dtype == want.dtype
    if want.dtype == np.float32:
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
        return
    away = np.abs(got.astype(int) - want.astype(int))
    assert away.max(initial=0) <= steps
    assert (away > 0).mean() <= 0.02


@pytest.mark.sampled(24)
@pytest.mark.parametrize("seed", range(64))
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int8"])
@pytest.mark.parametrize("kind", DRAWN)
def test_random_layers(kind: str, dtype: str, seed: int) -> None:
    """Integers have the same bits; where one sum is added to another, or an average is scaled, one
    step at most."""
    need_bytes(dtype)
    rng = np.random.default_rng([seed, len(kind), len(dtype)])
    mod, x = DRAWN[kind](rng, dtype)
    given = feeds(rng, mod, x)
    text = mod.astext()
    near = any(op in text for op in ("qnn.add", "qnn.avg_pool2d", "qnn.quantize"))
    exe = compiler.build(mod, engines=["onednn"])
    assert exe.regions or kind == "mapped", explained(mod)
    same(exe(**given), evaluate(mod, **given), steps=1 if near else 0)


def unary() -> list[str]:
    """The functions of one number that are handed over, as they are without attributes."""
    ops = (get_op(name) for name in sorted(POSTS))
    return [op.name for op in ops if op.arity == (1, 1) and op.name != "clip"]


@pytest.mark.parametrize("name", unary())
def test_functions_are_within_rounding(name: str) -> None:
    """Of numbers of all sizes, near 1, and where functions bend."""
    rng = np.random.default_rng(0)
    drawn = rng.choice([-1, 1], 4000) * np.exp2(rng.uniform(-149, 100, 4000))
    near = [1 + s * 2.0**-k for k in range(1, 24) for s in (1, -1)]
    x = np.concatenate([drawn, near, np.linspace(-90, 90, 4001)]).astype(np.float32)
    mod = compiler.parse(f"def @main(%x: Tensor[({x.size},), float32]) {{ %y = {name}(%x); %y }}")
    exe = compiler.build(mod, engines=["onednn"])
    assert exe.regions
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(exe(x), evaluate(mod, x), rtol=5e-7, atol=5e-7)


@pytest.mark.parametrize("shape", [(4, 4, 1), (2, 3, 1, 1), (3, 5)])
def test_operands_that_broadcast_along_an_axis(shape: tuple[int, ...]) -> None:
    """Two of them, one after the other, of every axis."""
    rng = np.random.default_rng(0)
    for axis in range(len(shape)):
        along = tuple(n if k == axis else 1 for k, n in enumerate(shape))
        b = FunctionBuilder()
        y = b.param("x", shape)
        for op in ("multiply", "add", "maximum"):
            y = b.call(op, y, b.const(drawn(rng, along, "float32")))
        mod = IRModule({"main": b.finish(y)})
        x = drawn(rng, shape, "float32")
        exe = compiler.build(mod, engines=["onednn"])
        assert exe.regions or axis != 1
        same(exe(x), evaluate(mod, x))


def residual(rng: np.random.Generator, dtype: str) -> IRModule:
    """Convolutions whose results are added to earlier values, which are read again or not."""
    b = FunctionBuilder()
    y = b.param("x", (1, 16, 6, 6), dtype)
    kept = [y]
    for k in range(5):
        size = 1 if k % 2 else 3
        w = drawn(rng, (16, 16, size, size), "float32" if dtype == "float32" else "int8")
        attrs = {"padding": (size // 2,) * 4}
        if dtype == "float32":
            y = b.call("nn.conv2d", kept[-1], b.const(w * 0.1), **attrs)
            y = b.call("nn.relu", b.call("add", y, kept[int(rng.integers(len(kept)))]))
        else:
            zero = b.const(rng.integers(-99, 99, 16).astype(np.int32))
            y = b.call("nn.conv2d", kept[-1], b.const(w), zero, out_dtype="int32", **attrs)
            y = b.call("qnn.requantize", y, b.const(np.float32(2e-3)), output_zero_point=100)
            other = kept[int(rng.integers(len(kept)))]
            scales = {"a_scale": rng.uniform(0.5, 1), "b_scale": rng.uniform(0.5, 1)}
            y = b.call("qnn.add", y, other, a_zero_point=100, **scales)
        kept.append(y)
    results = [kept[int(k)] for k in rng.choice(len(kept) - 1, 2, replace=False)]
    return IRModule({"main": b.finish(y, *results)})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_residuals(dtype: str, seed: int) -> None:
    """What a sum is added to in place is not read again, and inputs stay as they are."""
    need_bytes(dtype)
    rng = np.random.default_rng(seed)
    mod = residual(rng, dtype)
    x = drawn(rng, (1, 16, 6, 6), dtype)
    before = x.copy()
    exe = compiler.build(mod, engines=["onednn"])
    assert exe.regions
    for got, want in zip(exe(x), evaluate(mod, x), strict=True):
        away = np.abs(got.astype(float) - want)
        # A step in one layer is a few steps in the next ones.
        assert away.max() <= (1e-4 if dtype == "float32" else 3)
        assert (away > (1e-4 if dtype == "float32" else 0)).mean() <= 0.01
    np.testing.assert_array_equal(x, before)


def encoder(rng: np.random.Generator) -> IRModule:
    """A layer of a transformer: attention with a mask, gelu spelled out, layer norms."""
    width, heads, tokens = 32, 4, 10
    b = FunctionBuilder()
    x = b.param("x", (1, tokens, width))
    mask = b.param("mask", (1, 1, 1, tokens))

    def normal(*shape: int) -> object:
        return b.const(rng.normal(0, 0.2, shape).astype(np.float32))

    def split(y: object) -> object:
        y = b.call("reshape", y, newshape=(1, tokens, heads, width // heads))
        return b.call("transpose", y, axes=(0, 2, 1, 3))

    q, k, v = (split(b.call("nn.dense", x, normal(width, width), normal(width))) for _ in range(3))
    scores = b.call("nn.matmul", q, b.call("transpose", k, axes=(0, 1, 3, 2)))
    scores = b.call("add", b.call("multiply", scores, b.const(np.float32(0.35))), mask)
    y = b.call("nn.matmul", b.call("nn.softmax", scores), v)
    y = b.call("reshape", b.call("transpose", y, axes=(0, 2, 1, 3)), newshape=(1, tokens, width))
    y = b.call("add", b.call("nn.dense", y, normal(width, width), normal(width)), x)
    y = b.call("nn.layer_norm", y, normal(width), normal(width))
    inner = b.call("nn.dense", y, normal(3 * width, width), normal(3 * width))
    bend = b.call("erf", b.call("divide", inner, b.const(np.float32(np.sqrt(2)))))
    bend = b.call("add", bend, b.const(np.float32(1)))
    inner = b.call("multiply", b.call("multiply", inner, bend), b.const(np.float32(0.5)))
    y = b.call("add", y, b.call("nn.dense", inner, normal(width, 3 * width), normal(width)))
    return IRModule({"main": b.finish(b.call("nn.layer_norm", y, normal(width), normal(width)))})


def test_an_encoder_is_one_region() -> None:
    rng = np.random.default_rng(0)
    mod = encoder(rng)
    given = {"x": drawn(rng, (1, 10, 32), "float32"), "mask": drawn(rng, (1, 1, 1, 10), "float32")}
    for threads in (1, 2):
        same(handed(mod, threads)(**given), evaluate(mod, **given))


def test_a_primitive_takes_what_follows() -> None:
    """Five primitives for a layer of fifteen operators: gelu, residuals and masks are no steps."""
    from compiler.engines.onednn.runner import runner

    mod = compiler.partition(encoder(np.random.default_rng(0)), ["onednn"])
    (region,) = (f for name, f in mod.functions.items() if name != "main")
    names = runner(region, 1).names
    products = [n for n in names if "brg" in n or "gemm" in n or "jit:avx512_core:" in n]
    assert len(products) >= 8
    assert len(names) <= 14


def test_several_threads_at_once() -> None:
    """Each thread that calls a program has memory of its own."""
    rng = np.random.default_rng(1)
    mod = encoder(rng)
    exe = handed(mod)
    mask = np.zeros((1, 1, 1, 10), np.float32)
    xs = [drawn(rng, (1, 10, 32), "float32") for _ in range(4)]
    want = [exe(x, mask) for x in xs]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(50):
            if not np.array_equal(exe(xs[k], mask), want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%y = nn.relu(%x);", "sizes must be known"),
        ("%y = erf(%x);", "is no elementwise operator"),
        ("%y = log(%x);", "is no elementwise operator"),
        ('%y = bitcast(%x, dtype="int32");', "is no elementwise operator"),
        ("%y = divide(1.0float32, %x);", "first operand"),
    ],
)
def test_what_is_not_handed_over_says_why(text: str, said: str) -> None:
    shape = "(N, 4)" if "sizes" in said else "(4, 4)"
    mod = compiler.parse(f"def @main(%x: Tensor[{shape}, float32]) {{\n  {text}\n  %y\n}}")
    assert said in explained(mod)
    assert not compiler.build(mod, engines=["onednn"]).regions


def test_sums_that_may_be_too_large_are_refused() -> None:
    """A bias and a sum that cancel beyond 2^24 would be off by more than a step."""
    need_bytes("uint8")
    b = FunctionBuilder()
    x = b.param("x", (1, 70000), "uint8")
    w = b.const(np.full((1, 70000), 127, np.int8))
    bias = b.const(np.array([-(2**31) + 1], np.int32))
    y = b.call("nn.dense", x, w, bias, out_dtype="int32")
    y = b.call("qnn.requantize", y, b.const(np.float32(0.5)))
    mod = IRModule({"main": b.finish(y)})
    assert "off by more than a step" in explained(mod)


SCRIPT = """
import numpy as np, compiler
mod = compiler.parse('''
def @main(%x: Tensor[(2, 8), uint8], %w: Tensor[(8, 8), float32]) {
  %f = qnn.dequantize(%x, 0.5float32);
  %y = nn.dense(%f, %w);
  %y
}''')
exe = compiler.build(mod, engines=["onednn"])
print(len(exe.regions))
"""


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_library_that_is_not_there(tmp_path: object) -> None:
    """A sentence that says what to install."""
    out = run(SCRIPT, DTYPELAB_ONEDNN=f"{tmp_path}/libdnnl.so")
    last = out.stderr.strip().splitlines()[-1]
    assert last.startswith("compiler.errors.UnsupportedError: engine 'onednn' cannot run here")
    assert "pip install 'dtypelab[onednn]'" in last


@pytest.mark.thorough
def test_without_dot_products_of_bytes_integers_are_refused() -> None:
    """There oneDNN adds pairs of products in 16 bits, which saturate."""
    script = """
import compiler
from compiler.transform import AnnotateTarget, InferType
mod = compiler.parse('''
def @main(%x: Tensor[(2, 8), uint8], %w: Tensor[(8, 8), int8]) {
  %y = nn.dense(%x, %w, out_dtype="int32");
  %y
}''')
print(AnnotateTarget(["onednn"]).explain(InferType()(mod)))
"""
    assert "saturate" in run(script, ONEDNN_MAX_CPU_ISA="AVX2").stdout


def test_an_error_names_the_region() -> None:
    from compiler.engines.engine import get_engine
    from compiler.ir.expr import Function

    mod = compiler.parse("def @main(%x: Tensor[(2,), float32]) {\n  %y = erf(%x);\n  %y\n}")
    f = compiler.transform.InferType()(mod).main
    assert isinstance(f, Function)
    with pytest.raises(UnsupportedError, match="erf is none of the operators"):
        get_engine("onednn").compile(f, "r")
