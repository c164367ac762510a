"""Convolutions over blocks of 64 channels by instructions on tiles: the same bits as without."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compiler
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule, Var
from compiler.passes.manager import PassContext
from compiler.symbolic import Var as Dim
from compiler.tensor.stmt import Intrin, PrimFunc, walk_stmts

needs_tiles = pytest.mark.skipif(
    "amx-int8" not in compiler.Target.parse("llvm").enabled,
    reason="this CPU has no AMX, or Linux does not grant it",
)
WITHOUT = "llvm -mattr=-amx-int8"


class Net:
    """Convolutions of bytes, each requantized to uint8."""

    def __init__(self, seed: int, zero: int):
        self.b, self.zero = FunctionBuilder(), zero
        self.rng = np.random.default_rng(seed)

    def conv(self, x: Var, channels: int, outputs: int, kernel: int, **attrs: object) -> Var:
        b = self.b
        w = self.rng.integers(-128, 128, (outputs, channels, kernel, kernel)).astype(np.int8)
        bias = [b.const(self.rng.integers(-9999, 9999, outputs).astype(np.int32))]
        y = b.call("nn.conv2d", x, b.const(w), *bias[: self.zero % 2], out_dtype="int32",
                   input_zero_point=self.zero, **attrs)  # fmt: skip
        scale = b.const(self.rng.uniform(1e-4, 3e-3, outputs).astype(np.float32))
        return b.call("qnn.requantize", y, scale, output_zero_point=self.zero, out_dtype="uint8")


@needs_tiles
@pytest.mark.parametrize(
    "count",
    [1, pytest.param(15, marks=pytest.mark.thorough), pytest.param(300, marks=pytest.mark.slow)],
)
def test_convolutions_of_all_shapes_give_the_same_bits(count: int) -> None:
    tiled: list[bool] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from([64, 128]), st.sampled_from([64, 128]), st.sampled_from([3, 1, 2]),
        st.tuples(*[st.sampled_from([12, *range(5, 25)])] * 2),
        st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(*[st.integers(0, 2)] * 4),
        st.integers(1, 2), st.sampled_from([0, 0, 3, 128]), st.sampled_from([1, 2, None]),
        st.sampled_from(["uint8", "int8"]), st.integers(0, 99), st.sampled_from([1, 2]),
    )  # fmt: skip
    def check(
        channels: int, outputs: int, kernel: int, size: tuple[int, int], strides: tuple[int, int],
        padding: tuple[int, ...], dilation: int, zero: int, batch: int | None, dtype: str,
        seed: int, threads: int,
    ) -> None:  # fmt: skip
        net = Net(seed, zero)
        x = net.b.param("x", (batch or Dim("n"), channels, *size), dtype)
        y = net.conv(x, channels, outputs, kernel, strides=strides, padding=padding,
                     dilation=(dilation, dilation))  # fmt: skip
        mod = IRModule({"main": net.b.finish(net.conv(y, outputs, 64, 1))})
        data = net.rng.integers(0, 256, (batch or 2, channels, *size)).astype(np.uint8)
        exe = compiler.build(mod, threads=threads)
        tiled.append("tdpb" in exe.as_text())
        got = exe(data.view(dtype))
        assert got.tobytes() == compiler.build(mod, target=WITHOUT)(data.view(dtype)).tobytes()
        if seed % 8 == 1:
            assert got.tobytes() == compiler.evaluate(mod, data.view(dtype)).tobytes()

    check()
    assert np.mean(tiled) >= 0.6  # where they take fewer cycles


@needs_tiles
@pytest.mark.thorough
def test_blocks_are_of_64_channels_where_all_convolutions_fill_them() -> None:
    for widths, block in (((64, 128, 64), 64), ((64, 96, 64), 16), ((3, 64, 64), 64)):
        net = Net(0, 0)
        x = net.b.param("x", (1, widths[0], 9, 9), "uint8")
        y = net.conv(x, widths[0], widths[1], 3, padding=(1, 1, 1, 1))
        z = net.conv(y, widths[1], widths[2], 1)
        mod = IRModule({"main": net.b.finish(z)})
        data = net.rng.integers(0, 256, (1, widths[0], 9, 9)).astype(np.uint8)
        exe, without = compiler.build(mod), compiler.build(mod, target=WITHOUT)
        assert f"{block}]" in exe.as_text()
        assert ("tdpb" in exe.as_text()) == (block == 64)
        assert "64]" not in without.as_text().split("conv2d_requantize")[-1].split("\n")[0]
        with PassContext(config={"AlterOpLayout.block": 16}):
            apart = compiler.build(mod)
        assert "tdpb" not in apart.as_text()
        want = without(data).tobytes()
        assert exe(data).tobytes() == want == apart(data).tobytes()


@needs_tiles
@pytest.mark.thorough
def test_what_follows_a_convolution_is_done_on_its_tiles() -> None:
    net = Net(1, 0)
    x = net.b.param("x", (1, 64, 10, 10), "uint8")
    y = net.conv(x, 64, 64, 3, padding=(1, 1, 1, 1))
    z = net.conv(y, 64, 64, 3, padding=(1, 1, 1, 1))
    s = net.b.call("qnn.add", x, z)
    mod = IRModule({"main": net.b.finish(s)})
    data = net.rng.integers(0, 256, (1, 64, 10, 10)).astype(np.uint8)
    exe = compiler.build(mod)
    text = exe.as_text()
    assert sum("tdpb" in part for part in text.split("primfunc ")) == 2
    assert any("tdpb" in p and '"qnn.add"' in p for p in text.split("primfunc "))
    assert exe(data).tobytes() == compiler.evaluate(mod, data).tobytes()


def convolution(
    channels: int, outputs: int, kernel: int, size: int, stride: int, batch: int = 1
) -> PrimFunc:
    """The loops of a convolution."""
    net = Net(0, 0)
    x = net.b.param("x", (batch, channels, size, size), "uint8")
    y = net.conv(x, channels, outputs, kernel, strides=(stride, stride),
                 padding=(kernel // 2,) * 4)  # fmt: skip
    exe = compiler.build(IRModule({"main": net.b.finish(y)}))
    (func,) = (k.func for k in exe.program.kernels if "conv2d" in k.func.name)
    return func


def products(func: PrimFunc) -> int:
    """Products of bytes that instructions on tiles compute."""
    found = (
        (s, path) for s, path, _ in walk_stmts(func.body) if isinstance(s, Intrin) and "k" in s.vars
    )
    return sum(
        math.prod(f.extent.constant() or 0 for f in path) * math.prod(s.intrin.loops.values())
        for s, path in found
    )


@needs_tiles
@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("size", "stride"), [(14, 2), (28, 2), (56, 2), (57, 2), (42, 3), (16, 4)])
def test_strided_layers_compute_few_rows_that_nobody_uses(
    kernel: int, size: int, stride: int
) -> None:
    """Where these alone were computed that lie evenly as they are, there would be more than twice
    as many; what is left of tiles at the end of an image is counted, too."""
    func = convolution(128, 512, kernel, size, stride)
    out = (size - 1) // stride + 1
    wanted = 128 * 512 * kernel**2 * out**2
    assert any(b.name.endswith("_padded") for b in func.temps)
    assert wanted <= products(func) <= 1.35 * wanted + 128 * 512 * kernel**2 * 16


@needs_tiles
@pytest.mark.thorough
def test_data_are_copied_only_where_that_saves_more() -> None:
    """Rows of 28 are two tiles each, of which four elements are computed twice: for few channels
    that takes less than a copy, for many it does not."""
    few, many = (
        any("padded" in b.name for b in convolution(64, n, 1, 56, 2).temps) for n in (64, 1024)
    )
    assert (few, many) == (False, True)
