"""Networks on a simulated accelerator: the bits of the CPU, what that costs, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compiler
import datatypes
import quantize
from compiler.engines.accelerator import cost, designed
from compiler.errors import DtypelabError, UnsupportedError
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import IRModule
from compiler.target.accelerator import Design
from compiler.transform import AnnotateTarget, InferType
from experiments import zoo
from experiments.data import datasets


def network(name: str) -> IRModule:
    return compiler.from_onnx(zoo.FOLDER / f"{name}.onnx")


def digits(n: int) -> np.ndarray:
    return datasets.load("mnist1k").x[:n]


def quantized(name: str, **how: object) -> IRModule:
    data = datasets.load("mnist1k").calibration[:20]
    return quantize.quantize(network(name), [data], quantize.QConfig(**how))


LAYERS = {"mnist_resnet8": 14, "mnist_dwsep": 13, "mnist_mlp": 2}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough) if n != "mnist_mlp" else n for n in LAYERS]
)
def test_bits_of_quantized_networks(name: str) -> None:
    mod, x = quantized(name), digits(4)
    on_core = compiler.build(mod, target="accel")
    np.testing.assert_array_equal(on_core(x), compiler.build(mod)(x))
    found = cost(on_core)
    assert found is not None
    assert len(found.layers) == LAYERS[name]
    assert found.cycles == sum(r.report.cycles for r in found.layers)
    assert 0 < found.utilization <= found.busy < 1
    assert str(on_core.target) == "accel"


DESIGNS = [
    "accel -block=8 -input=4K -weight=16K -acc=8K -bandwidth=4",
    "accel -block=32 -accumulator=int24_saturate",
]


@pytest.mark.thorough
@pytest.mark.parametrize("design", DESIGNS)
def test_designs_give_the_same_bits(design: str) -> None:
    mod, x = quantized("mnist_resnet8"), digits(2)
    np.testing.assert_array_equal(compiler.build(mod, target=design)(x), compiler.build(mod)(x))


@pytest.mark.thorough
def test_accumulators_that_wrap() -> None:
    mod, x = quantized("mnist_resnet8", accumulate="int14_wrap"), digits(8)
    wanted = compiler.build(mod)(x)
    design = "accel -accumulator=int14_wrap"
    np.testing.assert_array_equal(compiler.build(mod, target=design)(x), wanted)
    wide = quantized("mnist_resnet8")
    np.testing.assert_array_equal(compiler.build(wide, target=design)(x), wanted)
    assert (wanted != compiler.build(wide)(x)).any()


@pytest.mark.thorough
@pytest.mark.parametrize("code", ["posit8_es0", "float8_e4m3fn"])
def test_bits_of_formats(code: str) -> None:
    mod = datatypes.change_dtype(network("mnist_resnet8"), "float32", code, accumulate="exact")
    x = digits(2)
    on_core = compiler.build(mod, target=f"accel -format={code}")
    np.testing.assert_array_equal(on_core(x), compiler.build(mod)(x))
    found = cost(on_core)
    assert found is not None
    assert len(found.layers) == 13


def grouped(groups: int, inputs: int, units: int, dtype: str, **how: object) -> IRModule:
    """A convolution of groups with so many channels each."""
    rng, b = np.random.default_rng(groups), FunctionBuilder()
    x = b.param("x", (2, groups * inputs, 6, 7), dtype)
    w = rng.integers(-128, 128, (groups * units, inputs, 3, 3)).astype(np.int8)
    weight = w if dtype == "uint8" else datatypes.encode("posit8_es0", w / 128)
    given = b.const(weight, dtype) if dtype != "uint8" else b.const(weight)
    attrs = {"groups": groups, "padding": (1, 1, 1, 1), **how}
    return IRModule({"main": b.finish(b.call("nn.conv2d", x, given, **attrs))})


@pytest.mark.parametrize(
    ("groups", "inputs", "units", "steps"),
    [
        pytest.param(2, 16, 32, 2 * 2, marks=pytest.mark.thorough),  # blocks of their own
        (8, 4, 8, 4 * 1),  # four groups fill a block of data, and two of results
        pytest.param(3, 5, 7, 2 * 1, marks=pytest.mark.thorough),  # as one, since nothing fits
        pytest.param(32, 1, 2, 4 * 1, marks=pytest.mark.thorough),  # a multiplier of channels
    ],
)
def test_groups_of_channels_are_multiplied_by_as_few_blocks_as_hold_them(
    groups: int, inputs: int, units: int, steps: int
) -> None:
    mod = grouped(groups, inputs, units, "uint8", out_dtype="int32", input_zero_point=3)
    x = np.random.default_rng(1).integers(0, 256, (2, groups * inputs, 6, 7)).astype(np.uint8)
    on_core = compiler.build(mod, target="accel")
    np.testing.assert_array_equal(on_core(x), compiler.build(mod)(x))
    found = cost(on_core)
    assert found is not None
    (layer,) = found.layers
    assert layer.macs == groups * units * inputs * 9 * 6 * 7
    assert layer.report.gemm == steps * 9 * 6 * 7


@pytest.mark.thorough
def test_groups_of_a_format_fill_blocks_or_stay_here() -> None:
    """A zero between groups would make NaN of another group's NaR."""
    shape, dtype = (2, 32, 6, 7), "custom[posit8_es0]8"
    x = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    mod = grouped(2, 16, 16, dtype, accumulate="exact")
    on_core = compiler.build(mod, target="accel -format=posit8_es0")
    np.testing.assert_array_equal(on_core(x).view(np.uint8), compiler.build(mod)(x).view(np.uint8))
    assert cost(on_core) is not None
    with designed(Design.parse("accel -format=posit8_es0")):
        few = grouped(8, 4, 8, dtype, accumulate="exact")
        reasons = [str(r) for r in AnnotateTarget(["accel"]).explain(InferType()(few))]
    assert any("8 groups do not fill blocks of 16" in r for r in reasons), reasons


@pytest.mark.thorough
def test_sums_in_order_go_to_the_core_where_it_keeps_the_order() -> None:
    mod = datatypes.change_dtype(
        network("mnist_mlp"), "float32", "posit8_es1", accumulate="float32"
    )
    on_core = compiler.build(mod, target="accel -format=posit8_es1 -accumulator=float32")
    np.testing.assert_array_equal(on_core(digits(5)), compiler.build(mod)(digits(5)))
    found = cost(on_core)
    assert found is not None
    assert len(found.layers) == 2


@pytest.mark.thorough
def test_weights_of_few_bits_take_less_of_the_bus() -> None:
    mod, x = quantized("mnist_mlp", weight_bits=4), digits(2)
    full, half = (compiler.build(mod, target=f"accel -weight_bits={bits}") for bits in (8, 4))
    np.testing.assert_array_equal(full(x), half(x))
    np.testing.assert_array_equal(full(x), compiler.build(mod)(x))
    costs = [cost(exe) for exe in (full, half)]
    loaded = [c.layers[0].report.loaded for c in costs if c is not None]
    assert loaded[1] < 0.6 * loaded[0]


def test_partition_without_a_design_takes_the_default() -> None:
    mod, x = quantized("mnist_mlp"), digits(2)
    exe = compiler.build(mod, engines=["accel"])
    np.testing.assert_array_equal(exe(x), compiler.build(mod)(x))


def test_a_batch_of_nothing() -> None:
    exe = compiler.build(quantized("mnist_mlp"), target="accel")
    assert exe(digits(0)).shape == (0, 10)
    assert cost(exe) is None
    assert exe(digits(1)).shape == (1, 10)


@pytest.mark.thorough
def test_open_sizes_are_planned_when_they_come() -> None:
    exe, mod = compiler.build(quantized("mnist_dwsep"), target="accel"), quantized("mnist_dwsep")
    assert cost(exe) is None
    for n in (1, 3):
        np.testing.assert_array_equal(exe(digits(n)), compiler.build(mod)(digits(n)))


@pytest.mark.thorough
def test_an_accelerator_is_a_device_among_others() -> None:
    mod, x = quantized("mnist_resnet8"), digits(2)
    layers = [b for b in mod.main.bindings if b.var.name.endswith(("_acc", "relu_q"))]
    nodes = {node: "core" for b in layers[:2] for node in b.origins}
    exe = compiler.build(compiler.place(mod, nodes), target={"host": "llvm", "core": "accel"})
    np.testing.assert_array_equal(exe(x), compiler.build(mod)(x))


REFUSED = {
    "accel -format=posit8_es0": "the core computes nothing of this program",
    "accel -weight_bits=2 -accumulator=int31_wrap": "the core computes nothing of this program",
    "accel -input=64": "cannot hold one tile",
}


@pytest.mark.thorough
@pytest.mark.parametrize(("design", "said"), REFUSED.items())
def test_networks_that_a_core_does_not_take(design: str, said: str) -> None:
    mod = quantized("mnist_dwsep")

    def run() -> object:
        return compiler.build(mod, target=design)(digits(1))

    with pytest.raises(UnsupportedError, match=said):
        run()


@pytest.mark.thorough
def test_where_weights_do_not_fit_means_and_sums_still_go_to_the_core() -> None:
    mod, x = quantized("mnist_resnet8"), digits(2)
    on_core = compiler.build(mod, target="accel -weight_bits=2")
    np.testing.assert_array_equal(on_core(x), compiler.build(mod)(x))
    found = cost(on_core)
    assert found is not None
    assert [(y.macs, y.report.gemm) for y in found.layers] == 4 * [(0, 0)]


@pytest.mark.parametrize(
    "kind", ["float32", pytest.param("custom[bfloat16]16", marks=pytest.mark.thorough)]
)
def test_networks_that_are_not_quantized(kind: str) -> None:
    """Padded convolutions and pooling of other numbers than the core's are refused in words."""
    mod = network("mnist_dwsep")
    if kind != "float32":
        mod = datatypes.change_dtype(mod, "float32", kind)
    with pytest.raises(UnsupportedError, match="the core computes nothing of this program"):
        compiler.build(mod, target="accel")


@pytest.mark.thorough
@pytest.mark.parametrize("skip", ["getitem", "getitem_1?", "logits"])
def test_layers_that_stay_float32_are_the_hosts(skip: str) -> None:
    mod, x = quantized("mnist_resnet8", skip=[skip]), digits(2)
    on_core = compiler.build(mod, target="accel")
    np.testing.assert_array_equal(on_core(x), compiler.build(mod)(x))
    found = cost(on_core)
    assert found is not None
    assert 0 < len(found.layers) < LAYERS["mnist_resnet8"]


REFUSERS = {
    "export": lambda mod, path: compiler.export(mod, "accel", path),
    "decoder": lambda mod, path: compiler.decoder(mod, target="accel"),
    "tune": lambda mod, path: compiler.tune(mod, "accel", log=path),
}


@pytest.mark.parametrize("how", REFUSERS)
def test_what_cannot_be_made_for_it(how: str, tmp_path: Path) -> None:
    mod = quantized("mnist_mlp")
    with pytest.raises(DtypelabError, match="accel"):
        REFUSERS[how](mod, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_bits_of_a_text_classifier() -> None:
    path = zoo.sources()["ppocr_cls"].find()
    if path is None:
        pytest.skip("the network comes with rapidocr-onnxruntime")
    mod = compiler.from_onnx(path, shapes={"x": (2, 3, 48, 192)})
    x = np.random.default_rng(0).normal(size=(2, 3, 48, 192)).astype(np.float32)
    mod = quantize.quantize(mod, [x])
    on_core = compiler.build(mod, target="accel")
    np.testing.assert_array_equal(on_core(x), compiler.build(mod)(x))
    found = cost(on_core)
    assert found is not None
    assert len(found.layers) == 54 + 3  # and pooling
