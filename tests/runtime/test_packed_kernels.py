"""Weights of few bits, read packed, and integer products by groups: the bits of the interpreter on
every instruction set, and dense layers over dequantized weights that are built so."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compiler
from compiler.build import optimize
from compiler.errors import TypeInferenceError, UnsupportedError
from compiler.ir.expr import IRModule
from compiler.op.qnn.packed_dense import PackedDenseAttrs, packed_words, unpacked_values
from compiler.op.qnn.packed_grouped import packed_bytes, unpacked_bytes
from compiler.symbolic import Var as Dim

TARGETS = ["llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"]
NF4 = tuple(float(v) for v in np.linspace(-1, 1, 16).astype(np.float32) ** 3)


def available() -> list[str]:
    out = []
    for t in TARGETS:
        try:
            compiler.Target.parse(t)
        except UnsupportedError:
            continue
        out.append(t)
    return out


def declared(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[object, ...]]:
    """The shape as it is, or with one of its leading axes open."""
    axes = st.sampled_from([None, *range(len(shape) - 1)])
    return axes.map(lambda k: tuple(Dim("n") if i == k else n for i, n in enumerate(shape)))


@st.composite
def products(draw: st.DrawFn) -> tuple[IRModule, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = draw(st.sampled_from([2, 4, 8]))
    lead = draw(st.sampled_from([(), (1,), (2,), (3,), (4,), (7,), (2, 5)]))
    units = draw(st.sampled_from([1, 5, 8, 16, 24, 32, 48, 64, 80, 128]))
    groups, words = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    group = words * 32 // bits
    codes = rng.integers(0, 1 << bits, (units, groups, group))
    scales = rng.standard_normal((units, groups)).astype(np.float32)
    table = tuple(float(v) for v in rng.standard_normal(1 << bits).astype(np.float32))
    table = table if draw(st.booleans()) else ()
    shape = (*lead, groups * group)
    x = compiler.var("x", draw(declared(shape)))
    y = compiler.call(
        "qnn.packed_dense", x, compiler.const(packed_words(codes, bits)), compiler.const(scales),
        bits=bits, table=table,
    )  # fmt: skip
    if draw(st.booleans()):
        y = compiler.call("nn.relu", y + rng.standard_normal(units).astype(np.float32))
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape)
    return IRModule({"main": compiler.function([x], y)}), values.astype(np.float32)


@st.composite
def integer_products(draw: st.DrawFn) -> tuple[IRModule, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = draw(st.sampled_from([(), (1,), (3,), (4,), (9,), (2, 5)]))
    units = draw(st.sampled_from([1, 5, 8, 16, 24, 32, 48, 64, 80, 128]))
    group, groups = draw(st.sampled_from([4, 6, 8, 20, 32, 64])), draw(st.integers(1, 4))
    inputs = group * groups - draw(st.sampled_from([0, 0, 0, 1, 3]))
    weights = rng.integers(-128, 128, (units, inputs)).astype(np.int8)
    scales = rng.standard_normal((units, groups)).astype(np.float32)
    dtype = draw(st.sampled_from(["int8", "int8", "uint8"]))
    data = rng.integers(0, 256, (*lead, inputs)).astype(np.uint8).view(dtype)
    x = compiler.var("x", draw(declared(data.shape)), dtype)
    y = compiler.call(
        "qnn.grouped_dense", x, compiler.const(weights), compiler.const(scales), group=group,
        input_zero_point=draw(st.sampled_from([0, 0, 7])),
    )  # fmt: skip
    if draw(st.booleans()):
        y = compiler.call("nn.relu", y + rng.standard_normal(units).astype(np.float32))
    return IRModule({"main": compiler.function([x], y)}), data


@st.composite
def packed_integer_products(draw: st.DrawFn) -> tuple[IRModule, np.ndarray]:
    """Weights that fit 2 or 4 bits: what is built for them reads them packed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = draw(st.sampled_from([2, 4]))
    lead = draw(st.sampled_from([(), (1,), (3,), (4,), (9,), (2, 5)]))
    units = draw(st.sampled_from([1, 5, 8, 16, 24, 32, 48, 64, 80, 128]))
    group, groups = draw(st.integers(1, 4)) * 32 // bits, draw(st.integers(1, 4))
    half = 1 << (bits - 1)
    weights = rng.integers(-half, half, (units, group * groups)).astype(np.int8)
    weights[0, :2] = -half, half - 1  # not fewer bits by chance
    scales = rng.standard_normal((units, groups)).astype(np.float32)
    data = rng.integers(-128, 128, (*lead, group * groups)).astype(np.int8)
    x = compiler.var("x", draw(declared(data.shape)), "int8")
    y = compiler.call(
        "qnn.grouped_dense", x, compiler.const(weights), compiler.const(scales), group=group
    )
    mod = IRModule({"main": compiler.function([x], y)})
    text = str(optimize(mod))
    assert "qnn.packed_grouped_dense" in text
    assert f"bits={bits}" in text
    return mod, data


def check(mod: IRModule, x: np.ndarray, target: str, threads: int) -> None:
    got = compiler.build(mod, target=target, threads=threads)(x)
    np.testing.assert_array_equal(got, compiler.evaluate(mod, x))


CASES = products() | integer_products() | packed_integer_products()


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(CASES, st.sampled_from(available()), st.sampled_from([1, 2]))
def test_bits_of_the_interpreter(
    case: tuple[IRModule, np.ndarray], target: str, threads: int
) -> None:
    check(*case, target, threads)


@pytest.mark.thorough
@settings(max_examples=90, deadline=None, suppress_health_check=list(HealthCheck))
@given(CASES, st.sampled_from(available()), st.sampled_from([1, 2]))
def test_bits_of_the_interpreter_often(
    case: tuple[IRModule, np.ndarray], target: str, threads: int
) -> None:
    check(*case, target, threads)


def test_words_hold_codes_from_the_lowest_bit_on() -> None:
    assert packed_words(np.arange(8), 4).view(np.uint32).tolist() == [0x76543210]
    codes = np.arange(-128, 128).reshape(2, 128)
    for bits in (2, 4, 8):
        half = 1 << (bits - 1)
        want = (codes + half) % (2 * half) - half
        back = unpacked_values(PackedDenseAttrs(bits), packed_words(codes, bits))
        np.testing.assert_array_equal(back, want)
    back = unpacked_values(PackedDenseAttrs(4, NF4), packed_words(np.arange(16), 4))
    np.testing.assert_array_equal(back, np.asarray(NF4, np.float32))


def test_bytes_hold_codes_as_dot_products_take_them() -> None:
    held = packed_bytes(np.arange(-8, 8), 4)
    assert held.tolist() == [0x40, 0x51, 0x62, 0x73, 0xC8, 0xD9, 0xEA, 0xFB]
    rng = np.random.default_rng(0)
    for bits in (4, 2):
        codes = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), (3, 2, 32))
        np.testing.assert_array_equal(unpacked_bytes(packed_bytes(codes, bits), bits), codes)
    x = rng.integers(-128, 128, (5, 64)).astype(np.int8)
    scales = rng.random((3, 2)).astype(np.float32)
    both = (
        compiler.call("qnn.packed_grouped_dense", x, packed_bytes(codes, 2), scales, bits=2),
        compiler.call(
            "qnn.grouped_dense", x, codes.reshape(3, 64).astype(np.int8), scales, group=32
        ),
    )
    a, b = (compiler.evaluate(IRModule({"main": compiler.function([], y)})) for y in both)
    np.testing.assert_array_equal(a, b)


def test_integer_products_that_are_not_packed() -> None:
    """Wider integers, groups of half a word, a last group with fewer inputs, unsigned data."""
    for top, group, inputs, dtype in (
        (9, 32, 64, "int8"), (7, 12, 48, "int8"), (7, 32, 48, "int8"), (7, 32, 64, "uint8"),
    ):  # fmt: skip
        x = compiler.var("x", (1, inputs), dtype)
        weights = compiler.const(np.full((16, inputs), top, np.int8))
        scales = compiler.const(np.ones((16, -(-inputs // group)), np.float32))
        y = compiler.call("qnn.grouped_dense", x, weights, scales, group=group)
        assert "packed_grouped" not in str(optimize(IRModule({"main": compiler.function([x], y)})))


def test_what_does_not_fit_is_refused() -> None:
    x = compiler.var("x", (2, 64))
    words, scales = np.zeros((3, 2, 4), np.int32), np.zeros((3, 2), np.float32)
    for sentence, args, attrs in (
        ("2, 4 or 8 bits, not 3", (words, scales), {"bits": 3}),
        ("4 entries do not fit 4 bits", (words, scales), {"bits": 4, "table": NF4[:4]}),
        ("does not fit words", (words, scales), {"bits": 2}),
        ("words must be int8, not int32", (words, scales), {"bits": 8}),
        (r"scales must be \(3, 2\)", (words, scales.T), {"bits": 4}),
        ("words must be int32, not int64", (words.astype(np.int64), scales), {"bits": 4}),
    ):
        operands = [compiler.const(a) for a in args]
        with pytest.raises(TypeInferenceError, match=sentence):
            compiler.call("qnn.packed_dense", x, *operands, **attrs)


DOTS = {"": "vpdpbusd", " -mcpu=skylake-avx512": "pmaddwd.512", " -mcpu=haswell": "pmaddwd.256"}


@pytest.mark.parametrize(("cpu", "instruction"), DOTS.items())
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("bits", [4, 8])
def test_integer_products_by_groups_are_dot_products(
    cpu: str, instruction: str, rows: int, bits: int
) -> None:
    target = f"llvm{cpu}"
    if target not in available() or (not cpu and "vnni" not in compiler.Target.parse("llvm").isa):
        pytest.skip("this CPU has no such instructions")
    rng = np.random.default_rng(rows)
    x = compiler.var("x", (rows, 64), "int8")
    half = 1 << (bits - 1)
    weights = compiler.const(rng.integers(-half, half, (64, 64)).astype(np.int8))
    scales = compiler.const(rng.random((64, 2)).astype(np.float32))
    y = compiler.call("qnn.grouped_dense", x, weights, scales, group=32)
    mod = IRModule({"main": compiler.function([x], y)})
    exe = compiler.build(mod, target=target)
    assert instruction in exe.as_text()
    data = rng.integers(-128, 128, (rows, 64)).astype(np.int8)
    np.testing.assert_array_equal(exe(data), compiler.evaluate(mod, data))


# ---- layers over dequantized weights -------------------------------------------------------------
UNITS, INPUTS = 512, 640  # more than a cache holds as float32


def layer(
    q: np.ndarray, scales: np.ndarray, rows: object = 1, zero: int = 0, bias: bool = False
) -> IRModule:
    x = compiler.var("x", (rows, INPUTS))
    real = compiler.call(
        "qnn.dequantize", compiler.const(q), compiler.const(scales), axis=0, zero_point=zero
    )
    weight = compiler.call("reshape", real, newshape=(UNITS, INPUTS))
    shift = [compiler.const(np.linspace(-1, 1, UNITS, dtype=np.float32))] if bias else []
    y = compiler.call("nn.dense", x, weight, *shift)
    return IRModule({"main": compiler.function([x], y)})


def integers(low: int, high: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(group)
    q = rng.integers(low, high, (UNITS * INPUTS // group, group)).astype(np.int8)
    return q, rng.random(len(q)).astype(np.float32)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("low", "high", "group", "zero", "bits"),
    [(-8, 8, 32, 0, 4), (-8, 8, 128, 0, 4), (-2, 2, 64, 0, 2), (-128, 128, 64, 0, 8),
     (0, 16, 32, 8, 4), (-7, 8, INPUTS * UNITS, 0, 4)],
)  # fmt: skip
def test_layers_read_their_integers(low: int, high: int, group: int, zero: int, bits: int) -> None:
    q, scales = integers(low, high, group)
    mod = layer(q, scales if len(scales) > 1 else scales.reshape(()), zero=zero, bias=True)
    text = str(optimize(mod))
    assert "qnn.packed_dense" in text
    assert f"bits={bits}" in text
    x = np.random.default_rng(0).standard_normal((1, INPUTS)).astype(np.float32)
    got, want = compiler.build(mod)(x), compiler.evaluate(mod, x)
    # Sums of 640 float32 numbers: what their roundings can differ by.
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


def test_layers_that_stay() -> None:
    q, scales = integers(-8, 8, 32)
    assert "packed" in str(optimize(layer(q, scales, Dim("n"))))
    for mod, target in (
        (layer(q, scales, rows=64), "llvm"),  # many rows share what is unpacked once
        (layer(q, scales, zero=1, rows=17), "llvm"),
        (layer(*integers(-128, 128, 32), zero=3), "llvm"),  # 8 bits have no table
        (layer(*integers(-8, 8, 4)), "llvm"),  # half a word
        (layer(*integers(-128, 128, INPUTS)), "llvm"),  # 8 bits by units
        (layer(q, scales), "llvm -mcpu=x86-64-v2"),  # no fused multiply-add
    ):
        assert "packed" not in str(optimize(mod, target))
    with compiler.PassContext(disabled_pass=["PackWeights"]):
        assert "packed" not in str(optimize(layer(q, scales)))


def test_widths_of_codes_do_not_change_bits() -> None:
    """The same integers in 4 and in 8 bits, and as a table, are the same numbers."""
    codes = np.random.default_rng(1).integers(-8, 8, (64, 2, 32))
    scales = np.random.default_rng(2).random((64, 2)).astype(np.float32)
    x = compiler.var("x", (3, 64))
    data = np.random.default_rng(3).standard_normal((3, 64)).astype(np.float32)
    table = tuple(float(n - 16 if n > 7 else n) for n in range(16))
    results = []
    for bits, entries in ((4, ()), (4, table), (8, ())):
        words = compiler.const(packed_words(codes, bits))
        y = compiler.call(
            "qnn.packed_dense", x, words, compiler.const(scales), bits=bits, table=entries
        )
        results.append(compiler.build(IRModule({"main": compiler.function([x], y)}))(data))
    for a, b in pairwise(results):
        np.testing.assert_array_equal(a, b)
