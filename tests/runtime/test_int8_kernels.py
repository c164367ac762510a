"""Integer convolutions give the same bits on every instruction set, and equal the interpreter."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compiler
from compiler.build import optimize
from compiler.errors import InputError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.passes.manager import PassContext
from compiler.symbolic import Var as Dim

TARGETS = ["llvm", "llvm -mcpu=skylake-avx512", "llvm -mcpu=haswell", "llvm -mcpu=x86-64-v2"]
DOTS = ("vpdpbusd", "tdpb", "pmaddwd")


def available() -> list[str]:
    out = []
    for t in TARGETS:
        try:
            compiler.Target.parse(t)
            out.append(t)
        except UnsupportedError:
            continue
    return out


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[IRModule, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    depthwise = draw(st.booleans())
    channels = draw(st.sampled_from([1, 3, 4, 7, 8, 16, 17, 24, 32, 40]))
    outputs = channels if depthwise else draw(st.sampled_from([1, 5, 8, 16, 19, 33, 48]))
    groups = channels if depthwise else 1
    if not depthwise and draw(st.integers(0, 2)) == 0:
        groups = draw(st.sampled_from([2, 3, 4]))
        channels, outputs = (groups * draw(st.sampled_from([2, 4, 5, 16, 20])) for _ in range(2))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(2 if depthwise else 1, 5)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding = draw(st.tuples(*[st.integers(0, 3)] * 4))
    size = [
        (k - 1) * d + 1 + draw(st.integers(0, 9)) for k, d in zip(kernel, dilation, strict=True)
    ]
    zero = draw(st.just(-128) | st.integers(-128, 127))  # -128: padding holds zeros, once unsigned
    out_zero = draw(st.integers(0, 255))
    b = FunctionBuilder()
    batch = draw(st.sampled_from([1, 2]))
    dtype = draw(st.sampled_from(["uint8", "int8"]))
    x = b.param("x", (Dim("n") if draw(st.booleans()) else batch, channels, *size), dtype)
    weight = b.const(
        rng.integers(-128, 128, (outputs, channels // groups, *kernel)).astype(np.int8)
    )
    bias = b.const(rng.integers(-9999, 9999, outputs).astype(np.int32))
    y = b.call(
        "nn.conv2d", x, weight, bias, strides=strides, padding=padding, dilation=dilation,
        groups=groups, out_dtype="int32", input_zero_point=zero + 128 * (dtype == "uint8"),
    )  # fmt: skip
    scale = b.const(rng.uniform(1e-4, 3e-3, outputs).astype(np.float32))
    y = b.call("qnn.requantize", y, scale, output_zero_point=out_zero, out_dtype="uint8")
    data = rng.integers(0, 256, (batch, channels, *size)).astype(np.uint8).view(dtype)
    return IRModule({"main": b.finish(y)}), data


tensorized: list[bool] = []


@pytest.mark.parametrize(
    "count",
    [6, pytest.param(30, marks=pytest.mark.thorough), pytest.param(300, marks=pytest.mark.slow)],
)
def test_the_same_bits_on_every_instruction_set(count: int) -> None:
    tensorized.clear()  # also after shrinking

    @settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(convolutions())
    def check(case: tuple[IRModule, np.ndarray]) -> None:
        mod, data = case
        want = compiler.evaluate(mod, data)
        for target in available():
            exe = compiler.build(mod, target=target)
            assert exe(data).tobytes() == want.tobytes(), target
        with PassContext(config={"AlterOpLayout.block": 4}):
            assert compiler.build(mod)(data).tobytes() == want.tobytes(), "NCHW4c"
        tensorized.append(any(d in exe.as_text() for d in DOTS))

    check()
    assert np.mean(tensorized) >= 0.8


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(("groups", "width"), [(3, 20), (2, 16), (4, 6)])
def test_grouped_convolutions_and_channel_shuffles_stay_in_blocks(
    dtype: str, groups: int, width: int
) -> None:
    rng = np.random.default_rng(groups)
    channels = groups * width
    b = FunctionBuilder()
    x = first = b.param("x", (1, channels, 5, 6), dtype)

    def conv(x: Var, kernel: int, count: int) -> Var:
        shape = (channels, channels // count, kernel, kernel)
        w = rng.integers(-99, 99, shape)
        pad = (kernel // 2,) * 4
        if dtype == "float32":
            weight = b.const((w / 99).astype(np.float32))
            return b.call("nn.relu", b.call("nn.conv2d", x, weight, padding=pad, groups=count))
        y = b.call(
            "nn.conv2d", x, b.const(w.astype(np.int8)), padding=pad, groups=count,
            out_dtype="int32", input_zero_point=7,
        )  # fmt: skip
        scale = b.const(rng.uniform(1e-3, 3e-3, channels).astype(np.float32))
        return b.call("qnn.requantize", y, scale, output_zero_point=7, out_dtype="uint8")

    x = conv(x, 1, groups)
    x = b.call("reshape", x, newshape=(1, groups, width, 5, 6))
    x = b.call("transpose", x, axes=(0, 2, 1, 3, 4))
    x = b.call("reshape", x, newshape=(1, channels, 5, 6))
    x = conv(conv(x, 3, channels), 3, groups)
    x = b.call("concatenate", x, first, axis=1)
    mod = IRModule({"main": b.finish(x)})
    data = rng.integers(0, 255, (1, channels, 5, 6)).astype(dtype)
    want = compiler.evaluate(mod, data)
    for target, block in [*((t, 0) for t in available()), ("llvm", 4), ("llvm", 8)]:
        with PassContext(config={"AlterOpLayout.block": block}):
            text = optimize(mod, target).astext()
            got = compiler.build(mod, target=target)(data)
        assert "transpose" not in text
        assert "shuffle=" in text
        if dtype == "uint8":
            assert got.tobytes() == want.tobytes(), target
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_several_small_blocks_fill_a_vector(dtype: str) -> None:
    rng = np.random.default_rng(3)
    b = FunctionBuilder()
    x = first = b.param("x", (1, 3, 9, 7), dtype)
    for channels, outputs in [(3, 32), (32, 16), (16, 48)]:
        w = rng.integers(-99, 99, (outputs, channels, 3, 3))
        if dtype == "float32":
            weight = b.const((w / 99).astype(np.float32))
            x = b.call("nn.relu", b.call("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
            continue
        weight = b.const(w.astype(np.int8))
        x = b.call("nn.conv2d", x, weight, padding=(1, 1, 1, 1), out_dtype="int32")
        scale = b.const(rng.uniform(1e-3, 3e-3, outputs).astype(np.float32))
        x = b.call("qnn.requantize", x, scale, output_zero_point=7, out_dtype="uint8")
    mod = IRModule({"main": b.finish(b.call("concatenate", x, first, axis=1))})
    data = rng.integers(0, 255, (1, 3, 9, 7)).astype(dtype)
    want = compiler.build(mod)(data)
    for block in (2, 4, 8):
        with PassContext(config={"AlterOpLayout.block": block}):
            assert f"NCHW{block}c" in optimize(mod).astext()
            got = compiler.build(mod)(data)
        if dtype == "uint8":
            assert got.tobytes() == want.tobytes(), block
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("block", [-4, 1, "4"])
def test_a_bad_block_is_reported(block: object) -> None:
    b = FunctionBuilder()
    x = b.param("x", (1, 3, 9, 7), "float32")
    mod = IRModule({"main": b.finish(b.call("nn.relu", x))})
    with (
        PassContext(config={"AlterOpLayout.block": block}),
        pytest.raises(InputError, match=r"AlterOpLayout\.block must be"),
    ):
        compiler.build(mod)


def test_an_infinity_stays_in_its_group() -> None:
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("x", (1, 10, 3, 3), "float32")
    weight = b.const(rng.normal(size=(10, 5, 1, 1)).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("nn.conv2d", x, weight, groups=2))})
    data = rng.normal(size=(1, 10, 3, 3)).astype(np.float32)
    data[:, 7] = np.inf
    got = compiler.build(mod)(data)
    assert np.isfinite(got[:, :5]).all()
    assert not np.isfinite(got[:, 5:]).any()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(
    ("width", "kernel", "stride"), [(7, 3, 1), (14, 5, 1), (15, 3, 2), (31, 3, 1), (58, 5, 1)]
)
@pytest.mark.parametrize("groups", [1, 32])
def test_taps_in_the_padding_are_skipped(
    dtype: str, width: int, kernel: int, stride: int, groups: int
) -> None:
    rng = np.random.default_rng(width)
    b = FunctionBuilder()
    x = b.param("x", (Dim("n"), 32, 6, width), dtype)
    w = rng.integers(-99, 99, (32, 32 // groups, kernel, kernel))
    window = {
        "strides": (stride, stride), "padding": (kernel // 2, 1, 1, kernel // 2), "groups": groups,
    }  # fmt: skip
    if dtype == "uint8":
        x = b.call("nn.conv2d", x, b.const(w.astype(np.int8)), out_dtype="int32", **window)
        x = b.call("qnn.requantize", x, b.const(np.full(32, 1e-3, np.float32)))
    else:
        x = b.call("nn.relu", b.call("nn.conv2d", x, b.const((w / 99).astype("float32")), **window))
    mod = IRModule({"main": b.finish(x)})
    data = rng.integers(0, 255, (2, 32, 6, width)).astype(dtype)
    want = compiler.evaluate(mod, data)
    for target in available():
        exe = compiler.build(mod, target=target)
        assert "temp pad" not in exe.as_text()
        if dtype == "uint8":
            assert exe(data).tobytes() == want.tobytes(), target
        np.testing.assert_allclose(exe(data), want, rtol=1e-4, atol=1e-2)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("width", [4, 5, 6, 11])
def test_neighbouring_vectors_are_clipped_and_stored_together(width: int) -> None:
    rng = np.random.default_rng(width)
    b = FunctionBuilder()
    x = b.param("x", (1, 16, 3, width), "uint8")
    w = b.const(rng.integers(-99, 99, (32, 16, 1, 1)).astype(np.int8))
    y = b.call("nn.conv2d", x, w, out_dtype="int32")
    scale = b.const(np.repeat([1e-3, 1e-2, 1, 1e4], 8).astype(np.float32))  # the last exceed int16
    mod = IRModule({"main": b.finish(b.call("qnn.requantize", y, scale, output_zero_point=9))})
    data = rng.integers(0, 255, (1, 16, 3, width)).astype(np.uint8)
    want = compiler.evaluate(mod, data)
    assert {0, 255} < set(want.ravel())
    for target in available():
        exe = compiler.build(mod, target=target)
        assert exe(data).tobytes() == want.tobytes(), target
        if exe.target.isa == "avx512_vnni":
            assert "narrow.4x16" in exe.as_text()
            assert (f"narrow.{width % 4}x16" in exe.as_text()) == (width % 4 > 0)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "planes"),
    [(1, 3, 1, True), (1, 5, 2, True), (3, 3, 2, True), (3, 7, 2, True), (3, 5, 1, False)],
)
def test_few_channels_are_read_as_planes_where_rows_of_taps_fill_dot_products(
    channels: int, kernel: int, stride: int, planes: bool
) -> None:
    rng = np.random.default_rng(kernel)
    b = FunctionBuilder()
    x = b.param("x", (2, channels, 9, 37), "uint8")
    w = b.const(rng.integers(-99, 99, (40, channels, kernel, kernel)).astype(np.int8))
    y = b.call(
        "nn.conv2d", x, w, out_dtype="int32", strides=(stride, stride), input_zero_point=5,
        padding=(1, 0, kernel // 2, 1),
    )  # fmt: skip
    scale = b.const(rng.uniform(1e-4, 3e-3, 40).astype(np.float32))
    mod = IRModule({"main": b.finish(b.call("qnn.requantize", y, scale, output_zero_point=9))})
    data = rng.integers(0, 255, (2, channels, 9, 37)).astype(np.uint8)
    want = compiler.evaluate(mod, data)
    for target in available():
        exe = compiler.build(mod, target=target)
        assert exe(data).tobytes() == want.tobytes(), target
        assert any(d in exe.as_text() for d in DOTS), target
        assert ('dst_layout="NCHW4c"' in optimize(mod, target).astext()) == (not planes)


@st.composite
def blocked_pools(draw: st.DrawFn) -> tuple[IRModule, np.ndarray, dict[str, object]]:
    """A pooling of blocked bytes that is wide enough for a register tile, its data and attributes;
    no window lies in the padding."""
    op = draw(st.sampled_from(["nn.max_pool2d", "qnn.avg_pool2d"]))
    dtype = draw(st.sampled_from(["uint8", "int8"]))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(2, 4)))
    attrs: dict[str, object] = {
        "pool_size": kernel,
        "strides": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
        "padding": tuple(draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)),
        "ceil_mode": draw(st.booleans()),
    }
    if op == "qnn.avg_pool2d":
        low, high = (0, 255) if dtype == "uint8" else (-128, 127)
        attrs |= {
            "count_include_pad": draw(st.booleans()),
            "ratio": draw(st.sampled_from([0.5, 1.0, 1.3])),
            "input_zero_point": draw(st.integers(low, high)),
            "output_zero_point": draw(st.integers(low, high)),
            "out_dtype": dtype, "qmin": low, "qmax": high,
        }  # fmt: skip
    shape = (
        1,
        2,
        draw(st.integers(4, 6)),
        draw(st.integers(16, 40)),  # 7 windows or more: fewer are read from a padded copy
        draw(st.sampled_from([4, 16])),
    )
    info = np.iinfo(dtype)
    x = np.random.default_rng(draw(st.integers(0, 2**32))).integers(
        info.min, info.max, shape, endpoint=True
    )
    f = FunctionBuilder()
    y = f.call(op, f.param("x", shape, dtype), **attrs)
    return IRModule({"main": f.finish(y)}), x.astype(dtype), attrs


@pytest.mark.thorough
@given(blocked_pools())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_pools_read_unpadded_data_and_agree_on_every_instruction_set(
    pool: tuple[IRModule, np.ndarray, dict[str, object]],
) -> None:
    mod, x, attrs = pool
    want = compiler.evaluate(mod, x)
    for target in available():
        exe = compiler.build(mod, target=target)
        if not attrs["ceil_mode"]:  # a last, partial window may lie in the padding
            assert "temp pad" not in exe.as_text()
        assert np.array_equal(exe(x), want), target


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [13, 15, 17, 29])
def test_a_row_of_a_few_tiles_and_a_rest(width: int) -> None:
    """Few rows: threads share tiles of a row, of which the first and the last skip padding."""
    x = np.random.default_rng(width).integers(0, 256, (1, 1, 2, width, 16), np.uint8)
    f = FunctionBuilder()
    y = f.call(
        "nn.max_pool2d", f.param("x", x.shape, "uint8"), pool_size=(1, 3), padding=(0, 1, 0, 1)
    )
    mod = IRModule({"main": f.finish(y)})
    for target in available():
        exe = compiler.build(mod, target=target, threads=2)
        assert np.array_equal(exe(x), compiler.evaluate(mod, x)), target


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("taps", [(5, 51), (2, 128), (16, 17)])
def test_the_largest_sums_of_a_window_do_not_wrap(dtype: str, taps: tuple[int, int]) -> None:
    """Around the most codes whose sum 16 bits hold: 257 uint8, 256 int8."""
    info = np.iinfo(dtype)
    for code in (info.min, info.max):
        x = np.full((1, 1, taps[0], taps[1] + 8, 16), code, dtype)
        f = FunctionBuilder()
        y = f.call(
            "qnn.avg_pool2d", f.param("x", x.shape, dtype), pool_size=taps, out_dtype=dtype,
            qmin=int(info.min), qmax=int(info.max),
        )  # fmt: skip
        mod = IRModule({"main": f.finish(y)})
        got = compiler.build(mod)(x)
        assert np.all(got == code)
        assert np.array_equal(got, compiler.evaluate(mod, x))
