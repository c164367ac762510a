"""What scripts of pages make of numbers, files of numpy and pixels, as numpy sees it; in Node."""

from __future__ import annotations

import io
import itertools
import json
import math
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler.exporting
from compiler.types.dtypes import Array
from experiments.measure.metrics import sqnr_db

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
WEB = Path(compiler.exporting.__file__).parent / "web"
DTYPES = (
    *("float64", "float32", "float16", "bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)


def called(*calls: tuple[str, list[Any]]) -> list[Any]:
    """What functions give; an error is {"error": ...}."""
    host = Path(__file__).parent / "numbers_host.js"
    done = subprocess.run(
        ["node", str(host), str(WEB)], input=json.dumps(calls), capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [r.get("value", r) for r in json.loads(done.stdout)]


def held(content: bytes) -> dict[str, str]:
    return {"hex": content.hex()}


def npy(a: Array) -> dict[str, str]:
    file = io.BytesIO()
    np.save(file, a)
    return held(file.getvalue())


def operand(a: Array) -> dict[str, Any]:
    return {"name": "x", "dtype": a.dtype.name, "shape": list(a.shape)}


def test_every_float16() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    (values,) = called(("valuesOf", [held(codes.tobytes()), "float16"]))
    found = np.array([math.nan if v is None else float(v) for v in values])
    np.testing.assert_array_equal(found, codes.view(np.float16).astype(np.float64))


@pytest.mark.thorough
def test_rounding_to_float16() -> None:
    """All neighbours, what lies in the middle of them, and a little beside."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = (halves[1:] + halves[:-1]) / 2
    near = np.concatenate([np.nextafter(middle, 0), middle, np.nextafter(middle, 1e9), halves])
    values = np.concatenate([near, -near, [65519.99, 65520, 1e300, 1e-300, -65520]])
    (got,) = called(("encoded", [values.tolist(), "float16"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = values.astype(np.float16)
    assert got == held(want.tobytes())


def test_files_of_numpy() -> None:
    """Of every type that holds the same numbers, for inputs of every type."""
    calls: list[tuple[str, list[Any]]] = []
    expected = []
    for dtype in DTYPES:
        values = np.array([[0, 1, 1], [1, 0, 0]] if dtype == "bool" else [[5, 1, 0], [9, 8, 2]])
        want = values.astype(dtype)
        calls += [("npyFor", [npy(values.astype(d)), operand(want)]) for d in DTYPES if d != "bool"]
        expected += [held(want.tobytes())] * (len(DTYPES) - 1)
    assert called(*calls) == expected


def test_any_numbers_come_through_as_they_are() -> None:
    rng = np.random.default_rng(0)
    arrays = [np.frombuffer(rng.bytes(64), d) for d in DTYPES if d != "bool"]
    assert called(*(("npyFor", [npy(a), operand(a)]) for a in arrays)) == [
        held(a.tobytes()) for a in arrays
    ]


def test_floats_are_rounded_as_numpy_rounds() -> None:
    x = np.random.default_rng(1).standard_normal(500) * 10.0 ** np.arange(-250, 250).clip(-44, 38)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = x.astype(np.float32)
    assert called(("npyFor", [npy(x), operand(want)])) == [held(want.tobytes())]


def test_what_a_file_may_leave_out_of_its_shape() -> None:
    x = np.ones((3, 2), np.float32)
    whole = {"name": "x", "dtype": "float32", "shape": [1, 1, 3, 2]}
    other = {**whole, "shape": [1, 2, 3]}
    assert called(("npyFor", [npy(x), whole]), ("npyFor", [npy(x), other])) == [
        held(x.tobytes()),
        {"error": "its shape is (3, 2), but x takes (1, 2, 3)"},
    ]


def test_files_that_are_refused() -> None:
    good, x = np.arange(6, dtype=np.float32), {"name": "x", "dtype": "float32", "shape": [2, 3]}
    content = bytes.fromhex(npy(good.reshape(2, 3))["hex"])
    ints = {**x, "dtype": "int8"}
    texts = np.array([["a", "b", "c"], ["d", "e", "f"]])
    cases = {
        "it is no .npy file": [held(b"PK\3\4 and more of it"), x],
        "it ends too soon": [held(content[:11]), x],
        "it ends too soon: its shape needs 24 bytes, it has 23": [held(content[:-1]), x],
        "its elements are no numbers that a page reads": [npy(texts), x],
        "it is in Fortran's order: save it with numpy.ascontiguousarray(x)": [
            npy(np.asfortranarray(good.reshape(2, 3))), x,
        ],
        "it holds 2.5, which int8 does not have": [npy(np.full((2, 3), 2.5)), ints],
        "it holds 128, which int8 does not have": [npy(np.full((2, 3), 128)), ints],
        "it holds NaN, which int8 does not have": [npy(np.full((2, 3), np.nan)), ints],
        "its bytes are in the order of other machines: save it with "
        "x.astype(x.dtype.newbyteorder('<'))": [npy(good.reshape(2, 3).astype(">f4")), x],
    }  # fmt: skip
    found = called(*(("npyFor", given) for given in cases.values()))
    assert [f["error"] for f in found] == list(cases)


def test_damaged_files_are_refused_or_read() -> None:
    """Whatever is changed in the header, there is an array of the input's size, or a reason."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    content, rng, calls = bytes.fromhex(npy(a)["hex"]), np.random.default_rng(2), []
    for _ in range(300):
        damaged = bytearray(content)
        for at in rng.integers(0, 128, rng.integers(1, 4)):
            damaged[at] = rng.integers(256)
        calls.append(("npyFor", [held(bytes(damaged)), operand(a)]))
    for found in called(*calls):
        assert len(found.get("hex", "")) == 2 * a.nbytes or found["error"]


def test_distances_are_those_of_reports() -> None:
    rng = np.random.default_rng(3)
    want = rng.standard_normal(100)
    got = want + 0.01 * rng.standard_normal(100)
    (found,) = called(("difference", [got.tolist(), want.tolist()]))
    assert found["sqnr"] == pytest.approx(sqnr_db(got, want))
    assert found["most"] == abs(got - want).max()
    assert found["at"] == abs(got - want).argmax()
    texts = ["1", "NaN", "3.5", "Infinity"], ["1", "2", "3", "Infinity"]
    (wild,) = called(("(a, b) => difference(a.map(Number), b.map(Number))", list(texts)))
    sqnr = pytest.approx(10 * math.log10(10 / 0.25))
    assert wild == {"sqnr": sqnr, "most": 0.5, "at": 2, "wild": 2}


def test_what_is_said_of_two_programs() -> None:
    """Also where numbers are not finite."""
    programs = {"programs": [{"name": "a"}, {"name": "b"}]}
    pairs = [([1, 2, 3], [1, 2, 2]), ([1, 2, 3], [1, 2, 3]), ([np.nan, 2, 3], [1, 2, 2])]
    pairs += [([np.nan] * 3, [1, 2, 2]), ([np.inf, 0, 1], [np.inf, 0, 1])]
    say = (
        "(data, pairs) => { globalThis.DATA = data; const output = { shape: [1, 3] };"
        "return pairs.map((pair) => comparison(output, pair.map((bytes) => "
        "({ bytes, values: valuesOf(bytes, 'float32') }))).text); }"
    )
    given = [[held(np.array(x, np.float32).tobytes()) for x in pair] for pair in pairs]
    assert called((say, [programs, given])) == [[
        "SQNR of a to b: 9.5 dB; largest difference 1 at [0, 2].",
        "a and b give the same bits.",
        "SQNR of a to b: 9.0 dB; largest difference 1 at [0, 2]; infinite or NaN in one or both, "
        "and left out here: 1.",
        "no value is finite in both a and b.",
        "a and b give the same bits.",
    ]]  # fmt: skip


def test_shares_of_classes() -> None:
    logits = np.array([1000.0, 999.0, -5.0])
    powers = np.exp(logits - 1000)
    (found,) = called(("sharesOf", [logits.tolist()]))
    np.testing.assert_allclose(found["shares"], powers / powers.sum())
    assert called(("sharesOf", [[0.25, 0.75, 0.0]]))[0] == {
        "shares": [0.25, 0.75, 0.0],
        "own": True,
    }
    assert called(("largest", [[1, 5, 5, 2], 3]))[0] == [1, 2, 3]


def test_pixels_become_numbers() -> None:
    """In the order of colours and of axes that a network has."""
    pixels = np.random.default_rng(4).integers(0, 256, (2, 4, 4), np.uint8)
    options = {"divide": "255", "mean": "0.4, 0.5, 0.6", "std": "0.2,0.3,0.1"}
    calls: list[tuple[str, list[Any]]] = []
    expected = []
    for shape, order in itertools.product([(1, 3, 2, 4), (1, 2, 4, 3)], ["rgb", "bgr"]):
        scaled = pixels[..., :3].astype(np.float64)[..., :: 1 if order == "rgb" else -1] / 255
        want = ((scaled - [0.4, 0.5, 0.6]) / [0.2, 0.3, 0.1]).astype(np.float32)
        want = want[None] if shape[3] == 3 else want.transpose(2, 0, 1)[None]
        x = {"name": "x", "dtype": "float32", "shape": shape}
        calls.append(
            ("pictureBytes", [pixels.reshape(-1).tolist(), x, {**options, "order": order}])
        )
        expected.append(held(np.ascontiguousarray(want).tobytes()))
    assert called(*calls) == expected


def test_gray_and_whole_numbers() -> None:
    pixels = np.array([[10, 20, 30, 255], [7, 7, 7, 255], [0, 0, 0, 255], [255, 255, 255, 255]])
    x = {"name": "x", "dtype": "uint8", "shape": [1, 1, 2, 2]}
    plain = {"divide": "1", "mean": "0", "std": "1", "order": "rgb"}
    gray = round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)
    assert called(
        ("pictureBytes", [pixels.reshape(-1).tolist(), x, plain]),
        ("pictureBytes", [pixels.reshape(-1).tolist(), x, {**plain, "invert": True}]),
        ("pictureBytes", [pixels.reshape(-1).tolist(), x, {**plain, "mean": "100"}]),
    ) == [
        held(bytes([gray, 7, 0, 255])),
        held(bytes([255 - gray, 248, 255, 0])),
        held(bytes([0, 0, 0, 155])),
    ]


def test_rules_that_are_none() -> None:
    plain = {"divide": "1", "mean": "0", "std": "1", "order": "rgb"}
    x = {"name": "x", "dtype": "float32", "shape": [1, 3, 2, 2]}
    cases = {
        ("mean", "1,2"): "mean must be one number, or 3 with commas between them",
        ("std", "x"): "std must be one number, or 3 with commas between them",
        ("std", "1,0,1"): "divide and std must not be 0",
        ("divide", ""): "divide must be one number",
    }
    found = called(*(("pictureBytes", [[0] * 16, x, {**plain, k: v}]) for k, v in cases))
    assert [f["error"] for f in found] == list(cases.values())


def test_which_inputs_take_pictures() -> None:
    shapes = {
        (1, 3, 224, 224): (3, 224, 224), (1, 1, 28, 28): (1, 28, 28), (1, 32, 24, 3): (3, 32, 24),
        (1, 28, 28, 1): (1, 28, 28), (2, 3, 8, 8): None, (1, 4, 8, 8): None, (1, 3, 224): None,
        (1, 1, 1, 64): None, (1, 128): None,
    }  # fmt: skip
    found = called(*(("pictureLayout", [{"shape": list(s)}]) for s in shapes))
    assert [f and (f["channels"], f["height"], f["width"]) for f in found] == list(shapes.values())
