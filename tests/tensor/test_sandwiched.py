"""Masked attention without products of subnormal numbers, in the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.lowering import legalize
from compiler.runtime.executable import Executable
from compiler.scheduling.sandwiched import LARGE, LEAST_NORMAL, SLACK, TINY
from compiler.types.dtypes import Array

HEADS, ROWS, COLUMNS = 3, 40, 32


def attention(mask: float, columns: int = COLUMNS, rows: int = ROWS) -> IRModule:
    """softmax(q k + mask) v, where elements of two kinds mask each other."""
    b = FunctionBuilder()
    q = b.param("q", (1, HEADS, rows, 16))
    k, v = b.param("k", (1, HEADS, 16, rows)), b.param("v", (1, HEADS, rows, columns))
    kind = np.arange(rows) % 7 > 3
    masks = np.where(kind[:, None] != kind[None], mask, 0.25).astype(np.float32)
    masks = np.stack([masks, np.full_like(masks, 0.5), masks.T])[None]
    x = b.call("add", b.call("nn.matmul", q, k), b.const(masks))
    return IRModule({"main": b.finish(b.call("nn.matmul", b.call("nn.softmax", x), v))})


def builds(
    monkeypatch: pytest.MonkeyPatch, mod: IRModule, target: str = "llvm"
) -> tuple[Executable, Executable]:
    """With what spares subnormal numbers, and without."""
    quick = compiler.build(mod, target)
    monkeypatch.setattr(legalize, "_far_below", lambda f: False)
    return quick, compiler.build(mod, target)


def loops(exe: Executable) -> str:
    return "\n".join(str(k.func) for k in exe.kernels)


def inputs(kind: str, rng: np.random.Generator, columns: int = COLUMNS) -> list[Array]:
    shapes = (1, HEADS, ROWS, 16), (1, HEADS, 16, ROWS), (1, HEADS, ROWS, columns)
    q, k, v = (rng.normal(size=n).astype(np.float32) for n in shapes)
    if kind == "equal scores":
        q[:] = 0
    if kind == "halfway":  # sums often lie between two numbers
        q[:] = 0
        v = rng.choice(np.float32([1, -1, 2**-24, 2**-23, 3 * 2**-24, 2**-30]), v.shape)
    if kind == "zeros":
        v[..., ::3] = 0
    if kind == "cancelling":
        q[:] = 0
        v[..., 1::2, :] = -v[..., : v.shape[-2] // 2 * 2 : 2, :]
    if kind == "small":
        v *= np.float32(2.0**-125)
    if kind == "large":
        v[..., 5, :3] = np.float32(2.0**100)
    if kind == "infinite":
        v[..., 5, 0], v[..., 6, 1], v[..., 7, 2] = np.inf, -np.inf, np.nan
    if kind == "no numbers":
        q[..., 3, 0] = np.nan
    if kind == "far":
        q *= np.float32(8)
    return [q, k, v]


KINDS = [
    "normal", "equal scores", "halfway", "zeros", "cancelling", "small", "large", "infinite",
    "no numbers", "far",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("mask", [-87.5, -95.0, -100.0, -104.0])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64"])
def test_bits(monkeypatch: pytest.MonkeyPatch, mask: float, target: str) -> None:
    quick, plain = builds(monkeypatch, attention(mask), target)
    rng = np.random.default_rng(0)
    for kind in KINDS:
        for _ in range(4):
            given = inputs(kind, rng)
            assert quick(*given).tobytes() == plain(*given).tobytes(), kind


@pytest.mark.sampled(2)
@pytest.mark.parametrize("columns", [COLUMNS, 13])
def test_masked_attention(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    quick, plain = builds(monkeypatch, attention(-100.0, columns))
    assert ("when" in loops(quick), "when" in loops(plain)) == (True, False)
    given = inputs("halfway", np.random.default_rng(1), columns)
    assert quick(*given).tobytes() == plain(*given).tobytes()


@pytest.mark.thorough
@pytest.mark.parametrize("mask", [-10.0, -1e4])
def test_other_masks_stay(mask: float) -> None:
    """Their exp is a normal number, or 0."""
    assert "when" not in loops(compiler.build(attention(mask)))


def test_slack_covers_what_it_stands_for() -> None:
    assert LEAST_NORMAL < TINY
    assert TINY * LARGE <= SLACK
    assert np.float32(LEAST_NORMAL) == np.finfo(np.float32).tiny


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["normal", "halfway"])
def test_it_is_sure_of_almost_all(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A build whose plain way gives NaN gives NaN only where no mask is subnormal."""
    from compiler.scheduling import row_tiles
    from compiler.scheduling.sandwiched import put
    from compiler.tensor.expr import const
    from compiler.tensor.stmt import PrimFunc, When, stores

    def spoiled(f: PrimFunc, quick: object) -> None:
        put(f, quick)  # type: ignore[arg-type]
        last = f.body[-1]
        assert isinstance(last, When)
        for s in stores(last.body):
            if s.buffer is f.params[-1]:
                s.value = const(float("nan"))

    monkeypatch.setattr(row_tiles, "put", spoiled)
    monkeypatch.setenv("DTYPELAB_CACHE_DIR", "0")
    got = compiler.build(attention(-100.0, COLUMNS + 1))(
        *inputs(kind, np.random.default_rng(2), COLUMNS + 1)
    )
    assert np.isnan(got[:, 1]).all()
    assert not np.isnan(got[:, ::2]).any()
