"""CombineSlices: products of the parts of a tensor with one factor are one product, in the same
bits; what is no whole, or no such part, stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_partial_sums import CASES, numbers, recurrent

import compiler
import datatypes
from compiler.errors import ConfigError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Binding, IRModule
from compiler.ir.verifier import verify
from compiler.passes.rewrite import op_of
from compiler.symbolic import Var as Dim
from compiler.transform import CombineSlices, PassContext, Sequential
from compiler.transform.partial_sums import partial_sums

RNG = np.random.default_rng(0)


def combined(mod: IRModule, least: int = 2) -> IRModule:
    """The module after the pass, which is valid."""
    made: IRModule = Sequential([CombineSlices(least)], opt_level=2)(mod)
    verify(made)
    return made


def products(mod: IRModule) -> int:
    """How many contractions there are."""

    def counts(b: Binding) -> bool:
        op = op_of(b.value)
        return op is not None and op.contraction is not None

    return sum(map(counts, mod.main.bindings))


def sliced(
    shape: Sequence[int | Dim], axis: int, cuts: Sequence[tuple[int, int]], op: str = "nn.matmul",
    squeezed: bool = False, bias: bool = False, **more: Any,
) -> IRModule:  # fmt: skip
    """Products of parts of x with one factor, which are concatenated."""
    b = FunctionBuilder()
    x, depth = b.param("x", shape), shape[-1]
    assert isinstance(depth, int)
    w = numbers(depth, 3) if op == "nn.matmul" else numbers(3, depth)
    args = [b.const(w), *([b.const(numbers(3))] if bias else [])]
    parts = []
    for begin, end in cuts:
        part = b.call("strided_slice", x, begin=(begin,), end=(end,), axes=(axis,), **more)
        if squeezed:
            part = b.call("squeeze", part, axis=(axis,))
        parts.append(b.call("exp", b.call(op, part, *args)))
    return IRModule({"main": b.finish(b.call("concatenate", *parts, axis=0 if squeezed else axis))})


@st.composite
def whole(draw: Callable[[Any], Any]) -> dict[str, Any]:
    """A tensor that is cut into parts, in any order."""
    rank = draw(st.integers(2, 4))
    shape = [draw(st.integers(1, 4)) for _ in range(rank)]
    axis = draw(st.integers(0, rank - 2))
    lengths = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    squeezed = draw(st.booleans())
    if squeezed:
        lengths = [1] * len(lengths)
    ends = [int(n) for n in np.cumsum(lengths)]
    shape[axis] = ends[-1]
    cuts = draw(st.permutations(list(zip([0, *ends], ends, strict=False))))
    if draw(st.booleans()):  # counted from the end
        cuts = [(begin - ends[-1], end) for begin, end in cuts]
    op = draw(st.sampled_from(["nn.matmul", "nn.dense"]))
    if squeezed and rank == 2 and op == "nn.dense":
        op = "nn.matmul"  # dense layers take matrices
    bias = op == "nn.dense" and draw(st.booleans())
    rows = max(lengths) * int(np.prod(shape[:-1])) // shape[axis]
    return {"shape": shape, "axis": axis, "cuts": cuts, "op": op, "squeezed": squeezed,
            "bias": bias, "rows": rows}  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(whole(), st.sampled_from(["float32", "bfloat16", "posit8_es1"]), st.integers(0, 9))
def test_parts_are_one_product_in_the_same_bits(
    made: dict[str, Any], dtype: str, seed: int
) -> None:
    most = made.pop("rows")
    mod = sliced(**made)
    if dtype != "float32":
        mod = datatypes.change_dtype(mod, "float32", dtype)
    out = combined(mod)
    assert products(mod) == len(made["cuts"])
    assert products(out) == (1 if most < 16 else len(made["cuts"]))
    assert [r.type for r in out.main.results] == [r.type for r in mod.main.results]
    x = np.random.default_rng(seed).uniform(-2, 2, made["shape"]).astype(np.float32)
    np.testing.assert_array_equal(compiler.evaluate(out, x), compiler.evaluate(mod, x))
    assert combined(out) is out  # there is nothing more to do


LEFT = {
    "a part is missing": lambda: sliced((4, 5), 0, [(0, 1), (1, 3)]),
    "parts overlap": lambda: sliced((4, 5), 0, [(0, 3), (2, 4)]),
    "a part is there twice": lambda: sliced((4, 5), 0, [(0, 2), (0, 2), (2, 4)]),
    "every other row": lambda: sliced((4, 5), 0, [(0, 4), (1, 4)], strides=(2,)),
    "an open size": lambda: sliced((Dim("n"), 5), 0, [(0, 2), (2, 4)]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_the_whole_stays(name: str) -> None:
    mod = LEFT[name]()
    assert combined(mod) is mod


def two(change: str) -> IRModule:
    """Two products of halves, which are no parts of one."""
    b = FunctionBuilder()
    x, z = b.param("x", (4, 5)), b.param("z", (4, 5))
    w, u = b.const(numbers(5, 5)), b.const(numbers(5, 5))
    first, last = (
        b.call("strided_slice", v, begin=(k,), end=(k + 2,), axes=(0,))
        for v, k in ((x, 0), (z if change == "tensor" else x, 2))
    )
    if change == "function":
        last = b.call("tanh", last)
    one = b.call("nn.matmul", first, w)
    factor = {"factor": u, "own": one}.get(change, w)
    if change == "own":
        factor = b.call("concatenate", one, one, b.call("strided_slice", one, begin=(0,), end=(1,)))
    return IRModule({"main": b.finish(one, b.call("nn.matmul", last, factor))})


@pytest.mark.parametrize("change", ["tensor", "factor", "own", "function"])
def test_products_of_different_things_stay(change: str) -> None:
    mod = two(change)
    assert combined(mod) is mod
    assert products(combined(two("nothing"))) == 1


@pytest.mark.parametrize("zero", [0, 3])
def test_products_of_one_kind_are_combined(zero: int) -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (4, 5), "int8"), b.const(np.arange(15, dtype=np.int8).reshape(5, 3))
    parts = [b.call("strided_slice", x, begin=(k,), end=(k + 2,), axes=(0,)) for k in (0, 2)]
    found = [
        b.call("nn.matmul", part, w, out_dtype="int32", input_zero_point=z)
        for part, z in zip(parts, (0, zero), strict=True)
    ]
    mod = IRModule({"main": b.finish(*found)})
    assert products(combined(mod)) == (2 if zero else 1)
    given = RNG.integers(-128, 128, (4, 5)).astype(np.int8)
    for a, c in zip(
        compiler.evaluate(combined(mod), given), compiler.evaluate(mod, given), strict=True
    ):
        np.testing.assert_array_equal(a, c)


def test_parts_of_the_sums_stay() -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (4, 6)), b.const(numbers(3, 2))
    parts = [b.call("strided_slice", x, begin=(k,), end=(k + 3,), axes=(1,)) for k in (0, 3)]
    y = b.call("add", *(b.call("nn.matmul", part, w) for part in parts))
    mod = IRModule({"main": b.finish(y)})
    assert combined(mod) is mod


def test_a_convolution_stays() -> None:
    b = FunctionBuilder()
    x, w = b.param("x", (4, 2, 5, 5)), b.const(numbers(3, 2, 1, 1))
    parts = [b.call("strided_slice", x, begin=(k,), end=(k + 2,), axes=(0,)) for k in (0, 2)]
    mod = IRModule({"main": b.finish(*(b.call("nn.conv2d", part, w) for part in parts))})
    assert combined(mod) is mod


def test_fewer_parts_than_asked_for_stay() -> None:
    mod = sliced((4, 5), 0, [(0, 2), (2, 4)])
    assert combined(mod, 3) is mod
    with pytest.raises(ConfigError, match="at least 2 branches, not 1"):
        CombineSlices(1)


def test_what_rounds_at_random_stays() -> None:
    mod = sliced((4, 5), 0, [(0, 2), (2, 4)])
    mod = datatypes.change_dtype(mod, "float32", "bfloat16_stochastic")
    assert combined(mod) is mod


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["LSTM", "LSTM with peepholes", "RNN", "RNN, reversed", "GRU"])
def test_inputs_of_all_steps_of_a_recurrent_layer_are_one_product(name: str) -> None:
    case, _ = CASES[name]
    mod = compiler.from_onnx(case.model())
    made = compiler.optimize(mod)
    with PassContext(disabled_pass=["CombineSlices"]):
        apart = compiler.optimize(mod)
    (x,) = case.arrays.values()
    kernels = [len(m.main.bindings) for m in (made, apart)]
    assert _calls(made, "matmul") == _calls(apart, "matmul") - len(x) + 1, kernels
    found = compiler.build(mod)(x)
    want = compiler.evaluate(mod, x)
    for a, b in zip(np.atleast_1d(found), np.atleast_1d(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _calls(mod: IRModule, name: str) -> int:
    """How many calls of operators there are in kernels, whose names end so."""
    return mod.astext().count(f"nn.{name}(")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("op", "gates", "mode"),
    [
        ("GRU", 3, "exact"),
        *(
            pytest.param(op, gates, mode, marks=pytest.mark.thorough)
            for op, gates in (("LSTM", 4), ("GRU", 3))
            for mode in ("sequential", "exact", "fma")
            if (op, mode) != ("GRU", "exact")
        ),
    ],
)
def test_recurrent_layers_in_formats_keep_every_bit(op: str, gates: int, mode: str) -> None:
    case = recurrent(op, gates)
    mod = compiler.from_onnx(case.model())
    mod = datatypes.change_dtype(mod, "float32", "bfloat16", accumulate=mode)
    assert not partial_sums(mod)
    (x,) = case.arrays.values()
    want = compiler.evaluate(mod, x)
    for disabled in ([], ["CombineSlices"]):
        with PassContext(disabled_pass=disabled):
            found = compiler.build(mod)(x)
        for a, b in zip(np.atleast_1d(found), np.atleast_1d(want), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("rows", "left"), [(15, 1), (16, 3)])
def test_parts_of_many_rows_stay(rows: int, left: int) -> None:
    cuts = [(0, 1), (1, 2), (2, 3)]
    assert products(combined(sliced((3, rows, 5), 0, cuts, squeezed=True))) == left
    cuts = [(0, rows), (rows, rows + 2), (rows + 2, rows + 3)]
    assert products(combined(sliced((rows + 3, 5), 0, cuts))) == left


def test_batches_of_any_size() -> None:
    n = Dim("n")
    mod = sliced((3, n, 5), 0, [(2, 3), (0, 1), (1, 2)], squeezed=True)
    assert products(combined(mod)) == 1
    exe = compiler.build(mod)
    for size in (1, 4):
        x = numbers(3, size, 5)
        np.testing.assert_allclose(exe(x), compiler.evaluate(mod, x), rtol=1e-5)
