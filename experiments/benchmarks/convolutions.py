"""Convolution shapes one by one: int8 networks of a single layer, uint8 in and out.

`layer` is the whole network as called (layout changes at its boundary included, as in onnxruntime's
time); `kernel` is its longest kernel alone, which is what the layer costs inside a network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from experiments.benchmarks import peer
from experiments.benchmarks.peak import Peak, peak
from experiments.benchmarks.stages import kernel_calls
from experiments.benchmarks.turns import Contender, Effort, always, medians
from experiments.measure.disturbance import pinned

if TYPE_CHECKING:
    from compiler import Executable
    from compiler.ir.expr import IRModule
    from compiler.target.registry import Target

Array = NDArray[Any]

PEAK_SHARE = 0.90
"""Least share of the peak for the 3x3 convolutions of ResNet-50."""
IMPOSSIBLE_SHARE = 1.02
"""Nothing is faster than the peak: a share above this, clock drift aside, was measured wrongly."""


def taps_met(size: int, outputs: int, kernel: int, stride: int, before: int) -> int:
    """Along one axis, how many (output, tap) meet one of `size` data elements and no padding."""
    first = (y * stride - before for y in range(outputs))
    return sum(0 <= at + k < size for at in first for k in range(kernel))


@dataclass(frozen=True)
class Shape:
    """A convolution at batch 1 over a square image of `size`; `pads` are (before, after)."""

    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int = 1
    depthwise: bool = False
    pads: tuple[int, int] | None = None

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros before and after: half the kernel unless given."""
        return self.pads or (self.kernel // 2, self.kernel // 2)

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return self.inputs if self.depthwise else 1

    @property
    def out_size(self) -> int:
        """Rows and columns of the result."""
        return (self.size + sum(self.padding) - self.kernel) // self.stride + 1

    @property
    def operations(self) -> int:
        """A multiply and an add count as two; those with zeros of the padding do not count."""
        met = taps_met(self.size, self.out_size, self.kernel, self.stride, self.padding[0])
        return 2 * self.outputs * met**2 * self.inputs // self.groups

    def __str__(self) -> str:
        kind = "dw" if self.depthwise else "  "
        stride = f"/{self.stride}" if self.stride > 1 else "  "
        return (
            f"{kind} {self.inputs:>4} -> {self.outputs:<4} {self.size:>3}² "
            f"{self.kernel}x{self.kernel}{stride}"
        )


RESNET50 = (
    Shape(3, 64, 224, 7, 2),
    *(Shape(i, o, 56, 1) for i, o in ((64, 64), (64, 256), (256, 64), (256, 128))),
    *(Shape(i, o, 28, 1) for i, o in ((128, 512), (512, 128), (512, 256))),
    *(Shape(i, o, 14, 1) for i, o in ((256, 1024), (1024, 256), (1024, 512))),
    *(Shape(i, o, 7, 1) for i, o in ((512, 2048), (2048, 512))),
    *(Shape(c, 2 * c, size, 1, 2) for c, size in ((256, 56), (512, 28), (1024, 14))),
    *(Shape(c, c, size, 3) for c, size in ((64, 56), (128, 28), (256, 14), (512, 7))),
    *(Shape(c, c, size, 3, 2) for c, size in ((128, 56), (256, 28), (512, 14))),
)
DEPTHWISE = tuple(
    Shape(c, c, size, kernel, stride, True)
    for c, size, kernel, stride in (
        # MobileNet v1
        (32, 112, 3, 1), (64, 112, 3, 2), (128, 56, 3, 1), (128, 56, 3, 2), (256, 28, 3, 1),
        (256, 28, 3, 2), (512, 14, 3, 1), (512, 14, 3, 2), (1024, 7, 3, 1),
        # efficientnet-lite0
        (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (240, 28, 5, 1), (240, 28, 3, 2),
        (480, 14, 3, 1), (480, 14, 5, 1), (672, 14, 5, 1), (672, 14, 5, 2), (1152, 7, 5, 1),
        (1152, 7, 3, 1),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """Parameters of a layer: zero points 0, so that clipping the result is a ReLU."""

    shape: Shape
    weight: Array
    bias: Array
    weight_scale: Array
    out_scale: float
    in_scale: float = 1 / 64

    @staticmethod
    def random(shape: Shape) -> Layer:
        """Weights over the whole of int8; the results fill uint8 without clipping much."""
        rng = np.random.default_rng(0)
        taps = shape.inputs // shape.groups
        weight = rng.integers(-127, 128, (shape.outputs, taps, shape.kernel, shape.kernel), np.int8)
        bias = rng.integers(-1000, 1000, shape.outputs, np.int32)
        scale = rng.uniform(0.001, 0.002, shape.outputs).astype(np.float32)
        spread = 147 * 73 * (taps * shape.kernel**2) ** 0.5 * 0.0015 / 64
        return Layer(shape, weight, bias, scale, float(np.float32(spread / 64)))

    def module(self) -> IRModule:
        """Our integer graph."""
        from compiler.ir.builder import FunctionBuilder
        from compiler.ir.expr import IRModule

        s, b = self.shape, FunctionBuilder()
        x = b.param("x", (1, s.inputs, s.size, s.size), "uint8")
        before, after = s.padding
        sums = b.call(
            "nn.conv2d", x, b.const(self.weight), b.const(self.bias), strides=(s.stride, s.stride),
            padding=(before, before, after, after), groups=s.groups, out_dtype="int32",
        )  # fmt: skip
        scale = np.float32(self.in_scale) * self.weight_scale / np.float32(self.out_scale)
        return IRModule({"main": b.finish(b.call("qnn.requantize", sums, b.const(scale)))})

    def onnx_model(self) -> bytes:
        """The same as QDQ nodes, which onnxruntime fuses into one."""
        from onnx import TensorProto, helper, numpy_helper

        s = self.shape
        constants: dict[str, Any] = {
            "x_scale": np.float32(self.in_scale), "zero": np.uint8(0),
            "weight": self.weight, "w_scale": self.weight_scale,
            "w_zero": np.zeros(s.outputs, np.int8),
            "bias": self.bias, "b_scale": np.float32(self.in_scale) * self.weight_scale,
            "b_zero": np.zeros(s.outputs, np.int32), "y_scale": np.float32(self.out_scale),
        }  # fmt: skip
        real = "DequantizeLinear"
        before, after = s.padding
        nodes = [
            helper.make_node(real, ["x", "x_scale", "zero"], ["xr"]),
            helper.make_node(real, ["weight", "w_scale", "w_zero"], ["wr"], axis=0),
            helper.make_node(real, ["bias", "b_scale", "b_zero"], ["br"], axis=0),
            helper.make_node(
                "Conv", ["xr", "wr", "br"], ["yr"], strides=[s.stride] * 2, group=s.groups,
                pads=[before, before, after, after], kernel_shape=[s.kernel] * 2,
            ),
            helper.make_node("QuantizeLinear", ["yr", "y_scale", "zero"], ["y"]),
        ]  # fmt: skip
        u8 = TensorProto.UINT8
        graph = helper.make_graph(
            nodes,
            "layer",
            [helper.make_tensor_value_info("x", u8, [1, s.inputs, s.size, s.size])],
            [helper.make_tensor_value_info("y", u8, [1, s.outputs, s.out_size, s.out_size])],
            [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
        )
        opset = [helper.make_opsetid("", 17)]
        return bytes(
            helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
        )


def run(effort: Effort) -> bool:
    """Measure every shape on one thread, print a line each, and tell whether all pass.

    Raises:
        DtypelabError: onnxruntime is not installed, or this CPU has no known peak.
    """
    from compiler.target.registry import Target

    peer.onnxruntime()
    plain = Target.parse("llvm").unasked
    top = peak(plain)
    click.echo(f"convolutions, 1 thread; peak by {top.instruction}")
    head = ("layer us", "peer us", "ratio", "kernel us", "GOPS", "% peak", "default us")
    click.echo(f"  {'':<4}  {'':<27}" + "".join(f"{h:>11}" for h in head))
    with pinned(1):
        verdicts = [_measure(shape, plain, top, effort) for shape in (*RESNET50, *DEPTHWISE)]
    click.echo(f"{len(verdicts)} shapes, {verdicts.count(False)} FAIL\n")
    return all(verdicts)


def _measure(shape: Shape, plain: Target, top: Peak, effort: Effort) -> bool:
    """Measure a shape by dot products, whose peak it should come near to, and as it is by default,
    which may be by tiles."""
    import compiler

    layer = Layer.random(shape)
    executable = compiler.build(layer.module(), target=plain)
    default = compiler.build(layer.module())
    model = layer.onnx_model()
    x = np.random.default_rng(1).integers(
        0, 256, (1, shape.inputs, shape.size, shape.size), np.uint8
    )
    with peer.session(model, 1) as session:
        apart = np.abs(executable(x).astype(int) - session(x).astype(int)).max()

    @contextlib.contextmanager
    def theirs() -> Iterator[Callable[[], object]]:
        with peer.session(model, 1) as session:
            yield lambda: session(x)

    contenders: dict[str, Contender] = {"layer": _layer(executable, x), "peer": theirs}
    contenders |= {"peak": always(top.call), "default": _layer(default, x)}
    kernels = [f"kernel {k}" for k in range(len(executable.kernels))]
    contenders |= dict(zip(kernels, map(always, kernel_calls(executable)), strict=True))
    times = medians(contenders, effort)
    longest = max(times[name] for name in kernels)
    rate = shape.operations / longest / 1e6
    share = rate / (top.operations / times["peak"] / 1e6)
    wanted = shape.kernel == 3 and not shape.depthwise
    problem = ""
    if apart > 1:
        problem = f"  results are {apart} apart"
    elif share > IMPOSSIBLE_SHARE:
        problem = "  above the peak: the measurement is disturbed"
    passed = not problem and (share >= PEAK_SHARE or not wanted)
    figures = (
        f"{times['layer'] * 1e3:.1f}", f"{times['peer'] * 1e3:.1f}",
        f"{times['peer'] / times['layer']:.2f}x", f"{longest * 1e3:.1f}", f"{rate:.0f}",
        f"{share:.1%}", f"{times['default'] * 1e3:.1f}",
    )  # fmt: skip
    verdict = ("PASS" if wanted else "    ") if passed else "FAIL"
    click.echo(f"  {verdict}  {shape!s:<27}" + "".join(f"{f:>11}" for f in figures) + problem)
    return passed


def _layer(executable: Executable, x: Array) -> Contender:
    return always(lambda: executable(x))
