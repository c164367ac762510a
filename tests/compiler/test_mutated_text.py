"""Text that people get wrong: it is refused with line and column or by a type error, or it is a
program that every step accepts."""

import re
from contextlib import suppress

import numpy as np
import pytest
from data_programs import PAIRS, SHAPES
from hypothesis import given, settings
from hypothesis import strategies as st
from language import PROGRAMS

import compiler
from compiler.errors import DtypelabError, ParseError

_WORD = re.compile(
    r"meta\[Constant\]\[\d+\]|%[\w/]+|@\w+|\"[^\"]*\"|-?\d+(?:\.\d+)?\w*|\w+(?:\.\w+)*|\S"
)
_NEW = [
    "", "0", "-1", "3", "n", "[]", "[1]", "[n]", "[[1]]", "None", "True", '"x"', "1.5", "inf",
    "99999999999", "%x", "%y", "int64", "float32", "(1,)", "1.0float32", "-3int64", "@main", "{",
    "}", "if", "fn", "//", "/*", "Nil", "Cons", "List", "A", "_", "match", "=>",
]  # fmt: skip


def network() -> str:
    """A program of operators with attributes of every kind."""
    x = compiler.var("x", (2, 4, 9, 9))
    w = np.linspace(-1, 1, 8 * 4 * 3 * 3, dtype=np.float32).reshape(8, 4, 3, 3)
    y = compiler.call("nn.conv2d", x, w, strides=(2, 2), padding=(1, 1, 1, 1))
    y = compiler.call("nn.max_pool2d", y, pool_size=(3, 3), strides=(2, 2))
    y = compiler.call("strided_slice", y, begin=(0, 1), end=(2, 7), axes=(0, 1))
    y = compiler.call(
        "clip", compiler.call("transpose", y, axes=(0, 2, 3, 1)), a_min=0.0, a_max=6.0
    )
    a, b = compiler.call("split", y, sizes=(1, 1), axis=1)
    rows = [compiler.call("reshape", part, newshape=(2, -1)) for part in (a, b)]
    y = compiler.call("concatenate", *rows, axis=1)
    z = compiler.call("sum", compiler.call("cast", y, dtype="float64"), axis=(1,), keepdims=True)
    return compiler.IRModule({"main": compiler.function([x], z)}).astext(show_meta_data=True)


TEXTS = [network(), *(p.source for p in PROGRAMS), PAIRS, SHAPES]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    head, mark, metadata = draw(st.sampled_from(TEXTS)).partition("#[metadata]")
    for _ in range(draw(st.integers(1, 2))):
        words = list(_WORD.finditer(head))
        at = draw(st.sampled_from(words))
        other = draw(st.sampled_from(words)).group()
        new = draw(st.sampled_from([*_NEW, other, f"{at.group()} {at.group()}"]))
        head = head[: at.start()] + new + head[at.end() :]
    return head + mark + metadata


def check(text: str, build: bool) -> None:
    place = ""
    try:
        mod = compiler.parse(text)
    except DtypelabError as e:
        place = "" if not isinstance(e, ParseError) else str(e)
        mod = None
    assert not place or re.match(r"line \d+, column \d+: ", place)
    if mod is None:
        return
    compiler.verify(mod)
    again = compiler.parse(mod.astext(show_meta_data=True))
    assert compiler.structural_equal(mod, again)
    with suppress(DtypelabError):  # a size or a value that must be known
        compiler.optimize(mod)
        if build:
            compiler.build(mod)


@settings(max_examples=400, deadline=None)
@given(mutated())
def test_wrong_text_is_refused_or_is_a_program(text: str) -> None:
    check(text, build=False)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(mutated(), st.booleans())
def test_much_wrong_text_is_refused_or_is_a_program(text: str, build: bool) -> None:
    check(text, build)
