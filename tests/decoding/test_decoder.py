"""Decoders whose caches grow in place: the bits of the model built as it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from tiny_decoders import VOCABULARY, WIDTH, past_names, tiny

import compiler
import datatypes
import quantize
from compiler.errors import InputError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.symbolic import Var as Size

IDS = np.random.default_rng(0).integers(0, VOCABULARY, (3, 12))
STEPS = ((0, 5), (5, 6), (6, 7), (7, 9), (9, 10))


@cache
def system(name: str, layers: int = 1, heads: int = 2, kv_heads: int = 1) -> IRModule:
    mod = tiny(layers, heads, kv_heads)
    if name == "float32":
        return mod
    if name == "int8":
        rng = np.random.default_rng(1)
        batches = [
            {
                "input_ids": rng.integers(0, VOCABULARY, (2, 6)),
                **{
                    n: rng.standard_normal((2, kv_heads, 4, WIDTH)).astype(np.float32)
                    for n in past_names(layers)
                },
            }
            for _ in range(2)
        ]
        return quantize.quantize(mod, batches)
    return datatypes.change_dtype(mod, "float32", name)


class AsItIs:
    """The model built as it is, with caches that are given and come back."""

    def __init__(self, mod: IRModule, batch: int, layers: int = 1, kv_heads: int = 1):
        self.exe, self.names = compiler.build(mod), past_names(layers)
        self.past = {n: np.zeros((batch, kv_heads, 0, WIDTH), np.float32) for n in self.names}

    def __call__(self, ids: Any, **more: Any) -> Any:
        logits, *presents = self.exe(input_ids=ids, **self.past, **more)
        self.past = dict(zip(self.names, presents, strict=True))
        return logits


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["float32", "int8", "float8_e4m3fn"])
def test_a_session_gives_the_bits_of_the_model(name: str) -> None:
    mod = system(name)
    session, plain = compiler.decoder(mod).session(10, batch=2), AsItIs(mod, 2)
    for low, high in STEPS:
        ids = IDS[:2, low:high]
        np.testing.assert_array_equal(session(ids), plain(ids))
    assert session.length == 10


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 2, 2), (2, 4, 2)])
@pytest.mark.parametrize("name", ["float32", "int8", "posit16_es1", "bfloat16", "posit8_es2"])
def test_all_systems_layers_heads_and_threads(
    name: str, shape: tuple[int, int, int], threads: int
) -> None:
    layers, _, kv_heads = shape
    mod = system(name, *shape)
    session = compiler.decoder(mod, threads=threads).session(32, batch=3)
    plain = AsItIs(mod, 3, layers, kv_heads)
    for low, high in STEPS:
        ids = IDS[:, low:high]
        np.testing.assert_array_equal(session(ids), plain(ids))


@pytest.mark.thorough
def test_what_a_cache_holds_is_what_the_model_gives() -> None:
    decoder = compiler.decoder(system("float32"))
    session, plain = decoder.session(7), AsItIs(system("float32"), 1)
    for low, high in STEPS[:2]:
        session(IDS[:1, low:high]), plain(IDS[:1, low:high])
    for name, present in plain.past.items():
        np.testing.assert_array_equal(session.cache(name), present)
    with pytest.raises(InputError, match="did you mean"):
        session.cache("past_key_values.0.keys")
    assert list(decoder.inputs) == ["input_ids"]
    assert list(decoder.outputs) == ["logits"]
    assert "caches: past_key_values.0.key" in repr(decoder)


def test_keys_lie_as_they_are_read_and_nothing_of_a_cache_is_copied() -> None:
    decoder = compiler.decoder(system("float32", 2, 4, 2))
    assert [c.order for c in decoder.caches] == [(0, 1, 3, 2), (), (0, 1, 3, 2), ()]
    text = decoder.executable.as_text()
    assert "broadcast_to" not in text
    of_caches = [line for line in text.splitlines() if "transpose" in line and "past_key" in line]
    assert not of_caches


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_what_lies_behind_the_valid_positions_does_not_matter(name: str) -> None:
    decoder = compiler.decoder(system(name))
    clean, filled = decoder.session(40), decoder.session(40)
    for memory in filled._memory.values():
        memory[...] = np.nan
    for low, high in STEPS:
        ids = IDS[:1, low:high]
        np.testing.assert_array_equal(filled(ids), clean(ids))


def test_sessions_are_independent_and_go_back() -> None:
    decoder = compiler.decoder(system("float32"))
    first, second = decoder.session(8), decoder.session(6, batch=2)
    whole = first(IDS[:1, :6])
    second(IDS[:2, :3])
    again = decoder.session(8)
    np.testing.assert_array_equal(again(IDS[:1, :6]), whole)
    first.rewind(2)
    first(IDS[1:2, 3:5])
    first.rewind(2)
    np.testing.assert_allclose(first(IDS[:1, 2:6]), whole[:, 2:], rtol=1e-5, atol=1e-6)
    first.rewind()
    np.testing.assert_array_equal(first(IDS[:1, :6]), whole)
    with pytest.raises(InputError, match="6 positions cannot go back to 7"):
        first.rewind(7)


@pytest.mark.thorough
def test_a_mask_covers_all_positions_and_may_be_left_out() -> None:
    mod = tiny(mask=True)
    decoder, plain = compiler.decoder(mod), AsItIs(mod, 1)
    masked, open_ = decoder.session(8), decoder.session(8)
    seen = np.array([[0, 1, 1, 1, 1]])
    want = plain(IDS[:1, :5], attention_mask=seen)
    np.testing.assert_array_equal(masked(IDS[:1, :5], attention_mask=seen), want)
    left_out = open_(IDS[:1, :5])
    assert not np.array_equal(left_out, want)
    seen = np.append(seen, [[1]], 1)
    want = plain(IDS[:1, 5:6], attention_mask=seen)
    np.testing.assert_array_equal(masked(IDS[:1, 5:6], attention_mask=seen), want)
    with pytest.raises(InputError, match="are for 1 positions in all, but there are 6 and 1"):
        masked(IDS[:1, :1], attention_mask=[[1]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((IDS[:1, :4],), {}, "4 new positions do not fit: .* room for 6, and 3 are taken"),
        ((IDS[:2, :1],), {}, "batch is 2, but this session was begun for 1"),
        ((), {}, "missing input 'input_ids'"),
        ((), {"input_idz": IDS}, "did you mean 'input_ids'"),
        ((IDS[:1], IDS[:1]), {}, "2 inputs given, but the model has 1"),
        ((IDS[:1],), {"input_ids": IDS[:1]}, "given twice"),
        ((np.zeros((1, 1), np.float32),), {}, "must be int64, not float32"),
    ],
)
def test_what_does_not_fit_is_said(args: Any, kwargs: Any, said: str) -> None:
    session = compiler.decoder(system("float32")).session(6)
    session(IDS[:1, :3])
    with pytest.raises(InputError, match=said):
        session(*args, **kwargs)
    assert session.length == 3


def test_sessions_have_room_for_something() -> None:
    decoder = compiler.decoder(system("float32"))
    for sizes in ((0, 1), (4, 0)):
        with pytest.raises(InputError, match="at least 1 position and 1 text"):
            decoder.session(*sizes)


def test_numbers_that_are_not_whole_are_refused() -> None:
    decoder = compiler.decoder(system("float32"))
    with pytest.raises(InputError, match=r"capacity must be an integer, not 4\.5"):
        decoder.session(4.5)
    with pytest.raises(InputError, match="batch must be an integer, not '2'"):
        decoder.session(4, batch="2")
    session = decoder.session(np.int64(4))
    session(IDS[:1, :2])
    with pytest.raises(InputError, match=r"a length must be an integer, not 1\.5"):
        session.rewind(1.5)
    assert session.length == 2


def test_another_batch_is_named_also_where_the_mask_is_left_out() -> None:
    session = compiler.decoder(tiny(mask=True)).session(8, batch=2)
    with pytest.raises(InputError, match="batch is 3, but this session was begun for 2"):
        session(IDS[:3, :2])


def _module(what: str) -> IRModule:
    b = FunctionBuilder()
    p, t = Size("past"), Size("sequence")
    x = b.call("nn.matmul", b.param("x", (1, 1, t, 4)), b.const(np.eye(4, dtype=np.float32)))
    past = b.param("past", (1, 1, p, 4))
    second = b.param("second", (1, 1, p, 4))
    join = b.call("concatenate", *((x, past) if what == "in front" else (past, x)), axis=2)
    other = b.call("concatenate", second, x, axis=2)
    y = b.call("sum", join, axis=(2,))
    names = ["y", "present", "other"]
    results: Sequence[Any] = (y, join, other)
    if what == "read":
        results = (b.call("add", y, b.call("sum", past, axis=(2,))), join, other)
    elif what == "one":
        names, results = names[:2], (y, join)
    elif what == "scaled":
        results = (y, b.call("multiply", join, b.const(np.float32(2))), other)
    elif what == "inputs":
        given = b.param("given", (1, 1, t, 4))
        names, results = names[:2], (y, b.call("concatenate", past, given, axis=2))
    elif what == "none":
        names, results = names[:1], (y,)
    return IRModule({"main": b.finish(*results)}, {"outputs": names})


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("in front", "no output continues input 'past', a cache: .*'present' does not begin with"),
        ("read", "input 'past' is read by .* besides being continued"),
        ("one", "no output continues input 'second', a cache: output 'y' is made by sum"),
        ("scaled", "multiply around that do not give the same numbers back"),
        ("inputs", "'present' joins two inputs"),
        ("none", "no output is an input with new positions behind it.*: output 'y' is made by sum"),
    ],
)
def test_other_models_are_refused(what: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        compiler.decoder(_module(what))


def test_a_cache_of_another_batch_of_sizes_is_refused_where_it_is_not_kept() -> None:
    exe = compiler.build(system("float32"))
    wrong = {n: np.zeros((1, 1, 3 - k, WIDTH), np.float32) for k, n in enumerate(past_names(1))}
    with pytest.raises(InputError, match="past"):
        exe(input_ids=IDS[:1, :1], **wrong)


@pytest.mark.thorough
def test_ten_thousand_tokens_take_no_more_memory() -> None:
    """The cache is as large as it was said to be, and nothing else grows."""
    session = compiler.decoder(system("float32")).session(512)
    kept = {n: a.ctypes.data for n, a in session._memory.items()}

    def run(tokens: int) -> None:
        ids = IDS[:1, :1]
        for _ in range(tokens):
            if session.length == session.capacity:
                session.rewind()
            ids = session(ids)[:, -1].argmax(-1)[None]

    run(1000)
    before = _resident()
    run(10_000)
    assert _resident() - before < 1 << 20
    assert kept == {n: a.ctypes.data for n, a in session._memory.items()}


def _resident() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        pytest.skip("this system does not tell a process's memory")


def test_positions_beyond_those_of_the_model_are_refused() -> None:
    b, t, p = FunctionBuilder(), Size("sequence"), Size("past")
    x, past = b.param("x", (1, t, 4)), b.param("past", (1, p, 4))
    join = b.call("concatenate", past, b.call("exp", x), axis=1)
    row = ["6", "node 'rows'", "", -1, "past + sequence - 1"]
    mod = IRModule(
        {"main": b.finish(b.call("sum", join, axis=(1,)), join)},
        {"outputs": ["y", "present"], "indices": [row]},
    )
    session = compiler.decoder(mod).session(10)
    session(np.zeros((1, 4, 4), np.float32))
    with pytest.raises(InputError, match="total - 1 is 6, but node 'rows' takes it for a position"):
        session(np.zeros((1, 3, 4), np.float32))
    assert session.length == 4
    session(np.zeros((1, 2, 4), np.float32))
