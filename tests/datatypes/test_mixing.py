"""Several formats in one network, chosen by patterns of names."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
import datatypes
from compiler.errors import DtypelabError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, IRModule, tensor_type
from compiler.ir.verifier import verify
from compiler.op.library import get_op
from compiler.types.dtypes import Array
from datatypes.arithmetic import oracle
from datatypes.formats import Format, get

RNG = np.random.default_rng(3)
W1, B1 = RNG.standard_normal((6, 5)).astype(np.float32), RNG.standard_normal(6).astype(np.float32)
W2 = RNG.standard_normal((4, 6)).astype(np.float32)
FOUR = {
    "first": "posit8_es2",
    "Relu*": "bfloat16",
    "second": "float8_e4m3fn",
    "[st]*": "fixed16_8",
}


def net() -> IRModule:
    """dense, relu, dense, add, tanh; the origin of the relu is its only name a pattern knows."""
    b = FunctionBuilder()
    x = b.param("x", (3, 5))
    h = b.call("nn.dense", x, b.const(W1), b.const(B1), name="first", origins=["Gemm_0"])
    h = b.call("nn.relu", h, name="positive", origins=["Relu_1"])
    y = b.call("nn.dense", h, b.const(W2), name="second", origins=["Gemm_2"])
    total = b.call("add", y, y, name="sum", origins=["Add_3"])
    return IRModule({"main": b.finish(b.call("tanh", total, name="tail", origins=["Tanh_4"]), y)})


def dense(fmt: Format, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Codes of x @ w.T + bias, rounded after every product and sum, in order."""
    w = datatypes.encode(fmt, w)
    acc = datatypes.encode(fmt, np.zeros((len(x), len(w))))
    for k in range(x.shape[1]):
        product = oracle.apply(fmt, "Mul", x[:, None, k], w[None, :, k])
        acc = oracle.apply(fmt, "Add", acc, product)
    return acc if bias is None else oracle.apply(fmt, "Add", acc, datatypes.encode(fmt, bias))


def by_hand(x: Array) -> tuple[Array, Array]:
    """The net in FOUR, written in numpy: what the compiler must give."""
    posit, brain, fp8, fixed = (get(name) for name in FOUR.values())
    h = dense(posit, datatypes.encode(posit, x), W1, B1)
    h = datatypes.encode(brain, np.maximum(datatypes.decode(posit, h), 0))
    y = dense(fp8, datatypes.encode(fp8, datatypes.decode(brain, h)), W2)
    z = datatypes.encode(fixed, datatypes.decode(fp8, y))
    total = oracle.apply(fixed, "Add", z, z)
    tail = datatypes.decode(fixed, oracle.apply(fixed, "tanh", total))
    return tail.astype(np.float32), datatypes.decode(fp8, y).astype(np.float32)


@pytest.mark.parametrize("lowering", [None, "library"])
def test_four_formats_equal_the_emulation_by_hand(lowering: str | None) -> None:
    mixed = datatypes.change_dtype(net(), FOUR)
    verify(mixed)
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    want = by_hand(x)
    for got in (compiler.evaluate(mixed, x), compiler.build(mixed, dtype_lowering=lowering)(x)):
        for ours, theirs in zip(got, want, strict=True):
            assert ours.dtype == np.float32
            np.testing.assert_array_equal(ours, theirs)


def test_casts_stand_in_the_printed_graph_and_are_shared() -> None:
    mixed = datatypes.change_dtype(net(), FOUR)
    text = mixed.astext()
    for cast in ("x_posit8_es2", "first_bfloat16", "positive_float8_e4m3fn", "second_fixed16_8"):
        assert text.count(f"%{cast} = cast(") == 1, text
    casts = [b for b in mixed.main.bindings if getattr(b.value, "op", None) == get_op("cast")]
    assert len(casts) == 6  # four between formats, and two back to float32
    assert {b.origins for b in casts} >= {(), ("Gemm_0",), ("Relu_1",), ("Gemm_2",)}
    again = compiler.parse(mixed.astext(show_meta_data=True))
    assert again.astext() == text


def test_what_no_pattern_matches_stays_float32() -> None:
    mixed = datatypes.change_dtype(net(), {"second": "posit16_es1"})
    dtypes = {b.var.name: str(tensor_type(b.var).dtype) for b in mixed.main.bindings}
    assert dtypes["first"] == dtypes["tail"] == "float32"
    assert dtypes["second"] == "custom[posit16_es1]16"
    constants = {a.dtype.name for b in mixed.main.bindings if isinstance(b.value, Call)
                 for a in b.value.args if isinstance(a, Constant)}  # fmt: skip
    assert constants == {"", "posit16_es1"}


def test_one_pattern_for_all_is_the_plain_change() -> None:
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    mixed = datatypes.change_dtype(net(), {"*": "posit16_es1"})
    plain = datatypes.change_dtype(net(), "float32", "posit16_es1")
    for ours, theirs in zip(compiler.build(mixed)(x), compiler.build(plain)(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_first_pattern_decides() -> None:
    mixed = datatypes.change_dtype(net(), {"sec*": "bfloat16", "*": "float16"})
    dtypes = {b.var.name: tensor_type(b.var).dtype.name for b in mixed.main.bindings}
    assert (dtypes["first"], dtypes["second"]) == ("float16", "bfloat16")


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"frist": "bfloat16"}, "unknown layer or pattern 'frist'; did you mean 'first'"),
        ({"*": "bfloat16", "first": "float16"}, "'first'.*no pattern before it does"),
        ({"first": "posit16"}, "did you mean .*'posit16_es1'"),
        ({"first": "float8_e8m0fnu"}, "only stores values"),
    ],
)
def test_bad_mappings(mapping: dict[str, str], message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        datatypes.change_dtype(net(), mapping)


def test_a_mapping_stands_alone() -> None:
    with pytest.raises(DtypelabError, match="names the formats itself"):
        datatypes.change_dtype(net(), {"*": "bfloat16"}, "bfloat16")
    with pytest.raises(DtypelabError, match="needs the dtype to change to"):
        datatypes.change_dtype(net(), "float32")
