"""Formats by name."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from compiler.errors import DtypelabError
from datatypes.formats import Format, add, families, get, list_formats
from datatypes.formats.catalogue import defined, find, is_builtin
from datatypes.formats.posit import PositCode


@pytest.mark.parametrize(
    ("name", "nbits"),
    [
        *(("posit8_es0", 8), ("posit16_es1", 16), ("posit32_es2", 32), ("posit2_es0", 2)),
        *(("posit27_es3", 27), ("bfloat16", 16), ("float16", 16), ("float8_e4m3fn", 8)),
        *(("float8_e5m2", 8), ("float12_e5m6", 12), ("fixed16_8", 16), ("fixed5_2", 5)),
        *(("takum16", 16), ("takum8", 8), ("float4_e2m1fn", 4)),
    ],
)
def test_names(name: str, nbits: int) -> None:
    fmt = get(name)
    assert (fmt.name, fmt.nbits) == (name, nbits)
    assert fmt.storage.itemsize * 8 == (8 if nbits <= 8 else 16 if nbits <= 16 else 32)
    assert get(name) is fmt
    assert get(fmt) is fmt
    assert fmt.source


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("posit16", "did you mean .*'posit16_es1'"),
        ("bflaot16", "did you mean 'bfloat16'"),
        ("posit1_es0", "nbits is 1, must be 2 to 32"),
        ("posit64_es2", "nbits is 64"),
        ("posit32_es6", "beyond 2\\*\\*-1000"),
        ("posit016_es1", "write 'posit16_es1'"),
        ("float8_e4m4", "write float9_e4m4"),
        ("float8_e7m0", "1 mantissa bit"),
        ("lns8_6", "0 to 5 of them after the point"),
        ("lns17_4", "4 to 16 bits"),
        ("fixed8_99", "0 to 64"),
        ("takum64", "nbits is 64"),
        ("", "unknown format"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    with pytest.raises(DtypelabError, match=message):
        get(name)


def test_list() -> None:
    names = list_formats()
    assert len(names) == len(set(names))
    required = {"posit8_es0", "posit16_es1", "posit32_es2", "posit8_es2", "posit16_es2"}
    assert required | {"bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"} <= set(names)
    assert all(get(name).name == name for name in names)
    assert "posit<N>_es<E>" in families()


def test_any_format_can_round_stochastically_by_name() -> None:
    for name in ("bfloat16", "posit12_es1", "float8_e4m3fn_sat"):
        near, random = get(name), get(f"{name}_stochastic")
        assert (random.rounding, random.seed, random.nbits) == ("stochastic", 0, near.nbits)
        seeded = get(f"{name}_stochastic_seed7")
        assert dataclasses.replace(seeded, name=random.name, seed=0) == random
        assert seeded.seed == 7
        assert is_builtin(seeded.name)
        assert defined(seeded.name) is None
    for bad in (
        "nothing_stochastic",
        "bfloat16_stochastic_seed07",
        "bfloat16_stochastic_stochastic",
    ):
        assert find(bad) is None


def test_random_twins_of_formats_of_ones_own_mean_what_these_do() -> None:
    mine = add(dataclasses.replace(get("float6_e3m2"), name="mine_e3m2", overflow="saturate"))
    random = defined("mine_e3m2_stochastic")
    assert random is not None
    assert not is_builtin(random.name)
    assert (
        dataclasses.replace(random, name=mine.name, rounding="nearest", source=mine.source) == mine
    )


def test_add() -> None:
    mine = Format(name="my_posit10", nbits=10, decoder=PositCode(1), nan_code=512, ties="encoding")
    assert add(mine) is mine
    assert get("my_posit10") is mine
    assert "my_posit10" in list_formats()
    assert add(dataclasses.replace(mine)) == mine  # the same again is no conflict
    with pytest.raises(DtypelabError, match="'my_posit10' exists"):
        add(dataclasses.replace(mine, underflow="minpos"))
    with pytest.raises(DtypelabError, match="names a format of a family"):
        add(dataclasses.replace(mine, name="posit10_es1"))


@pytest.mark.parametrize(
    "name", ["posit16_es1", "bfloat16", "fixed8_4", "takum16", "lns8_3", "nf4"]
)
def test_formats_are_plain_data(name: str) -> None:
    fmt = get(name)
    again = pickle.loads(pickle.dumps(fmt))
    assert again == fmt
    assert hash(again) == hash(fmt)
    assert name in repr(fmt)
    with pytest.raises(dataclasses.FrozenInstanceError):
        fmt.nbits = 4
