"""NaN, infinities, zeros of both signs and denormals, in operators that compare, order or bound:
compiled code gives the interpreter's bits, in every dtype and lowering."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
from compiler.errors import DtypelabError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.types.dtypes import Array, DType
from datatypes.formats import decode, encode, get

NATIVE = ["float16", "float32", "float64"]
FORMATS = [n for n in datatypes.list_formats() if not get(n).storage_only]
SOME = ["bfloat16", "float8_e4m3fn", "posit8_es0"]
TARGETS = ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"]
SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 6e-8, -6e-8, 1.0, -1.0, 2.0, -3.0, 0.5, 6.0,
    300.0, -500.0, 1e38, 5e-324, -5e-324, 1e300,
]  # fmt: skip
ROWS, COLUMNS = 14, 9
ONE: list[tuple[str, dict[str, Any]]] = [
    *((op, {"axis": 1, "last": last}) for op in ("argmax", "argmin") for last in (False, True)),
    *(("topk", {"k": k, "axis": 1, "largest": large}) for k in (3, 9) for large in (False, True)),
    *((op, {"axis": axis}) for op in ("max", "min") for axis in ((0,), (1,))),
    ("clip", {"a_min": -1.0, "a_max": 1.0}),
    ("clip", {"a_min": 0.0, "a_max": 6.0}),
    ("clip", {"a_min": -0.0, "a_max": 0.0}),
    *((op, {}) for op in ("nn.relu", "abs", "negative", "sign", "nn.leaky_relu", "nn.softmax")),
    *((op, {}) for op in ("nn.hard_sigmoid", "nn.hard_swish", "floor", "round", "sqrt")),
]
TWO = ["maximum", "minimum", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]
CALLS = [
    *ONE,
    *((op, {}) for op in TWO),
    ("nn.max_pool2d", {"pool_size": (2, 2), "padding": (0, 1, 1, 0)}),
    *(("scatter_elements", {"reduction": how, "axis": 1}) for how in ("max", "min", "add")),
]


def dtype_of(kind: str) -> DType:
    return DType.parse(kind if kind in NATIVE else f"custom[{kind}]{get(kind).nbits}")


def operand(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """Rows of nothing but NaN, -inf, inf and -0 among rows of all of these."""
    values = rng.choice(np.array(SPECIAL), shape)
    for k, value in enumerate((np.nan, -np.inf, np.inf, -0.0)):
        values[k] = value
    with np.errstate(all="ignore"):
        return values.astype(kind) if kind in NATIVE else encode(get(kind), values)


def module(kind: str, op: str, attrs: dict[str, Any]) -> tuple[IRModule, list[Array]]:
    """The operator alone, and operands."""
    rng, b, dtype = np.random.default_rng(len(op)), FunctionBuilder(), dtype_of(kind)
    shape = (5, 2, 5, 7) if "pool" in op else (ROWS, COLUMNS)
    data = [operand(rng, kind, shape)]
    if op in TWO:
        data.append(operand(rng, kind, shape))
    if op == "scatter_elements":
        data += [rng.integers(0, COLUMNS, (ROWS, 4)), operand(rng, kind, (ROWS, 4))]
    types = [dtype if a.dtype == dtype.storage else DType.parse(a.dtype) for a in data]
    params = [
        b.param(f"x{k}", a.shape, t) for k, (a, t) in enumerate(zip(data, types, strict=True))
    ]
    y = b.call(op, *params, **attrs)
    fields = len(getattr(y.type, "fields", ()))
    results = [b.get(y, k) for k in range(fields)] or [y]
    return IRModule({"main": b.finish(*results)}), data


def bits(kind: str, a: Array) -> Array:
    """What must be equal: the bits, but for those of a NaN."""
    if kind not in NATIVE and a.dtype == get(kind).storage and a.dtype.kind == "u":
        known = np.where(a <= get(kind).mask, a, 0).astype(a.dtype)
        return np.where(np.isnan(decode(get(kind), known)), -1, a.astype(np.int64))
    if a.dtype.kind != "f":
        return a
    return np.where(np.isnan(a), -1, a.view(f"int{8 * a.dtype.itemsize}").astype(np.int64))


def check(kind: str, op: str, attrs: dict[str, Any], target: str, lowering: str | None) -> None:
    mod, data = module(kind, op, attrs)
    want = compiler.evaluate(mod, *data)
    got = compiler.build(mod, target=target, dtype_lowering=lowering)(*data)
    for g, w in zip(*(x if isinstance(x, list) else [x] for x in (got, want)), strict=True):
        np.testing.assert_array_equal(bits(kind, g), bits(kind, w))


def label(x: Any) -> str:
    return x if isinstance(x, str) else "-".join(map(str, x.values())) if x else "plain"


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("op", "attrs"), CALLS, ids=label)
@pytest.mark.parametrize("kind", [*NATIVE, *SOME])
def test_special_values(kind: str, op: str, attrs: dict[str, Any]) -> None:
    check(kind, op, attrs, "llvm", None)


def test_the_place_of_a_nan_is_found() -> None:
    """Not only agreed on: NaN is the extreme, and larger than any number, as in numpy."""
    for kind in (*NATIVE, *SOME):
        x = np.array([[1, np.nan, 3, np.nan], [4, 2, np.inf, -1]])
        data = x.astype(kind) if kind in NATIVE else encode(get(kind), x)
        saturated = kind in ("posit8_es0", "float8_e4m3fn")  # where infinity is NaN
        for op, last, want in (("argmax", False, [1, 2]), ("argmin", True, [3, 3])):
            b = FunctionBuilder()
            y = b.call(op, b.param("x", x.shape, dtype_of(kind)), axis=1, last=last, keepdims=False)
            got = compiler.build(IRModule({"main": b.finish(y)}))(data)
            if saturated and op == "argmin":
                want = [3, 2]
            np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("lowering", ["library", "table", "vector"])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_and_lowering(kind: str, lowering: str, target: str) -> None:
    if lowering == "table" and get(kind).nbits > 8:
        pytest.skip("tables are for up to 8 bits")
    for op, attrs in CALLS:
        try:
            module(kind, op, attrs)
        except DtypelabError:
            continue  # an operator that number formats do not have
        check(kind, op, attrs, target, lowering)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize(("op", "attrs"), CALLS, ids=label)
@pytest.mark.parametrize("kind", NATIVE)
def test_every_target(kind: str, op: str, attrs: dict[str, Any], target: str) -> None:
    check(kind, op, attrs, target, None)
