"""Attention and rotary embedding in their several spellings, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contrib import agrees, contrib, normal
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
import datatypes
from compiler.errors import DtypelabError, InputError, UnsupportedError
from compiler.types.dtypes import Array

SOME = settings(max_examples=8, deadline=None)
RUNS = pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["read", "compiled"]
)
Operands = dict[str, "Array | None"]


def rows(seed: int, batch: int, length: int, heads: int, size: int) -> Array:
    return normal(seed, batch, length, heads * size)


# ---- ONNX's --------------------------------------------------------------------------------------
@RUNS
@SOME
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.integers(0, 4), st.booleans(),
    st.sampled_from(["", "bool", "float", "rank 4"]), st.sampled_from([0.0, 0.5]), st.data(),
)  # fmt: skip
def test_attention_of_onnx(
    compiled: bool,
    own: int, group: int, length: int, past: int, causal: bool, mask: str, softcap: float,
    draw: st.DataObject,
) -> None:  # fmt: skip
    size, heads, keys = 4, own * group, length + past
    operands: Operands = {
        "q": rows(0, 2, length, heads, size), "k": rows(1, 2, length, own, size),
        "v": rows(2, 2, length, own, size),
    }  # fmt: skip
    flags = np.random.default_rng(3).random((length, keys)) < 0.7
    flags[:, 0] = True
    operands["mask"] = {
        "": None, "bool": flags, "float": normal(4, length, keys),
        "rank 4": normal(5, 2, 1, length, keys),
    }[mask]  # fmt: skip
    if past:
        operands |= {f"past_{c}": normal(6, 2, own, past, size) for c in "kv"}
    attrs: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": own, "softcap": softcap}
    attrs |= {"scale": 0.3} if draw.draw(st.booleans()) else {}
    while operands and list(operands.values())[-1] is None:
        operands.popitem()
    outputs = ["y", "present_k", "present_v"] if past else ["y"]
    sized = {n: ["b", "s", a.shape[2]] for n in "qkv" if (a := operands[n]) is not None}
    sized |= {f"past_{c}": ["b", own, "p", size] for c in "kv"}
    open_sizes = sized if draw.draw(st.booleans()) else None
    attrs |= {"is_causal": int(causal), "shapes": open_sizes}
    agrees(compiled, *contrib("Attention", operands, outputs, domain="", opset=23, **attrs))


def test_rows_that_may_read_nothing_are_zero() -> None:
    flags = np.array([[True, False, True], [False, False, False]])
    operands: Operands = {c: normal(k, 1, 2, 2 if c == "q" else 3, 4) for k, c in enumerate("qkv")}
    proto, arrays = contrib("Attention", {**operands, "mask": flags}, domain="", opset=23)
    for floats in (False, True):
        if floats:
            bias = np.where(flags, 0, -np.inf).astype(np.float32)
            proto, arrays = contrib("Attention", {**operands, "mask": bias}, domain="", opset=23)
        mod = compiler.from_onnx(proto)
        for got in (compiler.evaluate(mod, arrays), compiler.build(mod)(**arrays)):
            assert (got[:, :, 1] == 0).all()
            assert np.isfinite(got).all()
            assert (got[:, :, 0] != 0).all()


@pytest.mark.thorough
def test_attention_in_number_formats_is_compiled_as_interpreted() -> None:
    """Masks are the lowest numbers: formats have no infinities."""
    operands: Operands = {c: rows(k, 1, 3, 2, 4) for k, c in enumerate("qkv")}
    proto, arrays = contrib("Attention", operands, domain="", opset=23, is_causal=1,
                            q_num_heads=2, kv_num_heads=2)  # fmt: skip
    real = compiler.evaluate(compiler.from_onnx(proto), arrays)
    for name in ("posit16_es1", "bfloat16", "float8_e5m2"):
        mod = datatypes.change_dtype(compiler.from_onnx(proto), "float32", name)
        want = compiler.evaluate(mod, arrays)
        np.testing.assert_array_equal(compiler.build(mod)(**arrays), want)
        assert np.abs(want - real).max() < (1 if "8" in name else 0.05)


@RUNS
@SOME
@given(st.booleans(), st.booleans(), st.booleans(), st.integers(2, 4))
def test_rotary_embedding_of_onnx(
    compiled: bool, interleaved: bool, four: bool, table: bool, half: int
) -> None:
    batch, length, heads, size, turned = 2, 3, 2, 8, 2 * half
    x = normal(0, batch, heads, length, size) if four else rows(0, batch, length, heads, size)
    shape = (9, half) if table else (batch, length, half)
    operands: Operands = {"x": x, "cos": normal(1, *shape), "sin": normal(2, *shape)}
    if table:
        operands["at"] = np.array([[0, 3, 8], [2, 1, 0]], np.int64)
    agrees(compiled, *contrib(
        "RotaryEmbedding", operands, domain="", opset=23, interleaved=int(interleaved),
        num_heads=heads, rotary_embedding_dim=turned if turned < size else 0,
        weights=["cos", "sin"] if table else [],
    ))  # fmt: skip


# ---- onnxruntime's own ---------------------------------------------------------------------------
@RUNS
@SOME
@given(st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_rotary_embedding(
    compiled: bool, interleaved: bool, four: bool, offset: bool, part: bool
) -> None:
    batch, length, heads, size = 2, 3, 2, 8
    half = 3 if part else 4
    x = normal(0, batch, heads, length, size) if four else rows(0, batch, length, heads, size)
    at = np.array([4], np.int64) if offset else np.array([[0, 3, 8], [2, 1, 0]], np.int64)
    operands: Operands = {"x": x, "at": at, "cos": normal(1, 9, half), "sin": normal(2, 9, half)}
    attrs = {"rotary_embedding_dim": 6, "num_heads": heads} if part else {}
    agrees(compiled, *contrib("RotaryEmbedding", operands, interleaved=int(interleaved), **attrs,
                    weights=["cos", "sin"]))  # fmt: skip


@RUNS
@SOME
@given(
    st.sampled_from(["apart", "cross"]), st.integers(0, 3),
    st.sampled_from(["", "lengths", "rows", "queries"]), st.booleans(), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_multi_head_attention(
    compiled: bool, form: str, past: int, mask: str, bias: bool, added: bool, causal: bool
) -> None:
    batch, heads, size, length = 2, 2, 4, 3
    apart = form == "apart"
    past = past if apart else 0
    other = 5 if form == "cross" else length
    keys, causal = other + past, causal and apart
    mask = mask if not past or mask != "lengths" else ""
    operands: Operands = {
        "q": rows(0, batch, length, heads, size), "k": rows(1, batch, other, heads, size),
        "v": rows(2, batch, other, heads, size),
    }  # fmt: skip
    if form == "cross":
        operands |= {c: normal(1, batch, heads, other, size) for c in "kv"}
    operands["bias"] = normal(3, 3 * heads * size) if bias and apart else None
    flags = np.random.default_rng(4).random((batch, length, keys)) < 0.7
    flags[..., 0] = True
    operands["mask"] = {
        "": None, "lengths": np.array([2, keys], np.int32),
        "rows": flags[:, 0].astype(np.int32), "queries": flags.astype(np.int32),
    }[mask]  # fmt: skip
    operands["added"] = normal(5, 1, heads, length, keys) if added else None
    if past:
        operands |= {f"past_{c}": normal(6, batch, heads, past, size) for c in "kv"}
    while list(operands.values())[-1] is None:
        operands.popitem()
    outputs = ["y", "present_k", "present_v"] if past else ["y"]
    agrees(compiled, *contrib("MultiHeadAttention", operands, outputs, num_heads=heads,
                    unidirectional=int(causal)))  # fmt: skip


@pytest.mark.parametrize("keys_only", [False, True])
def test_queries_keys_and_values_in_one_tensor(keys_only: bool) -> None:
    """[batch, positions, heads, 3, size], or keys and values alone: onnxruntime has no such kernels
    for CPUs."""
    parts = [normal(k, 2, 3, 2, 4) for k in range(3)]
    q, k = (parts[0].reshape(2, 3, 8), np.stack(parts[1:], 3)) if keys_only else (
        np.stack(parts, 3), None)  # fmt: skip
    packed = {"q": q, "k": k, "v": None, "bias": None, "m": None,
              "added": normal(4, 1, 2, 3, 3)}  # fmt: skip
    flat = dict(zip("qkv", (p.reshape(2, 3, 8) for p in parts), strict=True))
    proto, arrays = contrib("MultiHeadAttention", {**flat, "bias": None, "m": None,
                            "added": packed["added"]}, num_heads=2)  # fmt: skip
    want = compiler.evaluate(compiler.from_onnx(proto), arrays)
    proto, arrays = contrib("MultiHeadAttention", packed, num_heads=2)
    np.testing.assert_array_equal(compiler.evaluate(compiler.from_onnx(proto), arrays), want)


@RUNS
@SOME
@given(
    st.integers(0, 3), st.sampled_from(["", "lengths", "rows", "queries"]), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_attention(
    compiled: bool, past: int, mask: str, added: bool, causal: bool, wide: bool
) -> None:
    batch, heads, size, length, inner = 2, 2, 4, 3, 5
    keys, hidden = length + past, heads * size
    sizes = [hidden, hidden, hidden + heads] if wide and not past else [hidden] * 3
    mask = mask if not past or mask != "lengths" else ""
    flags = np.random.default_rng(4).random((batch, length, keys)) < 0.7
    flags[..., 0] = True
    operands: Operands = {
        "x": normal(0, batch, length, inner), "w": normal(1, inner, sum(sizes)),
        "bias": normal(2, sum(sizes)),
        "mask": {
            "": None, "lengths": np.array([2, keys], np.int32),
            "rows": flags[:, 0].astype(np.int32), "queries": flags.astype(np.int32),
        }[mask],
        "past": normal(3, 2, batch, heads, past, size) if past else None,
        "added": normal(5, 1, heads, length, keys) if added and not past else None,
    }  # fmt: skip
    while list(operands.values())[-1] is None:
        operands.popitem()
    outputs = ["y", "present"] if past else ["y"]
    shapes = {"x": ["b", "s", inner], "past": [2, "b", heads, "p", size]}
    proto, arrays = contrib(
        "Attention", operands, outputs, num_heads=heads, unidirectional=int(causal),
        weights=["w", "bias"], shapes=shapes if not mask and not added else None,
        **({"qkv_hidden_sizes": sizes} if wide else {}),
    )  # fmt: skip
    mod = agrees(compiled, proto, arrays)
    assert "nn.dense" in [str(b.value.op) for b in mod.main.bindings if hasattr(b.value, "op")]


def grouped(
    past: int, length: int, own: int = 1, group: int = 2, packed: bool = False,
    rotary: str = "", open_sizes: bool = True, batch: int = 1, **attrs: Any,
) -> Any:  # fmt: skip
    size, heads, keys = 16, own * group, past + length
    operands: Operands = {
        "q": rows(0, batch, length, heads, size), "k": rows(1, batch, length, own, size),
        "v": rows(2, batch, length, own, size),
    }  # fmt: skip
    if packed:
        every = [a for a in operands.values() if a is not None]
        operands = {"q": np.concatenate(every, 2), "k": None, "v": None}
    operands |= {
        **{f"past_{c}": normal(3, batch, own, past, size) for c in "kv"},
        "lengths": np.full(batch, keys - 1, np.int32), "total": np.asarray(keys, np.int32),
    }  # fmt: skip
    if rotary:
        operands |= {"cos": normal(4, 20, size // 2), "sin": normal(5, 20, size // 2)}
        attrs |= {"do_rotary": 1, "rotary_interleaved": int(rotary == "interleaved")}
    shapes = {c: ["b", "s", operands[c].shape[2]] for c in "qkv" if operands[c] is not None}
    shapes |= {f"past_{c}": ["b", own, "p", size] for c in "kv"} | {"lengths": ["b"]}
    return contrib("GroupQueryAttention", operands, ["y", "present_k", "present_v"],
                   num_heads=heads, kv_num_heads=own, weights=["cos", "sin"] if rotary else [],
                   shapes=shapes if open_sizes else None, **attrs)  # fmt: skip


@RUNS
@SOME
@given(
    st.integers(1, 2), st.integers(1, 3), st.booleans(), st.sampled_from([(0, 4), (3, 1), (5, 2)]),
    st.sampled_from(["", "halves", "interleaved"]), st.sampled_from([{}, {"softcap": 0.5},
    {"local_window_size": 2}, {"scale": 0.2}]), st.booleans(),
)  # fmt: skip
def test_group_query_attention(
    compiled: bool,
    own: int, group: int, packed: bool, sizes: tuple[int, int], rotary: str, attrs: dict[str, Any],
    open_sizes: bool,
) -> None:  # fmt: skip
    agrees(compiled, *grouped(*sizes, own, group, packed, rotary, open_sizes, **attrs))


@pytest.mark.thorough
def test_group_query_attention_of_a_batch() -> None:
    agrees(True, *grouped(4, 1, 2, 2, rotary="halves", batch=3))


@pytest.mark.thorough
def test_one_program_has_caches_of_every_length() -> None:
    proto, _ = grouped(3, 1, rotary="halves")
    exe = compiler.build(compiler.from_onnx(proto))
    for past, length in ((0, 4), (1, 1), (7, 1), (2, 3)):
        other, arrays = grouped(past, length, rotary="halves")
        want = compiler.evaluate(compiler.from_onnx(other), arrays)
        for got, w in zip(exe(**arrays), want, strict=True):
            np.testing.assert_allclose(got, w, atol=1e-5)


def test_lengths_that_are_not_those_of_the_cache_are_refused_when_it_runs() -> None:
    proto, arrays = grouped(3, 1)
    exe = compiler.build(compiler.from_onnx(proto))
    with pytest.raises(DtypelabError, match="total_sequence_length"):
        exe(**{**arrays, "total": np.asarray(9, np.int32)})
    with pytest.raises(DtypelabError, match="seqlens_k"):
        exe(**{**arrays, "lengths": np.asarray([2], np.int32)})


def test_sequences_longer_than_the_tables_are_refused() -> None:
    proto, _ = grouped(3, 1, rotary="halves")
    exe = compiler.build(compiler.from_onnx(proto))
    _, arrays = grouped(20, 1)
    with pytest.raises(InputError, match=r"'the_node' .*an axis of length 20"):
        exe(**arrays)


REFUSED: list[tuple[Any, str]] = [
    (grouped(3, 1, smooth_softmax=1), "smooth_softmax=1"),
    (grouped(3, 1, k_quant_type="PER_TENSOR"), "k_quant_type='PER_TENSOR'; supported: 'NONE'"),
    (contrib("Attention", {"x": normal(0, 1, 2, 4), "w": normal(1, 4, 12)}, num_heads=2,
             do_rotary=1), "do_rotary=1"),
    (contrib("MultiHeadAttention", {"q": normal(0, 1, 2, 9), "k": normal(1, 1, 2, 9),
             "v": normal(2, 1, 2, 9)}, num_heads=2), "of 2 heads"),
    (contrib("Attention", {c: normal(0, 1, 2, 4) for c in "qkv"}, domain="", opset=23,
             q_num_heads=2, kv_num_heads=2, is_causal=2), "is_causal=2; supported: 0, 1"),
    (contrib("Attention", {c: normal(0, 1, 2, 4) for c in "qkv"} | {"m": None, "past": normal(
        1, 1, 2, 3, 2)}, domain="", opset=23, q_num_heads=2, kv_num_heads=2), "past"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[1][:20])
def test_what_is_not_supported_is_one_sentence(case: Any) -> None:
    (proto, _), why = case
    with pytest.raises(UnsupportedError, match="'the_node'") as error:
        compiler.from_onnx(proto)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
