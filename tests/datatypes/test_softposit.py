"""Finding and calling SoftPosit's C functions, and our codec against theirs."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compiler.errors import DtypelabError
from datatypes.c_libraries import softposit
from datatypes.formats import decode, encode, get, interval_starts, posit


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget the library that was found, before and after the test."""
    softposit.library_path.cache_clear()
    softposit.load.cache_clear()
    yield
    softposit.library_path.cache_clear()
    softposit.load.cache_clear()


def test_library_is_found_and_called() -> None:
    assert Path(softposit.library_path()).name.startswith("_softposit")
    assert softposit.function("p16_add")(0x4000, 0x4000) == 0x5000
    assert softposit.function("p8_lt")(0x40, 0x50) is True
    assert softposit.function("pX2_mul")(0x48000000, 0x48000000, 12) == 0x50000000
    assert softposit.function("convertP32ToDouble")(0x40000000) == 1.0
    assert softposit.function("p16_to_p32")(0x5000) == encode("posit32_es2", 2.0)


def test_unknown_function() -> None:
    with pytest.raises(DtypelabError, match="did you mean 'p16_add'"):
        softposit.function("p16_ad")


def test_not_installed(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(DtypelabError, match="softposit is not installed; install"):
        softposit.load()


def test_installed_without_the_library(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    with pytest.raises(
        DtypelabError, match=r"softposit 0\.0\.1 was installed without its C library"
    ):
        softposit.load()


def test_symbols_missing(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    spec = SimpleNamespace(origin=np.random.mtrand.__file__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DtypelabError, match=r"lacks \d+ of SoftPosit's C functions"):
        softposit.load()


def test_file_that_is_no_library(
    monkeypatch: pytest.MonkeyPatch, fresh: None, tmp_path: Path
) -> None:
    broken = tmp_path / "_softposit.so"
    broken.write_text("not a library")
    spec = SimpleNamespace(origin=str(broken))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DtypelabError, match="does not load"):
        softposit.load()


def test_all_signatures_are_callable() -> None:
    library = softposit.load()
    for name, signature in softposit.SIGNATURES.items():
        arguments = [
            0.0 if a == "float64" else 16 if a == "int32" else 0 for a in signature.arguments
        ]
        result = getattr(library, name)(*arguments)
        if not name.endswith(("_div", "_eq", "_le", "_lt")):
            assert result == 0, name
    assert ctypes.sizeof(ctypes.c_bool) == 1  # `bool` results come back in one byte


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "label"), [("posit8_es0", "P8"), ("posit16_es1", "P16"), ("posit32_es2", "P32")]
)
def test_codec_against_softposit(name: str, label: str) -> None:
    fmt = get(name)
    rng = np.random.default_rng(0)
    if fmt.nbits <= 16:
        codes = np.arange(1 << fmt.nbits)
        starts = interval_starts(fmt)[1:]
        values = np.concatenate([starts, np.nextafter(starts, -np.inf)])
    else:
        codes = np.unique(rng.integers(0, 1 << 32, 40000))
        ours = decode(fmt, codes)
        between = fmt.decoder
        ties = [between(2 * int(code) + 1, 33) for code in codes[:5000]]
        values = np.concatenate([ours, np.array(ties, np.float64)])
    to_double = softposit.function(f"convert{label}ToDouble")
    number = codes != fmt.nan_code  # SoftPosit turns a short NaR into infinity
    theirs = np.array([to_double(int(code)) for code in codes[number]])
    assert np.array_equal(decode(fmt, codes[number]), theirs)
    wide = rng.standard_normal(20000) * 2.0 ** rng.uniform(-130, 130, 20000)
    values = np.concatenate([values, wide, [0.0, -0.0, np.inf, -np.inf, np.nan]])
    from_double = softposit.function(f"convertDoubleTo{label}")
    assert encode(fmt, values).tolist() == [from_double(value) for value in values.tolist()]


@pytest.mark.parametrize("nbits", [2, 5, 12, 16, 20, 24, 31, 32])
def test_es2_of_any_width_against_softposit(nbits: int) -> None:
    fmt = posit(nbits, 2)
    from_double = softposit.function("convertDoubleToPX2")
    rng = np.random.default_rng(nbits)
    values = rng.standard_normal(5000) * 2.0 ** rng.uniform(-130, 130, 5000)
    theirs = [from_double(value, nbits) >> (32 - nbits) for value in values.tolist()]
    assert encode(fmt, values).tolist() == theirs
