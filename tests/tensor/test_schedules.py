"""A schedule changes nothing: interpreted as written == interpreted as scheduled == compiled, bit
for bit."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_support import compiled, interpret, three_ways

from compiler.arithmetic.scalar_functions import UNARY
from compiler.errors import LoweringError, ScheduleError, UnsupportedError
from compiler.op.window import Axis, Reading, Window
from compiler.scheduling import Schedule
from compiler.scheduling.default import schedule_default
from compiler.scheduling.tile import best_width
from compiler.symbolic import Index, Var
from compiler.target.intrinsics import named_intrinsics
from compiler.target.intrinsics.generic import DOT4
from compiler.target.intrinsics.x86 import INTRINSICS as X86
from compiler.target.registry import Target
from compiler.tensor.builder import PrimBuilder
from compiler.tensor.expr import call, const, maximum
from compiler.tensor.intrinsic import dot_product
from compiler.tensor.stmt import PrimFunc
from compiler.types.dtypes import DType

F32, I32 = DType.parse("float32"), DType.parse("int32")


def gemm(m: int | Var, n: int, k: int, dtype: DType = F32) -> PrimFunc:
    b = PrimBuilder("gemm")
    x, w = b.input("x", (m, k), dtype), b.input("w", (k, n), dtype)
    acc = b.reduce(
        "mac", (m, n), dtype, {"k": k}, lambda i, j, r: x[i, r] * w[r, j], const(0, dtype)
    )
    out = b.compute("y", (m, n), dtype, lambda i, j: maximum(acc[i, j], const(0, dtype)))
    f = b.finish([out])
    for s in f.body:
        _rename(s, "mac_s", "mac")
    return f


def _rename(s: object, old: str, new: str) -> None:
    for inner in getattr(s, "body", []):
        _rename(inner, old, new)
    if getattr(s, "stage", "") == old:
        s.stage = new


def conv(c: int, o: int, h: int, w: int, k: int, stride: int, data: str, cb: int) -> PrimFunc:
    """uint8/int8 convolution on blocked activations, requantized: the form dp4a kernels are made
    from."""
    b = PrimBuilder("conv")
    hp, wp = (h - 1) * stride + k, (w - 1) * stride + k
    x = b.input("x", (c // cb, hp, wp, cb), DType.parse(data))
    wt = b.input("w", (o, c, k, k), DType.parse("int8"))
    acc = b.buffer("acc", (o, h, w), I32)
    b.stage(
        acc,
        {"oc": o, "y": h, "x": w},
        lambda oc, y, xx, ic, kh, kw: (
            (oc, y, xx),
            x[ic // cb, y * stride + kh, xx * stride + kw, ic % cb].astype("int32")
            * wt[oc, ic, kh, kw].astype("int32"),
        ),
        reduce={"ic": c, "kh": k, "kw": k},
        update="Add",
        init=lambda *_: const(7, I32),
        name="mac",
    )
    out = b.compute("y", (o, h, w), I32, lambda *i: acc[i] * const(3, I32))
    return b.finish([out])


@pytest.mark.thorough
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 40), st.integers(1, 9), st.integers(1, 8), st.integers(1, 5),
    st.sampled_from([F32, I32]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_tiled_gemm(m: int, n: int, k: int, lanes: int, width: int, d: DType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(-9, 9, s).astype(d.storage) / d.storage.type(1) for s in ((m, k), (k, n))
    ]
    arrays = [a.astype(d.storage) for a in arrays]
    f = gemm(m, n, k, d)
    s = Schedule(f)
    s.split("y_s.i1", lanes * 2)
    s.split("y_s.i0", width)
    s.reorder("y_s.i0o", "y_s.i1o", "y_s.i0i", "y_s.i1i")
    s.compute_at("mac", "y_s.i1o")
    s.split("y_s.i1i", lanes, ("b", "v"))
    s.split("mac_s.i1", lanes, ("mb", "mv"))
    s.reorder("mac_s.k", "mac_s.i0", "mb", "mv")
    s.decompose_reduction("mac", "mac_s.k")
    s.pack("mac", f.params[1])
    s.vectorize("v", "mv", "mv.init")
    s.unroll("mac_s.i0", "mb", "mac_s.i0.init", "mb.init", "b", "y_s.i0i")
    s.peel("y_s.i0o")
    s.peel("y_s.i1o")
    a, b, c = three_ways(gemm(m, n, k, d), f, [*arrays, np.zeros((m, n), d.storage)])
    assert a.tobytes() == b.tobytes() == c.tobytes()
    # The integers are small, so that float sums are exact in any order.
    np.testing.assert_array_equal(a, np.maximum(arrays[0] @ arrays[1], 0))


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 33), st.integers(1, 9), st.integers(1, 9),
    st.sampled_from(["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"]),
)  # fmt: skip
def test_default_schedule_of_a_gemm(n: int, m: int, k: int, target: str) -> None:
    try:
        chosen = Target.parse(target)
    except UnsupportedError as e:
        pytest.skip(str(e))
    rng = np.random.default_rng(n * 100 + m * 10 + k)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n))]
    f = gemm(m, n, k)
    schedule_default(f, chosen, {f.params[1]})
    given_ = [*arrays, np.zeros((m, n), np.float32)]
    assert interpret(f, given_).tobytes() == compiled(f, given_, target=target).tobytes()
    np.testing.assert_allclose(
        interpret(gemm(m, n, k), given_), interpret(f, given_), rtol=1e-5, atol=1e-5
    )


def test_symbolic_extent_runs_any_size() -> None:
    n = Var("n")
    f = gemm(n, 10, 6)
    schedule_default(f, Target.parse("llvm"), {f.params[1]})
    w = np.arange(60, dtype=np.float32).reshape(6, 10)
    for m in (1, 5, 16):
        x = np.ones((m, 6), np.float32)
        y = compiled(f, [x, w, np.zeros((m, 10), np.float32)], {n: m})
        np.testing.assert_array_equal(y, x @ w)


@pytest.mark.sampled(20)
@pytest.mark.parametrize(
    "intrinsic", [*(i for i in X86 if i.steps == 4), DOT4], ids=lambda i: i.name
)
@pytest.mark.parametrize("shape", [(8, 20, 3, 5, 3, 1), (16, 33, 2, 4, 1, 2), (4, 16, 5, 3, 2, 1)])
def test_tensorized_convolution(intrinsic: object, shape: tuple[int, ...]) -> None:
    host = Target.parse("llvm")
    needs = intrinsic.features
    if not set(needs) <= host.enabled:
        pytest.skip(f"this CPU lacks {needs}")
    c, o, h, w, k, stride = shape
    v = intrinsic.loops["o"]
    f = conv(c, o, h, w, k, stride, "uint8", 4)
    s = Schedule(f)
    s.split("y_s.i0", v, ("oc", "ocv"))
    s.reorder("oc", "y_s.i1", "y_s.i2", "ocv")
    s.compute_at("mac", "y_s.i2")
    s.split("mac.ic", 4, ("ic", "i"))
    s.split("mac.oc", v, ("mb", "mo"))
    s.reorder("ic", "mac.kh", "mac.kw", "mac.y", "mac.x", "mb", "mo", "i")
    s.decompose_reduction("mac", "ic")
    s.pack("mac", f.params[1])
    # Channels are padded to whole vectors, so the tile's loop is full in every copy.
    s.peel("oc")
    s.vectorize("ocv", "mo.init")
    s.unroll("mb", "mb.init", "mac.y", "mac.x", "mac.y.init", "mac.x.init")
    if o % v:
        with pytest.raises(ScheduleError, match="extent"):
            s.tensorize("mac", intrinsic)
        return
    s.tensorize("mac", intrinsic)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, [int(n.const) for n in f.params[0].shape]).astype(np.uint8)
    wt = rng.integers(-128, 128, (o, c, k, k)).astype(np.int8)
    arrays = [x, wt, np.zeros((o, h, w), np.int32)]
    a, b, d = three_ways(conv(c, o, h, w, k, stride, "uint8", 4), f, arrays)
    assert a.tobytes() == b.tobytes() == d.tobytes()
    # Changing the semantics changes the result: the kernel is what is printed.
    assert intrinsic.name in str(f)


def test_a_mismatching_intrinsic_says_why() -> None:
    f = conv(8, 16, 2, 2, 1, 1, "int8", 4)
    s = Schedule(f)
    s.split("mac.ic", 4, ("ic", "i"))
    s.split("mac.oc", 8, ("mb", "mo"))
    s.reorder("mb", "mac.y", "mac.x", "ic", "mac.kh", "mac.kw", "mo", "i")
    with pytest.raises(ScheduleError, match="not decomposed"):
        s.tensorize("mac", named_intrinsics()["pmaddwd.256"])


def test_illegal_schedules_are_refused() -> None:
    f = gemm(4, 6, 3)
    s = Schedule(f)
    with pytest.raises(ScheduleError, match="did you mean"):
        s.split("mac_s.i9", 2)
    s.split("mac_s.i1", 4, ("o", "i"))
    with pytest.raises(ScheduleError, match="depends on a loop inside"):
        s.reorder("i", "o")
    with pytest.raises(ScheduleError, match="reduction"):
        Schedule(gemm(4, 6, 3)).compute_inline("mac")
    s.unroll("i")
    with pytest.raises(LoweringError, match=r"not decomposed|not constant"):
        compiled(f, [np.ones((4, 3), np.float32), np.ones((3, 6), np.float32),
                     np.zeros((4, 6), np.float32)])  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fn", [f.name for f in UNARY.values() if f.single is not None])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"])
def test_functions_give_the_same_bits_everywhere(fn: str, target: str) -> None:
    try:
        Target.parse(target)
    except UnsupportedError as e:
        pytest.skip(str(e))
    b = PrimBuilder("f")
    x = b.input("x", (37,), F32)
    f = b.finish([b.compute("y", (37,), F32, lambda i: call(fn, x[i]))])
    g = b.finish(b.temps[-1:])
    Schedule(f).vectorize("y_s.i0")
    xs = np.concatenate([
        np.float32([0, -0.0, 1, -1, 0.3, 88, -88, 104, -104, 1e-40, np.inf, -np.inf, np.nan]),
        np.random.default_rng(0).normal(size=24).astype(np.float32) * 5,
    ]).astype(np.float32)  # fmt: skip
    one, two = (
        interpret(g, [xs, np.zeros_like(xs)]),
        compiled(f, [xs, np.zeros_like(xs)], None, target),
    )
    assert np.where(np.isnan(one), 0, one).tobytes() == np.where(np.isnan(two), 0, two).tobytes()
    assert (np.isnan(one) == np.isnan(two)).all()
    from compiler.arithmetic.arrays import arithmetic

    with np.errstate(all="ignore"):
        want = arithmetic(DType.parse("float64")).call(fn, xs.astype(np.float64))
        ok = np.isclose(one, want.astype(np.float32), rtol=4e-7, atol=2e-7, equal_nan=True)
    assert ok.all(), xs[~ok]


def test_tiles_are_equal_or_few() -> None:
    """Never more than twice the fewest tiles; equal ones wherever those are wide enough, which ten
    outputs are, and four fifths of what fits; a short last one else."""
    wanted = {(28, 14): 14, (7, 14): 7, (26, 14): 13, (7, 6): 4, (17, 14): 9, (20, 14): 10}
    wanted |= {(512, 14): 14, (128, 14): 13, (64, 12): 11, (64, 28): 16, (60, 28): 20}
    wanted |= {(28, 6): 6, (50, 6): 5, (128, 6): 6}
    assert {case: best_width(*case) for case in wanted} == wanted
    for extent, most in itertools.product(range(1, 200), range(1, 31)):
        width = best_width(extent, most)
        fewest = -(-extent // most)
        assert 1 <= width <= most
        assert -(-extent // width) <= 2 * fewest
        wide = [w for w in range(most // 2 + 1, most + 1) if w >= 10 or 5 * w >= 4 * most]
        assert extent % width == 0 or not any(extent % w == 0 for w in wide)


def test_intrinsics_are_chosen_by_the_targets_features(monkeypatch: pytest.MonkeyPatch) -> None:
    from compiler.target import intrinsics

    monkeypatch.setattr(intrinsics, "_registered", [])
    try:
        old = Target.parse("llvm -mcpu=x86-64-v2")
    except UnsupportedError as e:
        pytest.skip(str(e))
    names = [i.name for i in intrinsics.for_target(old)]
    assert names == ["pmaddwd.128", "pairs.128", "pairs.bytes.128", "dot4.generic"]
    mine = dot_product("mine", 4, DOT4.emit)
    intrinsics.register_intrinsic(mine)
    assert intrinsics.for_target(old)[0] is mine


def window_sum(n: int) -> PrimFunc:
    """y[i] = sum of x[i - 1 .. i + 1], where what lies outside is skipped by a guard."""
    b = PrimBuilder("window")
    x, out = b.input("x", (n,), I32), b.buffer("y", (1, n), I32)
    axis = Axis(Window(3, 1, 1, 1, 1), Index.of(n), Reading.GUARDED)
    b.stage(
        out,
        {"one": 1, "i": n},
        lambda one, i, k, _: ((one, i), x[axis.at(i, k)]),
        {"k": 3, "in": lambda _, i, k: axis.inside(i, k)},
        "Add",
        lambda *_: const(0, I32),
        name="sum",
    )
    return b.finish([out])


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_isolate_leaves_no_guard_between_the_ends(width: int) -> None:
    n = 3 * width + 2
    f = window_sum(n)
    s = Schedule(f)
    s.decompose_reduction("sum", "sum.k")
    s.split("sum.i", width)
    s.peel("sum.io")
    s.isolate("sum.io")
    given_ = [np.arange(1, n + 1, dtype=np.int32), np.zeros((1, n), np.int32)]
    a, b, c = three_ways(window_sum(n), f, given_)
    assert a.tobytes() == b.tobytes() == c.tobytes()
    np.testing.assert_array_equal(a[0], np.convolve(given_[0], [1, 1, 1], "same"))
    assert str(f).count("for sum.in in 1:") == 1, str(f)
