"""Archives of arrays from elsewhere."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from compiler.errors import ConfigError
from compiler.files.reading import VARIABLE
from experiments.data.archives import array_of
from experiments.data.datasets import read_npz

DTYPES = ("float32", ">f8", "int8", "uint16", "bool", "complex64", "S3", "U2", "float16")


def member(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(path: Path, packed: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", packed) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@settings(max_examples=15)
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda d: hnp.arrays(np.dtype(d), hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
    ),
    st.booleans(),
)
def test_arrays_come_back_as_numpy_reads_them(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray[Any, Any], fortran: bool
) -> None:
    given_ = np.asfortranarray(array) if fortran else array
    file = tmp_path_factory.getbasetemp() / "drawn.npz"
    np.savez_compressed(file, a=given_, b=np.zeros(3))
    found, expected = read_npz(file)["a"], np.load(file)["a"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
    assert found.flags.f_contiguous == expected.flags.f_contiguous
    assert found.flags.writeable
    np.save(file.with_suffix(".npy"), given_)
    alone = array_of(file.with_suffix(".npy"))
    assert (alone.dtype, alone.shape) == (expected.dtype, expected.shape)
    assert alone.tobytes() == expected.tobytes()


def test_what_is_no_lone_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npy"
    whole = member(np.arange(9))
    for content in (b"", whole[:20], whole[:-1], b"PK\3\4" + whole, member(np.array([{}]))):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"is not a \.npy file of a plain array"):
            array_of(path)
    path.write_bytes(whole)
    monkeypatch.setenv(VARIABLE, "100")
    with pytest.raises(ConfigError, match=r"x\.npy"):
        array_of(path)


HEADER = b"\x93NUMPY\x01\x00"


def header(text: str) -> bytes:
    return HEADER + len(text).to_bytes(2, "little") + text.encode()


HUGE = header("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x": HUGE + bytes(1000)}, r"x does not hold an array of shape \(1099511627776,\)"),
        ({"x": member(np.zeros(10))[:-3]}, "x is cut short"),
        ({"x": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }")}, "shape"),
        ({"x": header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }")}, "objects"),
        ({"x": b"no array"}, "is not an .npz archive of plain arrays"),
        ({"x": b""}, "is not an .npz archive of plain arrays"),
        ({"x": header("[" * 3000)}, "is not an .npz archive of plain arrays"),
        ({"x": HEADER[:-2] + b"\x09\x00" + bytes(50)}, "version"),
    ],
)
def test_what_is_no_array_is_refused(
    tmp_path: Path, members: dict[str, bytes], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_npz(archive(tmp_path / "x.npz", **members))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "x.npz", x=member(np.zeros(1_000_000, np.int8)))
    assert path.stat().st_size < 5000
    monkeypatch.setenv(VARIABLE, "100KiB")
    with pytest.raises(ConfigError, match=f"more than 102400; .* raise the limit with {VARIABLE}"):
        read_npz(path)
    monkeypatch.setenv(VARIABLE, "1MiB")
    assert read_npz(path)["x"].shape == (1_000_000,)


def test_damage_anywhere_is_refused_or_read(tmp_path: Path) -> None:
    whole = archive(
        tmp_path / "x.npz", x=member(np.arange(50.0)), y=member(np.zeros(2))
    ).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        cut = len(data) if rng.integers(3) else int(rng.integers(len(data)))
        (tmp_path / "m.npz").write_bytes(data[:cut])
        try:
            read_npz(tmp_path / "m.npz")
        except ConfigError:
            continue


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("x.npy", member(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x.npy", member(np.ones(1)))
    with pytest.raises(ConfigError, match="two arrays called 'x'"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize("descr", ["'|S0'", "'<U0'", "'|V0'", "('<f4', (4,))", "('<f4', (0,))"])
def test_elements_without_bytes_and_those_with_axes_are_refused(descr: str, tmp_path: Path) -> None:
    """numpy gives the former a byte each, so that a small file would take any memory."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (9999999999, 4), }}".encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("x.npy", content)
    with pytest.raises(ConfigError, match=r"x has elements of .* none of plain arrays"):
        read_npz(tmp_path / "x.npz")
