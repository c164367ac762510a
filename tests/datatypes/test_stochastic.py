"""Stochastic rounding in networks: same seed, same bits, however the work is split."""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.arithmetic.arrays import arithmetic
from compiler.arithmetic.scalar_functions import UNARY
from compiler.build import optimize
from compiler.errors import LoweringError, UnsupportedError
from compiler.interpret import loop_nests
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Function, IRModule
from compiler.lowering.legalize import legalize
from compiler.scheduling import Schedule, rules
from compiler.types.dtypes import Array, DType
from compiler.types.tensor_types import TensorType
from datatypes.arithmetic import mathfun, oracle
from datatypes.formats import Format, add, catalogue, encode, get, ordered_values
from datatypes.formats.randomness import random_bits
from experiments import zoo
from experiments.data import datasets

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "op"))

from op_case import Case
from op_cases import CASES
from op_harness import N
from test_every_operator import label, operand, parameters
from toy_dtype import TOY

RNG = np.random.default_rng(0)


def stochastic(name: str, seed: int = 0) -> Format:
    return replace(get(name), name=f"{name}_random{seed}", rounding="stochastic", seed=seed)


BASES = ("bfloat16", "posit16_es1", "posit8_es0", "float8_e4m3fn", "fixed16_8", "float8_e5m2")
FORMATS = [*map(stochastic, BASES), stochastic("posit8_es0", 1)]


@pytest.fixture(autouse=True, scope="module")
def defined() -> Iterator[None]:
    """The formats have names while this module runs."""
    for fmt in FORMATS:
        add(fmt)
    yield
    for fmt in FORMATS:
        del catalogue._known[fmt.name]


def dtype_of(fmt: Format) -> DType:
    return DType.parse(f"custom[{fmt.name}]{fmt.nbits}")


def net(conv: dict[str, Any], pool: dict[str, Any]) -> IRModule:
    """A padded convolution, a pooling that leaves the padding out, an addition, a dense layer and
    softmax."""
    b = FunctionBuilder()
    x = b.param("x", (2, 3, 6, 5))
    c = b.call("nn.conv2d", x, weights(4, 3, 3, 3), weights(4), name="conv", **conv)
    p = b.call("nn.avg_pool2d", b.call("nn.relu", c), name="pool", **pool)
    y = b.call("add", p, p, name="twice")
    flat = b.call("reshape", y, newshape=(2, math.prod(shape_of(y)) // 2))
    d = b.call("nn.dense", flat, weights(5, shape_of(flat)[1]), weights(5), name="dense")
    return IRModule({"main": b.finish(b.call("nn.softmax", d, name="softmax"))})


def weights(*shape: int) -> compiler.Constant:
    return compiler.Constant.of(RNG.standard_normal(shape).astype(np.float32))


def shape_of(a: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = a.type.shape
    return shape


@pytest.mark.thorough
# ---- one meaning ---------------------------------------------------------------------------------
@given(
    st.sampled_from(FORMATS),
    st.integers(1, 2),
    st.tuples(*[st.integers(0, 1)] * 4),
    st.integers(1, 2),
    st.booleans(),
    st.integers(1, 3),
)
@settings(max_examples=12, deadline=None)
def test_compiled_and_interpreted_bits_are_equal_for_any_threads(
    fmt: Format, stride: int, padding: tuple[int, ...], pool: int, count: bool, threads: int
) -> None:
    attrs = {"strides": (stride, stride), "padding": padding}
    sides = {"pool_size": (2, 2), "strides": (pool, pool), "padding": (1, 0, 0, 1)}
    mod = datatypes.change_dtype(net(attrs, {**sides, "count_include_pad": count}), "float32", fmt)
    x = RNG.standard_normal((2, 3, 6, 5)).astype(np.float32)
    want = compiler.evaluate(mod, x)
    np.testing.assert_array_equal(compiler.build(mod, threads=threads)(x), want)
    with compiler.PassContext(disabled_pass=["FuseOps"]):
        np.testing.assert_array_equal(compiler.build(mod)(x), want)


NOT_NUMBERED = (
    *("nn.batch_norm", "nn.hadamard"), *("einsum", "cumsum", "cumprod", "non_max_suppression"),
)  # fmt: skip
RUNS = [
    (case, dtypes)
    for case in CASES
    for dtypes in case.dtypes
    if TOY in case.operand_dtypes(dtypes) and (case.op in mathfun.names() or case.op not in UNARY)
]


def rounds_unnumbered(case: Case) -> bool:
    """Whether the operator rounds, and does not number that; some einsum and scatters only move."""
    moves = case.attrs.get("equation") in ("...ij->...ji", "ii->i")
    adds = case.attrs.get("reduction") in ("add", "mul")
    return adds or (case.op in NOT_NUMBERED and not moves)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("run", RUNS, ids=label)
def test_every_operator_rounds_alike_or_is_refused_by_name(run: tuple[Case, Any]) -> None:
    case, which = run
    fmt = FORMATS[2]
    ours = dtype_of(fmt)
    attrs = {k: str(ours) if v == str(TOY) else v for k, v in case.attrs.items()}
    dtypes = [ours if d == TOY else d for d in case.operand_dtypes(which)]
    types = [
        TensorType.of([N if d == "n" else d for d in shape], dtype)
        for shape, dtype in zip(case.shapes, dtypes, strict=True)
    ]
    b = FunctionBuilder()
    y = b.call(case.op, *map(b.add_param, parameters(types)), **attrs)
    fields = len(getattr(y.type, "fields", ()))
    mod = IRModule({"main": b.finish(*([b.get(y, k) for k in range(fields)] or [y]))})
    args = [operand(RNG, t, fmt, case) for t in types]
    if rounds_unnumbered(case):
        for run_it in (lambda: compiler.evaluate(mod, *args), lambda: compiler.build(mod)):
            with pytest.raises(UnsupportedError, match=f"{case.op} does not number its roundings"):
                run_it()
        return
    want = compiler.evaluate(mod, *args)
    got = compiler.build(mod)(*args)
    many = isinstance(want, list)
    for g, w in zip(got if many else [got], want if many else [want], strict=True):
        np.testing.assert_array_equal(g, w)


# ---- places --------------------------------------------------------------------------------------
def test_a_dense_layer_by_hand() -> None:
    """Products have even steps, sums odd ones; the bias comes last, and is rounded to nearest."""
    fmt = FORMATS[0]
    b = FunctionBuilder()
    x, w, bias = b.param("x", (2, 3)), weights(4, 3), weights(4)
    y = b.call("nn.dense", x, w, bias, name="layer")
    mod = datatypes.change_dtype(IRModule({"main": b.finish(y)}), "float32", fmt, boundary=False)
    codes = encode(get("bfloat16"), RNG.standard_normal((2, 3)))
    factors, terms = encode(get("bfloat16"), w.data), encode(get("bfloat16"), bias.data)
    node, index = zlib.crc32(b"layer"), np.arange(8).reshape(2, 4)

    def at(step: int, op: str, a: Array, b: Array) -> Array:
        return oracle.apply(fmt, op, a, b, random=random_bits(fmt.seed, node, index, step))

    want = np.zeros((2, 4), fmt.storage)
    for k in range(3):
        product = at(2 * k, "Mul", codes[:, k, None], factors[:, k])
        want = at(2 * k + 1, "Add", want, product)
    want = at(6, "Add", want, terms)
    np.testing.assert_array_equal(compiler.build(mod)(codes), want)
    np.testing.assert_array_equal(compiler.evaluate(mod, codes), want)


@pytest.mark.parametrize(
    "name", ["posit8_es2", "takum8", "fixed8_4", "float8_e4m3fnuz", "nf4", "posit12_es1"]
)
def test_values_and_what_lies_beside_and_between_them_round_like_the_oracle(name: str) -> None:
    fmt = stochastic(name, 3)
    add(fmt)
    try:
        values = ordered_values(fmt)
        around = [np.nextafter(values, end) for end in (-np.inf, np.inf)]
        odd = [0.0, -0.0, 5e-324, -1e-300, 1e300, -1e300, np.inf, -np.inf, np.nan]
        x = np.concatenate([values, -values, *around, (values[1:] + values[:-1]) / 2, odd])
        b = FunctionBuilder()
        y = b.call("cast", b.param("x", x.shape, "float64"), dtype=str(dtype_of(fmt)))
        mod = IRModule({"main": b.finish(y)})
        np.testing.assert_array_equal(compiler.build(mod)(x), compiler.evaluate(mod, x))
    finally:
        del catalogue._known[fmt.name]


def test_layers_of_other_names_and_seeds_get_other_bits() -> None:
    x = RNG.standard_normal((1, 500)).astype(np.float32)

    def run(name: str, fmt: Format) -> Array:
        b = FunctionBuilder()
        v = b.param("x", (1, 500))
        mod = IRModule({"main": b.finish(b.call("multiply", v, v, name=name))})
        changed = datatypes.change_dtype(mod, "float32", fmt)
        result: Array = compiler.build(changed)(x)
        return result

    first = run("first", FORMATS[2])
    np.testing.assert_array_equal(run("first", FORMATS[2]), first)
    assert not np.array_equal(run("second", FORMATS[2]), first)
    assert not np.array_equal(run("first", FORMATS[-1]), first)


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", FORMATS[:4], ids=lambda fmt: fmt.name)
def test_the_mean_of_a_million_compiled_roundings_is_within_four_standard_errors(
    fmt: Format,
) -> None:
    """Of a conversion, a product and a sum; each element of a tensor is a place of its own."""
    count, factor = 1_000_000, np.float32(1.0625)
    b = FunctionBuilder()
    x, y = (b.param(name, (count,)) for name in "xy")
    outs = [b.call(op, x, y, name=op) for op in ("multiply", "add")]
    mod = IRModule({"main": b.finish(x, *outs)})
    exe = compiler.build(datatypes.change_dtype(mod, "float32", fmt))
    converted, *_ = exe(np.full(count, 1.001, np.float32), np.full(count, factor))
    _, product, total = exe(np.full(count, factor), np.full(count, 1.1875, np.float32))
    for got, exact in ((converted, np.float32(1.001)), (product, 1.26171875), (total, 2.25)):
        error = got.std(dtype=np.float64) / math.sqrt(count)
        assert abs(got.mean(dtype=np.float64) - exact) <= 4 * error
    assert len(np.unique(converted)) == 2


@pytest.mark.thorough
# ---- schedules -----------------------------------------------------------------------------------
@given(
    st.sampled_from(FORMATS),
    st.integers(2, 5),
    st.integers(2, 5),
    st.booleans(),
    st.integers(1, 3),
)
@settings(max_examples=20, deadline=None)
def test_bits_do_not_depend_on_tiles(
    fmt: Format, rows: int, columns: int, unrolled: bool, threads: int
) -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (7, 6)), weights(9, 6)
    y = b.call("nn.relu", b.call("nn.dense", x, w, weights(9), name="dense"))
    mod = datatypes.change_dtype(IRModule({"main": b.finish(y)}), "float32", fmt)
    data = RNG.standard_normal((7, 6)).astype(np.float32)
    scheduled = []

    def tiled(s: Schedule, stage: str, *_: object) -> bool:
        i, oc, *reduction = s.loops(stage)
        outer, inner = zip(s.split(i, rows), s.split(oc, columns), strict=True)
        s.reorder(*outer, *reduction, *inner)
        if unrolled:
            s.unroll(inner[0])
            s.peel(outer[0])
        scheduled.append(stage)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "_registered", [])
        compiler.register_schedule_rule(tiled, op="nn.dense")
        exe = compiler.build(mod, threads=threads)
        got = exe(data)
    assert scheduled
    np.testing.assert_array_equal(got, compiler.evaluate(mod, data))


@pytest.mark.parametrize("fmt", FORMATS[:3], ids=lambda fmt: fmt.name)
def test_the_printed_loops_interpreted_give_the_same_bits(fmt: Format) -> None:
    b = FunctionBuilder()
    x = b.param("x", (2, 3))
    y = b.call("add", b.call("nn.dense", x, weights(4, 3), name="dense"), weights(4), name="sum")
    mod = datatypes.change_dtype(IRModule({"main": b.finish(y)}), "float32", fmt)
    data = RNG.standard_normal((2, 3)).astype(np.float32)
    value, arrays = data, {}
    optimized = optimize(mod)
    arrays[optimized.main.params[0]] = value
    for binding in optimized.main.bindings:
        assert isinstance(binding.value, Call)
        assert isinstance(binding.value.op, Function)
        legal = legalize(binding.value.op)
        inner = dict(zip(binding.value.op.params, binding.value.args, strict=True))
        given_arrays = [
            a.data if isinstance(a, compiler.Constant) else arrays[inner[a]] for a in legal.inputs
        ]
        out = legal.func.params[-1]
        arrays[binding.var] = np.zeros([int(n.const) for n in out.shape], out.dtype.storage)
        loop_nests.run(legal.func, [*given_arrays, arrays[binding.var]])
    (result,) = optimized.main.results
    np.testing.assert_array_equal(arrays[result], compiler.evaluate(mod, data))


# ---- accumulation, whole nets, refusals ----------------------------------------------------------
@pytest.mark.sampled(4)
@pytest.mark.parametrize("accumulate", ["fma", "float32", "float64", "exact"])
def test_other_accumulations_round_at_places_too(accumulate: str) -> None:
    attrs = {"strides": (1, 1), "padding": (1, 0, 1, 1)}
    sides = {"pool_size": (2, 2), "strides": (2, 2), "padding": (1, 0, 0, 1)}
    fmt = FORMATS[3]
    mod = datatypes.change_dtype(net(attrs, sides), "float32", fmt, accumulate=accumulate)
    x = RNG.standard_normal((2, 3, 6, 5)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mod, threads=2)(x), compiler.evaluate(mod, x))


@pytest.mark.thorough
def test_exact_sums_of_many_parts_round_at_the_same_places() -> None:
    """Those of bfloat16 become several float64 sums; of their means nobody knows the place."""
    fmt, x = FORMATS[0], RNG.standard_normal((2, 5)).astype(np.float32)
    b = FunctionBuilder()
    y = b.call("nn.dense", b.param("x", (2, 5)), weights(3, 5), weights(3), name="dense")
    dense = IRModule({"main": b.finish(y)})
    mod = datatypes.change_dtype(dense, "float32", fmt, accumulate="exact")
    np.testing.assert_array_equal(compiler.build(mod)(x), compiler.evaluate(mod, x))
    b = FunctionBuilder()
    mean = IRModule({"main": b.finish(b.call("mean", b.param("x", (2, 5)), axis=1))})
    with pytest.raises(LoweringError, match=r"mean \(%0\): exact means .* accumulate in float64"):
        compiler.build(datatypes.change_dtype(mean, "float32", fmt, accumulate="exact"))


@pytest.mark.thorough
def test_formats_that_round_to_nearest_and_stochastically_meet() -> None:
    mod = net({"padding": (1, 1, 1, 1)}, {"pool_size": (2, 2), "strides": (2, 2)})
    mixed = datatypes.change_dtype(
        mod, {"conv": FORMATS[0].name, "dense": "posit16_es1", "*": FORMATS[2].name}
    )
    x = RNG.standard_normal((2, 3, 6, 5)).astype(np.float32)
    np.testing.assert_array_equal(compiler.build(mixed)(x), compiler.evaluate(mixed, x))


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["mnist_mlp.onnx", "mnist_resnet8.onnx"])
def test_whole_nets(file: str) -> None:
    model = compiler.from_onnx(zoo.FOLDER / file)
    digits = datasets.load("mnist1k").x[:1]
    mod = datatypes.change_dtype(model, "float32", FORMATS[0])
    want = compiler.evaluate(mod, digits)
    for threads in (1, 2):
        np.testing.assert_array_equal(compiler.build(mod, threads=threads)(digits), want)


def test_arithmetic_without_a_place_is_refused() -> None:
    fmt = FORMATS[0]
    codes = np.arange(4)
    with pytest.raises(UnsupportedError, match="rounds stochastically; give it random bits"):
        oracle.apply(fmt, "Mul", codes, codes)
    with pytest.raises(UnsupportedError, match="rounds stochastically"):
        arithmetic(dtype_of(fmt)).add(codes, codes)


@pytest.mark.parametrize("lowering", ["vector", "table"])
def test_lowerings_without_random_bits_are_refused(lowering: str) -> None:
    b = FunctionBuilder()
    x = b.param("x", (2,))
    mod = IRModule({"main": b.finish(b.call("add", x, x))})
    changed = datatypes.change_dtype(mod, "float32", FORMATS[2])
    with pytest.raises(LoweringError, match="rounds stochastically; leave dtype_lowering out"):
        compiler.build(changed, dtype_lowering=lowering)
    (choice,) = compiler.build(changed).lowerings
    assert choice.lowering == "library"
