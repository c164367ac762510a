"""Products of two computed operands that do not stay in the cache: blocks of columns go around the
rows, and long sums are formed by parts, with the bits of sums that are formed at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_support import compiled

import compiler
from compiler.scheduling.apply import apply_tile
from compiler.scheduling.default import rule_tile, schedule_default, untiled
from compiler.scheduling.parallelize import share_out
from compiler.target.cpus import Caches
from compiler.target.registry import Target
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import const
from compiler.tensor.stmt import For, PrimFunc, stores, walk_stmts
from compiler.types.dtypes import FLOAT32, Array

CPU = Target.anywhere("llvm -mcpu=x86-64-v2")
"""Without fused multiply-adds: what is interpreted as written has the bits of what is compiled."""


def product(rows: tuple[int, ...], n: int, k: int, batch: int = 0) -> PrimFunc:
    """x [..., K] times w [K, N], or, for each of a batch, [batch, K, N], and one more."""
    b = PrimBuilder("product")
    each = (batch,) if batch else ()
    x = b.input("x", (*each, *rows, k), FLOAT32)
    w = b.input("w", (*each, k, n), FLOAT32)
    acc = b.reduce(
        "mac", (*each, *rows, n), FLOAT32, {"k": k},
        lambda *v: x[(*v[:-2], v[-1])] * w[(*v[: len(each)], v[-1], v[-2])],
        const(0, FLOAT32),
    )  # fmt: skip
    return b.finish([b.compute("y", acc.shape, FLOAT32, lambda *i: acc[i] + const(1, FLOAT32))])


def scheduled(f: PrimFunc, caches: Caches) -> PrimFunc:
    s = untiled(f, CPU)
    (stage,) = (x.stage for x in stores(f.body) if x.update)
    tile = rule_tile(s, stage, CPU, [])
    assert tile is not None
    assert tile.copy is not None
    apply_tile(s, stage, tile, CPU.fma, caches)
    share_out(s, [])
    return f


def loops(f: PrimFunc, stage: str) -> list[list[str]]:
    """The loops around every statement of a stage."""
    return [
        [x.var.name for x in path]
        for s, path, _ in walk_stmts(f.body)
        if getattr(s, "stage", getattr(getattr(s, "store", None), "stage", "")) == stage
    ]


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=2),
    st.integers(4, 70),
    st.sampled_from([64, 96, 128, 130, 131, 192, 320]),
    st.integers(0, 2),
    st.integers(5, 13),
)
def test_the_bits_of_sums_formed_at_once(
    rows: list[int], n: int, k: int, batch: int, cache: int
) -> None:
    if np.prod(rows) < 8:
        rows = [*rows, 8][-2:]
    rng = np.random.default_rng(n)
    f = product(tuple(rows), n, k, batch)
    shapes = [[int(e.const) for e in b.shape] for b in f.params]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    fast = scheduled(f, Caches(64, 1 << cache))
    assert compiled(fast, arrays, target=str(CPU)).tobytes() == step_by_step(*arrays[:2]).tobytes()


def step_by_step(x: Array, w: Array) -> Array:
    """One product after another is added."""
    acc = np.zeros((*x.shape[:-1], w.shape[-1]), np.float32)
    around = acc.ndim - w.ndim
    for k in range(x.shape[-1]):
        columns = w[..., k, :].reshape(*w.shape[:-2], *[1] * (around + 1), w.shape[-1])
        acc += x[..., k, None] * columns
    return acc + np.float32(1)


@pytest.mark.parametrize("rows", [(100,), (4, 25)])
@pytest.mark.parametrize("n", [16, 200])
def test_parts_go_around_the_rows(rows: tuple[int, ...], n: int) -> None:
    f = scheduled(product(rows, n, 1024), Caches(64, 1 << 12))
    (steps,) = {
        int(s.extent.const) for s, _, _ in walk_stmts(f.body)
        if isinstance(s, For) and s.var.name.endswith(".parts")
    }  # fmt: skip
    assert steps == 16  # 64 steps of 16 columns fill the cache
    for around in loops(f, "mac_s.part"):
        (parts,) = (k for k, name in enumerate(around) if name.endswith(".parts"))
        assert parts == 1  # in the loop that threads share
        assert any("i0" in name or "i1" in name for name in around[parts:])


def test_what_the_cache_holds_is_summed_at_once() -> None:
    for caches in (Caches(64, 1 << 14), Caches(1 << 15, 1 << 18)):
        assert not any(
            "parts" in name
            for around in loops(scheduled(product((100,), 64, 1024), caches), "mac_s")
            for name in around
        )


def test_columns_go_around_the_rows_within_a_matrix() -> None:
    f = scheduled(product((100,), 64, 256, batch=3), Caches(64, 1 << 14))
    (first, second, third, *_) = loops(f, "y_s")[0]
    assert ("i0" in first, "i2" in second, "i1" in third) == (True, True, True)


def test_gradients_of_weights_over_many_pixels() -> None:
    """576 x 64 sums of 5,120 terms each: by parts on this machine, too."""
    x, dy = compiler.var("x", (576, 5120)), compiler.var("dy", (64, 5120))
    mod = compiler.IRModule({"main": compiler.function([x, dy], compiler.call("nn.dense", x, dy))})
    rng = np.random.default_rng(0)
    given_ = [rng.standard_normal(s).astype(np.float32) for s in ((576, 5120), (64, 5120))]
    want = given_[0].astype(np.float64) @ given_[1].T
    one, two = (compiler.build(mod, threads=n)(*given_) for n in (1, 2))
    assert one.tobytes() == two.tobytes()
    np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-3)


def test_a_rest_of_rows_and_columns() -> None:
    f = product((37,), 67, 4 * 1024)
    schedule_default(f, Target.parse("llvm -mcpu=x86-64-v2"))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((37, 4096), (4096, 67), (37, 67))]
    want = step_by_step(*arrays[:2])
    assert compiled(f, arrays, target=str(CPU)).tobytes() == want.tobytes()


def test_a_matrix_is_copied_by_rows() -> None:
    """Loops of the copy: some rows, the blocks of columns, a row of these, and a block's columns;
    rows that are no multiple of that go one after another within a block."""
    f = scheduled(product((100,), 200, 256), Caches(1 << 15, 1 << 18))
    (copy,) = (x.stage for x in stores(f.body) if x.stage.endswith("w"))
    (around,) = loops(f, copy)
    assert [name.rsplit(".", 1)[-1].rstrip("o") for name in around] == [
        "k",
        "block",
        "near",
        "lane",
    ]
    odd = scheduled(product((100,), 200, 250), Caches(1 << 15, 1 << 18))
    (around,) = loops(odd, copy)
    assert [name.rsplit(".", 1)[-1].rstrip("o") for name in around] == ["block", "k", "lane"]
