"""change_dtype: what it changes, what it keeps, what it refuses; whole networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
import datatypes
from compiler import DtypelabError, IRModule, TypeInferenceError, UnsupportedError, verify
from compiler.ir.builder import FunctionBuilder
from compiler.ir.expr import Call, Constant, calls, operands, tensor_type
from compiler.symbolic import Var
from compiler.types.dtypes import Array, DType
from datatypes.formats import minifloat
from experiments import zoo
from experiments.data import datasets

POSIT = DType.parse("custom[posit16_es1]16")
NETS = ("mnist_mlp", "mnist_dwsep", "mnist_resnet8")


def small_net() -> IRModule:
    """Convolution, batch norm, pooling, an integer side branch; symbolic batch."""
    rng = np.random.default_rng(0)
    b = FunctionBuilder()
    x = b.param("image", (Var("n"), 2, 6, 6))
    index = b.param("index", (3,), "int64")

    def weights(*shape: int) -> Constant:
        return b.const(rng.standard_normal(shape).astype(np.float32))

    y = b.call("nn.conv2d", x, weights(4, 2, 3, 3), name="conv", origins=["Conv_0"])
    statistics = [b.const(np.abs(rng.standard_normal(4)).astype(np.float32)) for _ in range(4)]
    y = b.call("nn.batch_norm", y, *statistics, name="norm", origins=["BN_1"])
    y = b.call("nn.relu", y, name="relu", origins=["Relu_2"])
    y = b.call("nn.max_pool2d", y, pool_size=(2, 2), strides=(2, 2), name="pool", origins=["Pool"])
    y = b.call("take", y, index, axis=1, name="picked", origins=["Gather_4"])
    as_integer = b.call("cast", y, dtype="int32", name="whole", origins=["Cast_5"])
    back = b.call("cast", as_integer, dtype="float32", name="back", origins=["Cast_6"])
    return IRModule({"main": b.finish(y, back, as_integer)})


def inputs() -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((5, 2, 6, 6)).astype(np.float32), np.array([2, 0, 3])


def dtypes(mod: IRModule) -> dict[str, str]:
    return {b.var.name: str(tensor_type(b.var).dtype) for b in mod.main.bindings}


def test_everything_inside_changes_and_the_boundary_stays() -> None:
    mod = small_net()
    changed = datatypes.change_dtype(mod, "float32", "posit16_es1")
    verify(changed)
    assert str(changed.main.type) == str(mod.main.type)
    assert [p.name for p in changed.main.params] == ["image", "index"]
    inside = dtypes(changed)
    assert inside["norm"] == inside["pool"] == inside["back"] == "custom[posit16_es1]16"
    assert inside["whole"] == "int32"
    constants = [a for b in changed.main.bindings for a in operands(b.value)
                 if isinstance(a, Constant)]  # fmt: skip
    assert {str(c.dtype) for c in constants} == {"custom[posit16_es1]16"}
    assert all(c.data.dtype == np.uint16 for c in constants)


@pytest.mark.thorough
def test_without_boundary() -> None:
    changed = datatypes.change_dtype(small_net(), "float32", POSIT, boundary=False)
    verify(changed)
    posit = "custom[posit16_es1]16"
    assert [str(tensor_type(p).dtype) for p in changed.main.params] == [posit, "int64"]
    assert [str(tensor_type(r).dtype) for r in changed.main.results] == [posit, posit, "int32"]
    x, index = inputs()
    got = compiler.build(changed)(datatypes.encode("posit16_es1", x), index)
    outer = compiler.build(datatypes.change_dtype(small_net(), "float32", POSIT))(x, index)
    np.testing.assert_array_equal(datatypes.decode("posit16_es1", got[0]), outer[0])
    np.testing.assert_array_equal(got[2], outer[2])


def test_names_and_origins_stay() -> None:
    mod = small_net()
    changed = datatypes.change_dtype(mod, "float32", "bfloat16")
    origins = {b.var.name: b.origins for b in changed.main.bindings}
    assert origins["norm"] == ("Conv_0", "BN_1")
    assert origins["pool"] == ("Pool",)
    assert changed.attrs["outputs"] == ("picked", "back", "whole")
    assert origins["picked_float32"] == ("Gather_4",)
    exe = compiler.build(changed)
    assert list(exe.outputs) == ["picked", "back", "whole"]
    assert list(exe.inputs) == ["image", "index"]


def test_batch_norm_is_folded_before_weights_are_rounded() -> None:
    mod = small_net()
    changed = datatypes.change_dtype(mod, "float32", "posit16_es1")
    assert not list(calls(changed.main, "nn.batch_norm"))
    from compiler.transform.preparation import prepare

    ((_, before),) = calls(prepare(mod).main, "nn.conv2d")
    ((_, after),) = calls(changed.main, "nn.conv2d")
    folded, rounded = before.args[1], after.args[1]
    assert isinstance(folded, Constant)
    assert isinstance(rounded, Constant)
    np.testing.assert_array_equal(rounded.data, datatypes.encode("posit16_es1", folded.data))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["posit16_es1", "bfloat16", "float8_e5m2", "fixed16_8"])
@pytest.mark.parametrize("boundary", [True, False])
def test_compiled_equals_interpreted(dtype: str, boundary: bool) -> None:
    changed = datatypes.change_dtype(small_net(), "float32", dtype, boundary=boundary)
    x, index = inputs()
    data = x if boundary else datatypes.encode(dtype, x)
    for got, want in zip(
        compiler.build(changed)(data, index), compiler.evaluate(changed, data, index), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v2", "haswell"])
@pytest.mark.parametrize("dtype", ["posit16_es1", "bfloat16", "takum16", "posit32_es2"])
def test_older_processors_and_threads_give_the_same_bits(dtype: str, cpu: str) -> None:
    changed = datatypes.change_dtype(small_net(), "float32", dtype)
    try:
        exe = compiler.build(changed, target=f"llvm -mcpu={cpu}", threads=2)
    except UnsupportedError as error:
        pytest.skip(str(error))
    for got, want in zip(exe(*inputs()), compiler.evaluate(changed, *inputs()), strict=True):
        np.testing.assert_array_equal(got, want)


def test_targets_may_be_written_in_several_ways() -> None:
    mod = small_net()
    texts = {
        datatypes.change_dtype(mod, src, dst).astext()
        for src in ("float32", DType.parse("float32"))
        for dst in ("posit16_es1", "custom[posit16_es1]16", datatypes.get("posit16_es1"), POSIT)
    }
    assert len(texts) == 1


def test_from_one_format_to_another() -> None:
    posit = datatypes.change_dtype(small_net(), "float32", "posit16_es1", boundary=False)
    changed = datatypes.change_dtype(posit, "posit16_es1", "bfloat16", boundary=False)
    verify(changed)
    ((_, before),), ((_, after),) = (calls(m.main, "nn.conv2d") for m in (posit, changed))
    weights, rounded = before.args[1], after.args[1]
    assert isinstance(weights, Constant)
    assert isinstance(rounded, Constant)
    values = datatypes.decode("posit16_es1", weights.data)
    np.testing.assert_array_equal(rounded.data, datatypes.encode("bfloat16", values))


def test_a_format_of_your_own() -> None:
    mine = minifloat(6, 9, name="mine16")
    changed = datatypes.change_dtype(small_net(), "float32", mine)
    assert dtypes(changed)["norm"] == "custom[mine16]16"
    x, index = inputs()
    np.testing.assert_array_equal(
        compiler.build(changed)(x, index)[0], compiler.evaluate(changed, x, index)[0]
    )


def test_text_of_the_program_reads_back() -> None:
    changed = datatypes.change_dtype(small_net(), "float32", "posit16_es1")
    text = changed.astext(show_meta_data=True)
    assert "custom[posit16_es1]16" in text
    again = compiler.parse(text)
    assert again.astext(show_meta_data=True) == text
    x, index = inputs()
    for got, want in zip(compiler.build(again)(x, index), compiler.build(changed)(x, index),
                         strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("float32", "posit16"), DtypelabError, "unknown format 'posit16'; did you mean"),
        (("float32", "custom[nobody]16"), DtypelabError, "unknown custom datatype 'nobody'"),
        (("float33", "bfloat16"), DtypelabError, "unknown dtype 'float33'"),
        (("float32", DType.parse("float32")), DtypelabError, "would stay as it is"),
        (
            ("float32", "bfloat16", True, "quire"),
            UnsupportedError,
            "unknown accumulation 'quire'.*sequential",
        ),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        datatypes.change_dtype(small_net(), *arguments)


def test_operators_without_a_custom_meaning_are_named() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,))
    y = b.call("power", x, x, name="y", origins=["Pow_7"])
    with pytest.raises(TypeInferenceError, match="node Pow_7: power is defined for float dtypes"):
        datatypes.change_dtype(IRModule({"main": b.finish(y)}), "float32", "bfloat16")


def test_fused_modules_are_refused() -> None:
    from compiler.build import optimize

    fused = optimize(small_net())
    assert any(isinstance(c.op, compiler.Function) for c in fused_calls(fused))
    with pytest.raises(UnsupportedError, match="change the dtype before optimizing"):
        datatypes.change_dtype(fused, "float32", "bfloat16")


def fused_calls(mod: IRModule) -> list[Call]:
    return [b.value for b in mod.main.bindings if isinstance(b.value, Call)]


def test_input_that_is_output() -> None:
    b = FunctionBuilder()
    x = b.param("x", (3,))
    changed = datatypes.change_dtype(IRModule({"main": b.finish(x)}), "float32", "float8_e5m2")
    verify(changed)
    got = compiler.build(changed)(np.array([1.0, 1.1, -3.3], np.float32))
    assert got.tolist() == [1.0, 1.0, -3.5]


# ---- trained networks ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def images() -> Array:
    return datasets.load("mnist1k").x[:100]


def agreement(net: str, dtype: str, images: Array) -> int:
    """Images on which the network predicts as it does in float32."""
    mod = compiler.from_onnx(zoo.FOLDER / f"{net}.onnx")
    changed = datatypes.change_dtype(mod, "float32", dtype)
    exact = compiler.build(mod, threads=2)(images).argmax(axis=1)
    return int((compiler.build(changed, threads=2)(images).argmax(axis=1) == exact).sum())


@pytest.mark.thorough
@pytest.mark.parametrize("net", NETS)
def test_bfloat16_predicts_as_float32(net: str, images: Array) -> None:
    assert agreement(net, "bfloat16", images) >= 99


@pytest.mark.thorough
@pytest.mark.parametrize("net", NETS)
def test_posit16_predicts_as_float32(net: str, images: Array) -> None:
    few = images[:20] if net == "mnist_resnet8" else images  # 37 ns per multiplication and addition
    assert agreement(net, "posit16_es1", few) >= len(few) - 1


@pytest.mark.slow
def test_posit16_resnet_on_all_images(images: Array) -> None:
    assert agreement("mnist_resnet8", "posit16_es1", images) >= 99


@pytest.mark.sampled(12)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("dtype", ["posit16_es1", "bfloat16", "posit8_es0"])
def test_networks_compiled_equal_interpreted(net: str, dtype: str, images: Array) -> None:
    mod = compiler.from_onnx(zoo.FOLDER / f"{net}.onnx")
    changed = datatypes.change_dtype(mod, "float32", dtype)
    got = compiler.build(changed)(images[:1])
    np.testing.assert_array_equal(compiler.evaluate(changed, images[:1]), got)
