"""Whether programs and what they compute are the same."""

from __future__ import annotations

from typing import Any

import numpy as np

import compiler
from compiler.boundary.data import Datum


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, Datum):
        name = np.frombuffer(value.constructor.encode(), np.uint8)
        return [name, *flat(value.fields)]
    if isinstance(value, list | tuple):
        return [a for x in value for a in flat(x)]
    return [np.asarray(value)]


def same(got: Any, want: Any) -> None:
    for a, b in zip(flat(got), flat(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def round_trip(mod: compiler.IRModule) -> None:
    compiler.verify(mod)
    text = mod.astext(show_meta_data=True)
    again = compiler.parse(text)
    compiler.verify(again)
    assert compiler.structural_equal(mod, again)
    assert again.astext(show_meta_data=True) == text
